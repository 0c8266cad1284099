"""The schedule of faults, drawn from a seed before anything starts; causes each, and undoes it."""

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cppo_lab.runs.folder import holder
from dev.chaos.study import kill, require, started, steps_on_file
from dev.chaos.testbed import Testbed
from dev.errors import DevError
from dev.slurm.daemons import Process, everything, look_up

T = TypeVar("T")
COMING_UP_SECONDS = 600.0  # that a part may take to come back while its dependencies are down
TRAINER, SHIPPER = "submitit.core._submit", "cppo_lab.tracking.uploader"


# Kind of fault -> its description.
KINDS = {
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
    """Draw `counts` faults of each kind, in the order in which they are due. The first launcher is killed at once."""
    generator = random.Random(seed)
    faults = []
    for kind in KINDS:  # in a fixed order, independent of that of `counts`
        for number in range(counts[kind]):
            at = 0.0 if kind == "launcher" and number == 0 else generator.uniform(0.0, LAST)
            pause = generator.uniform(1.0, LONGEST_PAUSE) if kind in COMES_BACK else 0.0
            faults.append(Fault(at, kind, pause, generator.random()))
    return tuple(sorted(faults))


@dataclass(frozen=True)
class Training:
    """A run that a live process trains, as Slurm job `job` on `node`."""

    run_id: str
    process: Process
    step: int  # the number of recorded steps, minus one
    job: str
    node: str

    def __str__(self) -> str:
        return f"{self.run_id} at step {self.step} on {self.node}"


def trainings(runs: Path) -> list[Training]:
    """The runs that are being trained and have recorded a step, ordered by id."""
    trained = []
    for folder in sorted(runs.iterdir()):
        held = holder(folder) if (folder / "lock").is_file() else None
        process = look_up(held[1]) if held else None
        if process is None or TRAINER not in process.words():
            continue
        env, steps = process.environment(), steps_on_file(folder)
        job = env.get("SLURM_JOB_ID", "")
        if "SLURM_ARRAY_JOB_ID" in env:
            job = f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
        if steps and job:
            trained.append(Training(folder.name, process, steps - 1, job, env.get("SLURMD_NODENAME", "")))
    return trained


class Strikes:
    """Causes faults on a testbed. `away` has the parts that are down now, by kind."""

    def __init__(self, place: Testbed, say: Callable[[str, str], None]) -> None:
        self.place, self._say = place, say
        self.away: set[str] = set()
        self._pool = ThreadPoolExecutor(max_workers=8)
        self._coming: list[Future[None]] = []
        self._over = threading.Event()

    def strike(self, fault: Fault) -> str:
        """Cause it; a description of the target hit, empty if there was none."""
        if fault.kind in self.away:
            return ""
        place, cluster = self.place, self.place.cluster
        trained = trainings(place.runs)
        training = _picked(trained, fault)
        node = _picked(sorted({training.node for training in trained}), fault)  # one that trains a run
        match fault.kind:
            case "trainer" if training:
                training.process.send(signal.SIGKILL)
                return str(training)
            case "shipper":
                of = {training.process.pid: training for training in trained}
                sending = [each for each in everything() if each.parent in of and SHIPPER in each.words()]
                if shipper := _picked(sending, fault):
                    shipper.send(signal.SIGKILL)
                    return f"of {of[shipper.parent]}"
            case "requeue" if training and "slurmctld" not in self.away:
                refused = cluster.problem("scontrol", "requeue", training.job)
                return "" if refused else f"{training}, job {training.job}"
            case "slurmd" if node and not self.away & {"node", "slurmctld"}:
                cluster.end(f"slurmd-{node}", patience=0)
                return self._comes_back(fault, node, lambda: cluster.start_node(node))
            case "node" if node and not self.away & {"slurmd", "slurmctld"}:
                noticed = fault.chance < 0.5
                cluster.fail_node(node, noticed)
                self._comes_back(fault, node, lambda: cluster.resume_node(node))
                return f"{node}, {'noticed' if noticed else 'unnoticed'}"
            case "slurmctld" if not self.away & {"node", "slurmd"}:
                cluster.end("slurmctld", patience=0)
                return self._comes_back(fault, "slurmctld", cluster.restart_controller)
            case "mlflow":
                place.server.kill()
                return self._comes_back(fault, "the server", place.server.start)
            case "postgres" if place.postgres.crash():
                return self._comes_back(fault, "PostgreSQL", place.postgres.start)
            case "disk" if trained:
                place.disk.fill()
                self._comes_back(fault, "the disk", place.disk.empty)
                return "no byte is left"
            case "store":
                return self._store(fault)
        return ""

    def check(self) -> None:
        """Raises the error of a part that failed to come back."""
        for future in self._coming:
            if future.done():
                future.result()

    def close(self) -> None:
        """Stop bringing parts back."""
        self._over.set()
        self._pool.shutdown()

    def _store(self, fault: Fault) -> str:
        """In a separate folder, since the study's own store is created before the first fault."""
        folder = Path(tempfile.mkdtemp(prefix="store-", dir=self.place.folder))
        env = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        words = ["reference", "import"]
        process = started(words, folder, env, folder / "log")

        def kill_and_repeat() -> None:
            while process.poll() is None and not list(folder.glob("mlflow.db*")):
                time.sleep(0.01)
            time.sleep(2 * fault.chance)
            kill(process)
            try:
                require(words, folder, env, folder / "log")
            except DevError as error:
                raise DevError(
                    f"a store that was killed while it was made cannot be used: {error}"
                ) from error
            self._say(fault.kind, "it is whole")

        self._coming.append(self._pool.submit(kill_and_repeat))
        return f"of {folder.name}, {2 * fault.chance:.1f} s after its file was there"

    def _comes_back(self, fault: Fault, what: str, bring: Callable[[], object]) -> str:
        """After the fault's pause it is tried until it works, since its dependencies may be down. Returns `what`."""
        self.away.add(fault.kind)

        def later() -> None:
            if self._over.wait(fault.pause):
                return
            deadline = time.monotonic() + COMING_UP_SECONDS
            while True:
                try:
                    bring()
                    break
                except DevError:
                    if time.monotonic() > deadline or self._over.wait(1.0):
                        raise
            self.away.discard(fault.kind)
            self._say(fault.kind, f"{what} is back")

        self._coming.append(self._pool.submit(later))
        return what


def _picked(victims: Sequence[T], fault: Fault) -> T | None:
    """That which the fault's chance picks."""
    return victims[int(fault.chance * len(victims))] if victims else None
