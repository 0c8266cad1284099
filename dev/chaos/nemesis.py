"""The disturbed study from its first launch to its last point: `cppo launch`, repeated as a user would."""

import contextlib
import shlex
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from cppo_lab.launch.slurm import LEDGER
from dev.chaos import job_entry
from dev.chaos.strikes import Fault, Strikes
from dev.chaos.study import ROOT, Study, environment, kill, require, started
from dev.chaos.testbed import Testbed
from dev.errors import DevError
from dev.slurm.accounts import Account

POLL_SECONDS = 0.1
LAUNCHER_SECONDS = 0.01  # polling interval while a launcher is to be killed in the middle of an action
LOOK_SECONDS = 0.5  # polling interval of the files
QUEUE_SECONDS = 2.0  # polling interval of Slurm's queue
LEFT_TO_SLURM = b"Slurm has them"  # printed by `cppo launch`
LONGEST = 8.0  # maximum seconds after which a launcher is killed
JOB_ENTRY = Path(job_entry.__file__).relative_to(ROOT)
BY_ANOTHER = frozenset({"account", "shell"})  # faults that are launches
# Each is an option of its command, which hides jobs or changes what is printed.
MISLEADING = {
    "SQUEUE_PARTITION": "high", "SQUEUE_STATES": "RUNNING", "SQUEUE_FORMAT": "%i", "SQUEUE_USERS": "daemon",
    "SCANCEL_STATE": "RUNNING", "SACCT_FORMAT": "jobid", "SINFO_FORMAT": "%N",
}  # fmt: skip


class Launcher:
    """A `cppo launch` or `cppo retry` in the background. `fault`: kills it, unless it ends before."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        log: Path,
        fault: Fault | None,
        tries: int,
        account: Account | None = None,
    ) -> None:
        """`tries`: launchers that ended before the fault could hit them. Without an `account`, it runs as this user."""
        self.words, self.fault, self._runs = words, fault, folder / "runs"
        self._after = 1.0 + (fault.chance * 2 % 1) * (LONGEST - 1.0) / (1 + tries) if fault else 0.0
        # The first one certainly submits; later ones may have nothing to submit.
        self._submitting = fault is not None and not tries and (not fault.at or fault.chance < 0.5)
        self._before = begun(self._runs)
        self._started = time.monotonic()
        self._log, self._begin = log, log.stat().st_size if log.exists() else 0
        python, identity = (
            (account.python, account.identity()) if account else (sys.executable, {"umask": 0o022})
        )
        self._process = started(list(words), folder, env, log, python, **identity)

    def ended(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def found_nothing_to_do(self) -> bool:
        """Whether it succeeded and left nothing to Slurm, so that everything is done."""
        return self.ended() == 0 and LEFT_TO_SLURM not in self._log.read_bytes()[self._begin :]

    def strike(self) -> str:
        """Kill it if its time has come, with or without its children; returns a description of the moment."""
        age = time.monotonic() - self._started
        due = not begun(self._runs) <= self._before if self._submitting else age >= self._after
        if self.fault is None or self.ended() is not None or not due:
            return ""
        moment = "while it submits" if self._submitting else f"after {age:.1f} s"
        whole = self.fault.chance * 4 % 1 < 0.5
        kill(self._process, group=whole)
        return moment + (", and its sbatch" if whole else "")

    def end(self) -> None:
        """End it for good."""
        kill(self._process)


def begun(runs: Path) -> frozenset[str]:
    """The submissions that have begun and whose job id is not recorded yet."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{runs / LEDGER}?mode=ro", uri=True, timeout=0.0)
        ) as ledger:
            rows = ledger.execute("SELECT token FROM submission WHERE job_id IS NULL")
            return frozenset(token for (token,) in rows)
    except sqlite3.Error:  # not there yet, or being written
        return frozenset()


