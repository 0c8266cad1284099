"""Causes each kind of fault, and undoes it."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cppo_lab.runs.folder import holder
from dev.chaos.schedule import Fault
from dev.chaos.study import kill, require, started, steps_on_file
from dev.chaos.testbed import Testbed
from dev.errors import DevError
from dev.slurm.daemons import PROC, Process, everything, look_up

T = TypeVar("T")
COMING_UP_SECONDS = 600.0  # that a part may take to come back while its dependencies are down
TRAINER, SHIPPER = "submitit.core._submit", "cppo_lab.tracking.uploader"


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
        if process is None or TRAINER not in _words(process):
            continue
        env, steps = process.environment(), steps_on_file(folder)
        job = env.get("SLURM_JOB_ID", "")
        if "SLURM_ARRAY_JOB_ID" in env:
            job = f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
        if steps and job:
            trained.append(Training(folder.name, process, steps - 1, job, env.get("SLURMD_NODENAME", "")))
    return trained


def _words(process: Process) -> str:
    try:
        return (
            (PROC / str(process.pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except (FileNotFoundError, ProcessLookupError):
        return ""


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
        going = trainings(place.runs)
        training = _picked(going, fault)
        node = _picked(sorted({one.node for one in going}), fault)  # one that trains a run
        match fault.kind:
            case "trainer" if training:
                training.process.send(signal.SIGKILL)
                return str(training)
            case "shipper":
                of = {training.process.pid: training for training in going}
                sending = [one for one in everything() if one.parent in of and SHIPPER in _words(one)]
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
                return self._comes_back(fault, "slurmctld", self._start_controller)
            case "mlflow":
                place.server.kill()
                return self._comes_back(fault, "the server", place.server.start)
            case "postgres" if place.postgres.crash():
                return self._comes_back(fault, "PostgreSQL", place.postgres.start)
            case "disk" if going:
                place.disk.fill()
                self._comes_back(fault, "the disk", place.disk.empty)
                return "no byte is left"
            case "store":
                return self._store(fault)
        return ""

    def check(self) -> None:
        """Raises the error of a part that failed to come back."""
        for done in [future for future in self._coming if future.done()]:
            self._coming.remove(done)
            done.result()

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

    def _start_controller(self) -> None:
        self.place.cluster.end("slurmctld")  # one that has not come up in time
        self.place.cluster.start_controller()


def _picked(victims: Sequence[T], fault: Fault) -> T | None:
    """That which the fault's chance picks."""
    return victims[int(fault.chance * len(victims))] if victims else None
