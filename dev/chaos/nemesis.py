"""Causes each kind of fault, and undoes it.

Each strike returns a description of its target, or an empty text if there is no target at the moment.
"""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dev.chaos.jobs import shippers, trainings
from dev.chaos.schedule import Fault
from dev.chaos.study import call, command
from dev.chaos.testbed import Testbed
from dev.errors import DevError

T = TypeVar("T")
COMING_UP_SECONDS = 600.0  # that a part may take to come back while its dependencies are down


class Strikes:
    """Causes faults on a testbed. `away` has the parts that are down now, by kind."""

    def __init__(self, place: Testbed, say: Callable[[str, str], None]) -> None:
        self.place, self._say = place, say
        self.away: set[str] = set()
        self._pool = ThreadPoolExecutor(max_workers=8)
        self._coming: list[Future[None]] = []
        self._over = threading.Event()
        self._by_kind: dict[str, Callable[[Fault], str]] = {
            "trainer": self._trainer,
            "shipper": self._shipper,
            "requeue": self._requeue,
            "slurmd": self._slurmd,
            "node": self._node,
            "slurmctld": self._slurmctld,
            "mlflow": self._mlflow,
            "postgres": self._postgres,
            "disk": self._disk,
            "store": self._store,
        }

    def strike(self, fault: Fault) -> str:
        """Cause it; the target hit, empty if there was none."""
        return "" if fault.kind in self.away else self._by_kind[fault.kind](fault)

    def check(self) -> None:
        """Raises the error of a part that failed to come back."""
        for done in [future for future in self._coming if future.done()]:
            self._coming.remove(done)
            done.result()

    def close(self) -> None:
        """Stop bringing parts back."""
        self._over.set()
        self._pool.shutdown()

    # -- processes of runs

    def _trainer(self, fault: Fault) -> str:
        victim = _one_of(trainings(self.place.runs), fault)
        if victim is None:
            return ""
        victim.process.send(signal.SIGKILL)
        return str(victim)

    def _shipper(self, fault: Fault) -> str:
        victim = _one_of(shippers(self.place.runs), fault)
        if victim is None:
            return ""
        victim[1].send(signal.SIGKILL)
        return f"of {victim[0]}"

    def _requeue(self, fault: Fault) -> str:
        victim = _one_of(trainings(self.place.runs), fault)
        if victim is None or self.away & {"slurmctld"}:
            return ""
        refused = self.place.cluster.problem("scontrol", "requeue", victim.job)
        return "" if refused else f"{victim}, job {victim.job}"

    # -- Slurm

    def _slurmd(self, fault: Fault) -> str:
        node = self._busy_node(fault)
        if not node or self.away & {"node", "slurmctld"}:
            return ""
        self.place.cluster.end(f"slurmd-{node}", patience=0)
        self._comes_back(fault, node, lambda: self.place.cluster.start_node(node))
        return node

    def _node(self, fault: Fault) -> str:
        node = self._busy_node(fault)
        if not node or self.away & {"slurmd", "slurmctld"}:
            return ""
        noticed = fault.chance < 0.5
        self.place.cluster.fail_node(node, noticed)
        self._comes_back(fault, node, lambda: self._again(lambda: self.place.cluster.resume_node(node)))
        return f"{node}, {'noticed' if noticed else 'unnoticed'}"

    def _busy_node(self, fault: Fault) -> str:
        """A node that trains a run; empty if there is none."""
        nodes = sorted({one.node for one in trainings(self.place.runs)})
        return _one_of(nodes, fault) or ""

    def _slurmctld(self, fault: Fault) -> str:
        if self.away & {"node", "slurmd"}:
            return ""
        self.place.cluster.end("slurmctld", patience=0)
        self._comes_back(fault, "slurmctld", lambda: self._again(self._start_controller))
        return "slurmctld"

    # -- the store and the disk

    def _mlflow(self, fault: Fault) -> str:
        self.place.server.kill()
        self._comes_back(fault, "the server", lambda: self._again(self.place.server.start))
        return "the server"

    def _postgres(self, fault: Fault) -> str:
        if not self.place.postgres.crash():
            return ""
        self._comes_back(fault, "PostgreSQL", lambda: self._again(self.place.postgres.start))
        return "PostgreSQL"

    def _disk(self, fault: Fault) -> str:
        if not trainings(self.place.runs):
            return ""
        self.place.disk.fill()
        self._comes_back(fault, "the disk", self.place.disk.empty)
        return "no byte is left"

    def _store(self, fault: Fault) -> str:
        """In a separate folder, since the study's own store is created before the first fault."""
        folder = Path(tempfile.mkdtemp(prefix="store-", dir=self.place.folder))
        env = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command("reference", "import"), cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

        def kill_and_repeat() -> None:
            while process.poll() is None and not list(folder.glob("mlflow.db*")):
                time.sleep(0.01)
            time.sleep(2 * fault.chance)
            process.kill()
            process.wait()
            if call(["reference", "import"], folder, env, folder / "log", COMING_UP_SECONDS):
                raise DevError(f"a store that was killed while it was made cannot be used: see {folder}")
            self._say(fault.kind, "it is whole")

        self._coming.append(self._pool.submit(kill_and_repeat))
        return f"of {folder.name}, {2 * fault.chance:.1f} s after its file was there"

    # -- coming back

    def _comes_back(self, fault: Fault, what: str, bring: Callable[[], object]) -> None:
        self.away.add(fault.kind)

        def later() -> None:
            if self._over.wait(fault.pause):
                return
            bring()
            self.away.discard(fault.kind)
            self._say(fault.kind, f"{what} is back")

        self._coming.append(self._pool.submit(later))

    def _start_controller(self) -> None:
        self.place.cluster.end("slurmctld")  # one that has not come up in time
        self.place.cluster.start_controller()

    def _again(self, bring: Callable[[], object]) -> None:
        """Tries until it works, since its dependencies may be down."""
        deadline = time.monotonic() + COMING_UP_SECONDS
        while True:
            try:
                bring()
                return
            except DevError:
                if time.monotonic() > deadline or self._over.wait(1.0):
                    raise


def _one_of(victims: Sequence[T], fault: Fault) -> T | None:
    """The one that the fault's chance picks."""
    return victims[int(fault.chance * len(victims))] if victims else None
