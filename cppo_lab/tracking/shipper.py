"""Shipping a run while it trains: a thread that no step ever waits for."""

import contextlib
import random
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.client import STORE_FAULTS, open_client
from cppo_lab.tracking.recorder import Recorder, begin_line
from cppo_lab.tracking.shipping import ship, unsent
from cppo_lab.tracking.spool import End, new_record

EVERY_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0  # between two tries of a store that is away
# How long the end of a run waits for its points to arrive: they are safe on file, and `cppo sync` sends them.
PATIENCE_SECONDS = 60.0
HURRY_SECONDS = 8.0  # of a run that is being ended: Slurm kills 30 s after its SIGTERM
_FAULTS = (*STORE_FAULTS, UserError)


class Shipper:
    """Ships `folder` to the store at `uri` every EVERY_SECONDS from `start` until it is closed."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.uri = folder, uri
        self.hurry = False  # the process is being ended
        self.recorder: Recorder | None = None  # lines that it could not write are sent at the end
        self._client: MlflowClient | None = None
        self._stop = threading.Event()
        self._away_since: float | None = None
        self._thread = threading.Thread(target=self._work, name="shipper", daemon=True)

    def __enter__(self) -> "Shipper":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is left. A store that stays away is named, and nothing is lost by it."""
        self._stop.set()
        patience = HURRY_SECONDS if self.hurry else PATIENCE_SECONDS
        self._thread.join(patience)
        if self._thread.is_alive() or unsent(self.folder, self.uri):
            print(
                f"tracking store did not take all of this run: the rest is safe in {self.folder}, and `cppo sync` "
                "sends it",
                file=sys.stderr,
                flush=True,
            )

    def _work(self) -> None:
        pause = EVERY_SECONDS
        while not self._stop.wait(pause):
            pause = EVERY_SECONDS if self._try() else self._longer(pause)
        deadline = time.monotonic() + (HURRY_SECONDS if self.hurry else PATIENCE_SECONDS)
        while not self._try(last=True) and time.monotonic() < deadline:
            time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))

    @staticmethod
    def _longer(pause: float) -> float:
        """Twice as long, by chance a little less: a hundred runs must not come back to a server at one moment."""
        return min(LONGEST_PAUSE_SECONDS, 2 * pause) * random.uniform(0.8, 1.0)

    def _try(self, last: bool = False) -> bool:
        """Ship once; False if the store did not take it."""
        unwritten = list(self.recorder.spool.unwritten) if last and self.recorder else []
        try:
            self._client = self._client or open_client(self.uri)
            ship(self.folder, self.uri, self._client, unwritten)
        except _FAULTS as error:
            if self._away_since is None:
                self._away_since = time.monotonic()
                line = " ".join(str(error).split())[:300]
                print(
                    f"tracking store does not answer, training goes on: {line}", file=sys.stderr, flush=True
                )
            return False
        if self._away_since is not None:
            away = time.monotonic() - self._away_since
            print(f"tracking store is back after {away:.0f} s", file=sys.stderr, flush=True)
            self._away_since = None
        return True


def record_unstarted(spec: RunSpec, tags: Mapping[str, str], folder: Path, uri: str, reason: str) -> None:
    """Record a failure of a run that could write nothing into its folder, where else its record would be."""
    begin = begin_line(spec, tags, folder, new_record())
    end = End(begin.record, schema.FAILED, None, begin.time_ms, reason)
    with contextlib.suppress(*_FAULTS):
        ship(folder, uri, open_client(uri), [begin, end])
