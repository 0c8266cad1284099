"""The disturbed study from its first launch to its last point."""

import shlex
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cppo_lab.cli.answer import Exit
from dev.chaos import job_entry
from dev.chaos.launching import Launcher
from dev.chaos.nemesis import Strikes
from dev.chaos.schedule import Fault
from dev.chaos.study import ROOT, Study, call, environment
from dev.chaos.testbed import Testbed
from dev.errors import DevError

POLL_SECONDS = 0.1
LAUNCHER_SECONDS = 0.01  # polling interval while a launcher is to be killed in the middle of an action
LOOK_SECONDS = 0.5  # polling interval of the files
QUEUE_SECONDS = 2.0  # polling interval of Slurm's queue
REFUSALS = 10  # give up after this many refused launches in a row while nothing is down
IDLE_LAUNCHES = 40  # give up after this many launches in a row without progress
CALM_LAUNCHES = 8  # maximum number of launches after the last fault
COMMAND_SECONDS = 1800.0
REFUSED = (Exit.USAGE, Exit.STORE_AWAY, Exit.PACKAGE)  # exit codes of a launch that has done nothing
JOB_ENTRY = Path(job_entry.__file__).relative_to(ROOT)
BY_ANOTHER = frozenset({"account", "shell"})  # faults that are launches
# Each is an option of its command, which hides jobs or changes what is printed.
MISLEADING = {
    "SQUEUE_PARTITION": "high", "SQUEUE_STATES": "RUNNING", "SQUEUE_FORMAT": "%i", "SQUEUE_USERS": "daemon",
    "SCANCEL_STATE": "RUNNING", "SACCT_FORMAT": "jobid", "SINFO_FORMAT": "%N",
}  # fmt: skip