class NemesisRun:
    """A study that is launched on a cluster, disturbed as scheduled, and launched again until it is done.

    `injected` counts the faults that hit a target; `waiting` are those that have not found one yet.
    """

    def __init__(self, study: Study, place: Testbed, faults: list[Fault], seconds: float) -> None:
        """It is given up after so many seconds."""
        self.study, self.place, self.waiting = study, place, faults
        self.injected: Counter[str] = Counter()
        self.progress = 0.0  # the share of all steps that is recorded in files
        self.launches = 0
        self._over = False  # a launch has found nothing to do
        self._calm = False  # there are no faults any more
        self._log = place.folder / "commands.log"
        theirs = place.colleague.environment()
        self._env = environment(place.server.uri, place.folder / "cache") | {
            "PATH": place.cluster.env()["PATH"],
            "SLURM_CONF": str(place.cluster.conf),
            "PYTHONPATH": theirs["PYTHONPATH"],
            "LD_LIBRARY_PATH": theirs["LD_LIBRARY_PATH"],
        }
        self._strikes = Strikes(place, self.say)
        self._tries: Counter[Fault] = Counter()
        self._launcher: Launcher | None = None
        self._failed = False  # the last launch failed
        self._looked, self._asked = 0.0, 0.0
        self._began, self._seconds = time.monotonic(), seconds

    def say(self, kind: str, text: str) -> None:
        """Print an event: time since the start, share of logged steps, kind of the fault, target."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        share = f"{100 * self.progress:3.0f} %"
        line = f"{minutes:2d}:{seconds:02d} {share:>5}  {kind or '-':<9}  {text}\n"
        print(line, end="", flush=True)  # at once, since other threads print too

    def run(self) -> None:
        """Run the whole study.

        Raises DevError if it is not done in time, or if a part of the testbed does not recover.
        """
        try:
            self._launch("launch")
            while not self._over:
                self._poll()
            self._strike()  # faults that do not need a running run
            while self._launcher is not None or self._strikes.away:
                self._poll()
            self.say("", "nothing is left to train, and all is back")
            self._over, self._calm = False, True
            while not self._over:
                self._poll()
        finally:
            if self._launcher is not None:
                self._launcher.end()
            self._strikes.close()
        self._strikes.check()
        require(["sync"], self.place.folder, self._env, self._log)

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
        if time.monotonic() > self._began + self._seconds:
            raise DevError(
                f"not done after {self._seconds / 60:.0f} minutes: see {self._log}, and what jobs "
                f"printed, in {self.place.folder}/runs-kept/slurm"
            )

    def _due(self) -> list[Fault]:
        return [] if self._calm else [fault for fault in self.waiting if fault.at <= self.progress]

    def _strike(self) -> None:
        for fault in self._due():
            if fault.kind == "launcher" or fault.kind in BY_ANOTHER:
                if self._launcher is None and not self._over:
                    self._launch("launch")
            elif hit := self._strikes.strike(fault):
                self._happened(fault, hit)

    def _happened(self, fault: Fault, hit: str) -> None:
        self.waiting.remove(fault)
        self.injected[fault.kind] += 1
        self.say(fault.kind, hit)

    def _launch(self, name: str) -> None:
        """Start `cppo launch` or `retry`, as another user, in a misleading shell or to be killed if that is due."""
        due = self._due() if name == "launch" else []
        killed = next((fault for fault in due if fault.kind == "launcher"), None)
        colleague, env = None, dict(self._env)
        if self.launches and (other := next((fault for fault in due if fault.kind in BY_ANOTHER), None)):
            killed = None
            if other.kind == "account":
                colleague = self.place.colleague
                home = colleague.environment()
                env |= home | {"XDG_CACHE_HOME": f"{home['HOME']}/.cache"}
                self._happened(other, f"by {colleague.name}")
            else:
                env |= MISLEADING
                self._happened(other, "with SQUEUE_PARTITION=high and others")
        # Jobs need a Python that their user can start, whoever launches.
        account = self.place.colleague
        python = shlex.join([str(account.python), str(account.code / JOB_ENTRY)])
        slurm = ["launcher=slurm", "launcher.grace_seconds=30", f"launcher.python={python}"]
        words = [name, *self.study.words, *slurm, *(["--failed"] if name == "retry" else [])]
        self.launches += 1
        self._failed = False
        tries = self._tries[killed] if killed else 0
        self._launcher = Launcher(words, self.place.folder, env, self._log, killed, tries, colleague)
        if killed:
            self._tries[killed] += 1

    def _see_launcher(self) -> None:
        launcher = self._launcher
        if launcher is None:
            return
        if launcher.fault is not None and (hit := launcher.strike()):
            self._happened(launcher.fault, hit)
            self._launch("launch")  # as its user would
        elif (status := launcher.ended()) is not None:
            self._launcher, self._failed = None, status != 0 and launcher.words[0] == "launch"
            if launcher.words[0] == "launch" and launcher.found_nothing_to_do():
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
                self.say("", f"job {job}, which Slurm held, is released")
        return bool(asked.returncode or asked.stdout.strip())
