"""The schedule of faults: drawn from a seed before anything starts."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Kind of fault -> its description.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "trainer": "a training process is killed",
        "launcher": "`cppo launch` is killed",
        "shipper": "the process that sends a run's points is killed",
        "slurmd": "a node's slurmd is killed, its jobs continue",
        "node": "a node is killed with its jobs",
        "slurmctld": "Slurm's controller is killed",
        "mlflow": "the MLflow server is killed",
        "postgres": "PostgreSQL is killed",
        "disk": "the disk of the run folder is full",
        "requeue": "a job is requeued",
        "account": "another user launches the same",
        "shell": "`cppo launch` is called in a shell with variables for Slurm's commands",
        "store": "`cppo` is killed while it makes a new store",
    }
)
COMES_BACK = frozenset({"slurmd", "node", "slurmctld", "mlflow", "postgres", "disk"})
LONGEST_PAUSE = 8.0  # seconds that something stays away
LAST = 0.75  # share of the training that is done when the last fault is due
LONG = {"trainer": 10, "launcher": 5, "shipper": 5, "slurmd": 3, "node": 3, "slurmctld": 4, "mlflow": 4,
        "postgres": 4, "disk": 4, "requeue": 6, "account": 3, "shell": 3, "store": 4}  # fmt: skip
SHORT = {**dict.fromkeys(KINDS, 1), "trainer": 2}


@dataclass(frozen=True, order=True)
class Fault:
    """A fault, due when the share `at` of all training steps is recorded.

    `pause`: seconds until the part is brought back; 0 if there is nothing to bring back. `chance` in [0, 1) picks the
    target among those available at that moment.
    """

    at: float
    kind: str
    pause: float
    chance: float


def draw(seed: int, counts: Mapping[str, int]) -> tuple[Fault, ...]:
    """Draw `counts` faults of each kind, in the order in which they are due. The first launcher is killed at once.

    Raises ValueError for an unknown kind.
    """
    if unknown := sorted(counts.keys() - KINDS.keys()):
        raise ValueError(f"no such faults: {', '.join(unknown)}: there are {', '.join(KINDS)}")
    generator = random.Random(seed)
    faults = []
    for kind in KINDS:  # in a fixed order, independent of that of `counts`
        for number in range(counts.get(kind, 0)):
            at = 0.0 if kind == "launcher" and number == 0 else generator.uniform(0.0, LAST)
            pause = generator.uniform(1.0, LONGEST_PAUSE) if kind in COMES_BACK else 0.0
            faults.append(Fault(at, kind, pause, generator.random()))
    return tuple(sorted(faults))