class NemesisRun:
    """A study that is launched on a cluster, disturbed as scheduled, and launched again until it is done.

    `injected` counts the faults that hit a target; `waiting` are those that have not found one yet.
    """

    def __init__(
        self,
        study: Study,
        place: Testbed,
        faults: list[Fault],
        say: Callable[[str, str], None],
        seconds: float,
    ) -> None:
        """It is given up after so many seconds."""
        self.study, self.place, self.waiting, self._say = study, place, faults, say
        self.injected: Counter[str] = Counter()
        self.progress = 0.0  # the share of all steps that is recorded in files
        self.launches = 0
        self._over = False  # a launch has found nothing to do
        self._log = place.folder / "commands.log"
        self._env = environment(place.server.uri, place.folder / "cache") | {
            "PATH": place.cluster.env()["PATH"],
            "SLURM_CONF": str(place.cluster.conf),
            "PYTHONPATH": place.colleague.environment()["PYTHONPATH"],
            "LD_LIBRARY_PATH": place.colleague.environment()["LD_LIBRARY_PATH"],
        }
        self._strikes = Strikes(place, say)
        self._tries: Counter[Fault] = Counter()
        self._launcher: Launcher | None = None
        self._failed = False  # the last launch failed
        self._refused = 0  # launches in a row
        self._idle, self._reached = 0, 0.0  # launches in a row without progress, and the progress before them
        self._looked, self._asked = 0.0, 0.0
        self._seconds, self._deadline = seconds, time.monotonic() + seconds

    def run(self) -> None:
        """Run the whole study.

        Raises DevError if it is not done in time or after CALM_LAUNCHES, if launches are refused, or if a part of the
        testbed does not recover.
        """
        try:
            self._launch("launch")
            while not self._over:
                self._poll()
            self._strike()  # faults that do not need a running run
            while self._launcher is not None or self._strikes.away:
                self._poll()
            self._settle()
        finally:
            if self._launcher is not None:
                self._launcher.end()
            self._strikes.close()

    # -- while it is disturbed

    def _poll(self) -> None:
        time.sleep(LAUNCHER_SECONDS if self._launcher is not None and self._launcher.fault else POLL_SECONDS)
        self._require_time()
        self._strikes.check()
        self._see_launcher()
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            if not self._over:
                self.progress = self.study.progress(self.place.runs)
                self._strike()
        if self._launcher is None and time.monotonic() - self._asked >= QUEUE_SECONDS:
            self._asked = time.monotonic()
            if not self._over and not self._busy():
                # Failed runs are retried, as `cppo launch` advises.
                self._launch("retry" if self._failed else "launch")

    def _require_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise DevError(f"not done after {self._seconds / 60:.0f} minutes: see {self.place.folder}")

    def _strike(self) -> None:
        for fault in [one for one in self.waiting if one.at <= self.progress]:
            if fault.kind == "launcher" or fault.kind in BY_ANOTHER:
                if self._launcher is None and not self._over:
                    self._launch("launch")
            elif hit := self._strikes.strike(fault):
                self._happened(fault, hit)

    def _happened(self, fault: Fault, hit: str) -> None:
        self.waiting.remove(fault)
        self.injected[fault.kind] += 1
        self._say(fault.kind, hit)

    def _launch(self, name: str) -> Launcher:
        """Start `cppo launch` or `retry`, as another user or with a launcher fault if one is due."""
        others = [one for one in self.waiting if one.kind in BY_ANOTHER and one.at <= self.progress]
        if others and name == "launch" and self.launches:
            return self._launch_as(others[0])
        due = [one for one in self.waiting if one.kind == "launcher" and one.at <= self.progress]
        fault = due[0] if due and name == "launch" else None
        tries = self._tries[fault] if fault else 0
        if fault:
            self._tries[fault] += 1
        self.launches += 1
        self._failed = False
        self._launcher = Launcher(self._words(name), self.place.folder, self._env, self._log, fault, tries)
        return self._launcher

    def _launch_as(self, fault: Fault) -> Launcher:
        """`cppo launch` by the colleague, or in a misleading shell."""
        colleague = self.place.colleague if fault.kind == "account" else None
        env = self._env | (MISLEADING if fault.kind == "shell" else {})
        if colleague is not None:
            home = colleague.environment()
            env |= home | {"XDG_CACHE_HOME": f"{home['HOME']}/.cache"}
        self.launches += 1
        self._failed = False
        words = self._words("launch")
        self._launcher = Launcher(words, self.place.folder, env, self._log, None, 0, colleague)
        self._happened(
            fault, f"by {colleague.name}" if colleague else "with SQUEUE_PARTITION=high and others"
        )
        return self._launcher

    def _words(self, name: str) -> list[str]:
        # Jobs need a Python that their user can start, whoever launches.
        colleague = self.place.colleague
        python = shlex.join([str(colleague.python), str(colleague.code / JOB_ENTRY)])
        slurm = ["launcher=slurm", "launcher.grace_seconds=30", f"launcher.python={python}"]
        return [name, *self.study.words, *slurm, *(["--failed"] if name == "retry" else [])]

    def _see_launcher(self) -> None:
        going = self._launcher
        if going is None:
            return
        if going.fault is not None and (hit := going.strike()):
            self._happened(going.fault, hit)
            self._launch("launch")  # as its user would
        elif (status := going.ended()) is not None:
            self._refused = self._refused + 1 if status in REFUSED and not self._strikes.away else 0
            if self._refused == REFUSALS:
                raise DevError(f"{REFUSALS} launches in a row were refused: see {self._log}")
            self._idle = self._idle + 1 if self.progress <= self._reached and not self._strikes.away else 0
            self._reached = self.progress
            if self._idle == IDLE_LAUNCHES:
                raise DevError(
                    f"{IDLE_LAUNCHES} launches in a row trained nothing: see {self._log}, and what their jobs "
                    f"printed, in {self.place.folder}/runs-kept/slurm"
                )
            self._launcher, self._failed = None, status != 0 and going.words[0] == "launch"
            if going.words[0] == "launch" and going.found_nothing_to_do():
                # What a full disk kept out of a run's files is only in the store.
                self._over, self.progress = True, 1.0

    def _busy(self) -> bool:
        """Whether anything is in Slurm's queue, or the queue cannot be queried."""
        if "slurmctld" in self._strikes.away:
            return True
        asked = self.place.cluster.run("squeue", "-h", "-r", "-o", "%i %r")
        for job, _, reason in (line.partition(" ") for line in asked.stdout.splitlines()):
            if reason.endswith("requeued held"):  # a node refused it: Slurm waits for an administrator
                self.place.cluster.run("scontrol", "release", job)
                self._say("", f"job {job}, which Slurm held, is released")
        return bool(asked.returncode or asked.stdout.strip())

    # -- afterwards

    def _settle(self) -> None:
        """After the last fault, launch, retry and sync until nothing is left to do."""
        self._say("", "nothing is left to train, and all is back")
        for _ in range(CALM_LAUNCHES):
            self._wait(lambda: not self._busy())
            launch = self._complete("launch")
            if launch.found_nothing_to_do():
                break
            if launch.ended():
                self._complete("retry")
        else:
            raise DevError(f"not done after {CALM_LAUNCHES} launches in peace: see {self._log}")
        if status := call(["sync"], self.place.folder, self._env, self._log, COMMAND_SECONDS):
            raise DevError(f"`cppo sync` ended with status {status}: see {self._log}")

    def _complete(self, name: str) -> Launcher:
        going = self._launch(name)
        self._wait(lambda: going.ended() is not None)
        return going

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            time.sleep(LOOK_SECONDS)
            self._require_time()
