"""`cppo launch`, repeated as a user would, and the faults that hit it."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cppo_lab.launch.slurm.ledger import NAME
from dev.chaos.schedule import Fault
from dev.chaos.study import command
from dev.slurm.accounts import Account

LEFT_TO_SLURM = b"Slurm has them"  # printed by `cppo launch`
LONGEST = 8.0  # maximum seconds after which a launcher is killed


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
        self._log = log
        with log.open("ab") as output:
            self._begin = output.tell()
            output.write(f"$ cppo {' '.join(words)}\n".encode())
            output.flush()
            self._process = subprocess.Popen(
                [str(account.python) if account else sys.executable, *command(*words)[1:]], cwd=folder, env=dict(env),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                **(account.identity() if account else {"umask": 0o022}),
            )  # fmt: skip

    def ended(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def found_nothing_to_do(self) -> bool:
        """Whether it succeeded and left nothing to Slurm, so that everything is done."""
        with self._log.open("rb") as file:
            file.seek(self._begin)
            return self.ended() == 0 and LEFT_TO_SLURM not in file.read()

    def strike(self) -> str:
        """Kill it if its time has come, with or without its children; returns a description of the moment."""
        if self.fault is None or self.ended() is not None:
            return ""
        age = time.monotonic() - self._started
        if self._submitting:
            if begun(self._runs) <= self._before:
                return ""
            moment = "while it submits"
        elif age < self._after:
            return ""
        else:
            moment = f"after {age:.1f} s"
        whole = self.fault.chance * 4 % 1 < 0.5
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if whole else os.kill)(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return moment + (", and its sbatch" if whole else "")

    def end(self) -> None:
        """End it for good."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def begun(runs: Path) -> frozenset[str]:
    """The submissions that have begun and whose job id is not recorded yet."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{runs / NAME}?mode=ro", uri=True, timeout=0.0)
        ) as ledger:
            return frozenset(
                token for (token,) in ledger.execute("SELECT token FROM submission WHERE job_id IS NULL")
            )
    except sqlite3.Error:  # not there yet, or being written
        return frozenset()
