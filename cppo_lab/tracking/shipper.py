"""Uploads a run while it trains, in a thread that no training step ever waits for.

For longer runs the thread delegates the work to a separate process (`ship_process`). The final upload is made in this
process, when training is over.
"""

import contextlib
import random
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.files import redacted
from cppo_lab.runs.folder import Cause, read_status, write_status
from cppo_lab.runs.recorder import Recorder, begin_line, close_dead
from cppo_lab.runs.spool import End, Line, new_record
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.client import STORE_FAULTS, fault_line, open_client
from cppo_lab.tracking.ship_process import ShipProcess
from cppo_lab.tracking.upload import ship

EVERY_SECONDS = 2.0
ASIDE_AFTER_SECONDS = 30.0  # of training: a shorter run would be over before the process has imported MLflow
LONGEST_PAUSE_SECONDS = 60.0  # between two tries while a store does not answer
# How long the end of a run waits for the final upload. Afterwards the points are in files, and `cppo sync` sends them.
PATIENCE_SECONDS = 60.0
HURRY_SECONDS = 8.0  # the same for a run that is being ended: Slurm kills 30 s after its SIGTERM
LOOK_SECONDS = 0.5
_FAULTS = (*STORE_FAULTS, UserError)


class Shipper:
    """Ships `folder` to the store at `uri` every EVERY_SECONDS from `start` until it is closed."""

    def __init__(self, folder: Path, uri: str, recorder: Recorder | None = None) -> None:
        """Lines that `recorder` could not write to disk are sent at the end."""
        self.folder, self.uri, self._recorder = folder, uri, recorder
        self._patience = PATIENCE_SECONDS
        self._client: MlflowClient | None = None
        self._started = time.monotonic()
        self._process: ShipProcess | None = None
        self._alone = False  # the separate process has failed, or cannot be started
        self._stop = threading.Event()
        self._away_since: float | None = None
        self._sent = False  # whether the final upload is complete
        self._thread = threading.Thread(target=self._work, name="shipper", daemon=True)

    def __enter__(self) -> "Shipper":
        self._thread.start()
        return self

    def hurry_up(self) -> None:
        """The process is ending: stop waiting for the store."""
        self._patience = HURRY_SECONDS

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Upload the rest. If the store still does not answer, print a message; nothing is lost."""
        self._stop.set()
        began = time.monotonic()
        while self._thread.is_alive() and time.monotonic() - began < self._patience:
            if self._process is not None:
                self._process.kill()  # it may hang with its store; the rest is sent from this process
            self._thread.join(LOOK_SECONDS)
        if not self._sent:
            print(_not_taken(self.folder, self._recorder), file=sys.stderr, flush=True)

    def _work(self) -> None:
        pause = EVERY_SECONDS
        while not self._stop.wait(pause):
            pause = EVERY_SECONDS if self._try() else self._longer(pause)
        if self._process is not None:
            self._process.close()
        began = time.monotonic()
        while not (sent := self._try(last=True)) and time.monotonic() - began < self._patience:
            time.sleep(LOOK_SECONDS)
        self._sent = sent

    @staticmethod
    def _longer(pause: float) -> float:
        """Exponential back-off with jitter, so that a hundred runs do not return to a server at the same moment."""
        return min(LONGEST_PAUSE_SECONDS, 2 * pause) * random.uniform(0.8, 1.0)

    def _try(self, last: bool = False) -> bool:
        """Ship once; False if the store did not accept it."""
        try:
            fault = self._here(last) if last or not self._aside() else self._there()
        except BrokenPipeError:
            return self._stop.is_set() or self._try()
        if fault:
            if self._away_since is None:
                self._away_since = time.monotonic()
                said = f"tracking store does not answer, training continues: {fault}"
                print(said, file=sys.stderr, flush=True)
            return False
        if self._away_since is not None:
            away = time.monotonic() - self._away_since
            print(f"tracking store is back after {away:.0f} s", file=sys.stderr, flush=True)
            self._away_since = None
        return True

    def _here(self, last: bool) -> str:
        """Ship in this process; the store's fault, empty if there is none."""
        unwritten = list(self._recorder.spool.unwritten) if last and self._recorder else []
        try:
            self._client = self._client or open_client(self.uri)
            ship(self.folder, self.uri, self._client, unwritten)
        except _FAULTS as error:
            return fault_line(error)
        return ""

    def _there(self) -> str:
        """The same in the separate process. Raises BrokenPipeError if it is gone; it is then not used again."""
        assert self._process is not None
        try:
            return self._process.ship()
        except BrokenPipeError:
            self._alone = True
            raise

    def _aside(self) -> bool:
        """Whether to ship from the separate process; starts it when the run is long enough."""
        if self._process is None and time.monotonic() - self._started >= ASIDE_AFTER_SECONDS:
            try:
                self._process = ShipProcess(self.folder, self.uri)
            except OSError:
                self._alone = True
        return self._process is not None and not self._alone


class FinalUploads:
    """Uploads runs that have ended, one after the other, from this process."""

    def __init__(self, uri: str) -> None:
        self._uri, self._patience, self._hurried = uri, PATIENCE_SECONDS, False

    def hurry_up(self) -> None:
        """The process is ending: stop waiting for the store."""
        self._patience, self._hurried = HURRY_SECONDS, True

    def send(self, recorders: Sequence[Recorder]) -> None:
        """Upload the runs of `recorders`. Prints a message for runs that the store does not accept in time."""
        began, client, left, said = time.monotonic(), None, list(recorders), False
        refused = 0  # failed tries since the last success
        while left:
            late = time.monotonic() - began >= self._patience
            if late and (self._hurried or refused >= len(left)):
                break
            recorder = left.pop(0)
            try:
                client = client or open_client(self._uri)
                ship(recorder.folder, self._uri, client, list(recorder.spool.unwritten))
                refused = 0
            except _FAULTS as error:
                if not said:
                    print(f"tracking store does not answer: {fault_line(error)}", file=sys.stderr, flush=True)
                said, refused = True, refused + 1
                left.append(recorder)  # a run that the store refuses does not block the others
                time.sleep(LOOK_SECONDS)
        for recorder in left:
            print(_not_taken(recorder.folder, recorder), file=sys.stderr, flush=True)


def _not_taken(folder: Path, recorder: Recorder | None) -> str:
    """The message about a run that the store did not accept completely."""
    rest = f"the rest is safe in {folder}, and `cppo sync` uploads it"
    if recorder is not None and recorder.spool.unwritten:
        rest = f"the disk of {folder} has no room for the rest: launch it again"
    return f"tracking store did not accept all of this run: {rest}"


def record_unstarted(spec: RunSpec, tags: Mapping[str, str], folder: Path, uri: str, reason: str) -> None:
    """Record the failure of a run that could not write the beginning of its record."""
    reason = redacted(reason)
    with contextlib.suppress(OSError):
        ended = {"run_id": spec.run_id, "status": schema.FAILED, "reason": reason, "cause": Cause.ERROR}
        write_status(folder, {**read_status(folder), **ended})
    with contextlib.suppress(*_FAULTS):
        client = open_client(uri)
        lines: list[Line] = []
        try:
            there = close_dead(folder, schema.FAILED, reason)
        except OSError:
            there = False
        if not there:
            begin = begin_line(spec, tags, folder, new_record())
            lines = [begin, End(begin.record, schema.FAILED, None, begin.time_ms, reason)]
        ship(folder, uri, client, lines)
