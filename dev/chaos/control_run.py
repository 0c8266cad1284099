"""The baseline: the same study in one process on an undisturbed store."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from dev.chaos.pages import read_report
from dev.chaos.records import Store, read_store
from dev.chaos.study import SWEEP, Study, call, command, environment
from dev.errors import DevError
from dev.servers.mlflow_server import MlflowServer

SECONDS = 1800.0  # time limit of training, or of a report


class ControlRun:
    """The control study, trained while the other one is disturbed. A context manager: it starts on entry."""

    def __init__(self, study: Study, folder: Path) -> None:
        self._study, self._folder, self._log = study, folder, folder / "commands.log"

    def __enter__(self) -> "ControlRun":
        self._folder.mkdir(parents=True)
        # A server is needed here too, since reports link to its pages.
        self._server = MlflowServer(self._folder, f"sqlite:///{self._folder}/mlflow.db").start()
        with self._log.open("wb") as output:
            self._training = subprocess.Popen(
                command("launch", *self._study.words, "launcher=inline"),
                cwd=self._folder,
                env=environment(self._server.uri, self._folder / "cache"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._training.pid, signal.SIGKILL)
        self._training.wait()
        self._server.stop()

    def result(self) -> tuple[Store, dict[str, bytes]]:
        """Waits for its end; returns its records in the store and the files of its report.

        Raises DevError if it does not end, or if `cppo report` fails.
        """
        try:
            status = self._training.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise DevError(
                f"the control study takes longer than {SECONDS / 60:.0f} minutes: see {self._log}"
            ) from None
        if status:
            raise DevError(f"the control study ended with status {status}: see {self._log}")
        return read_study(self._study, self._folder, self._server.uri, self._log)


def read_study(study: Study, folder: Path, uri: str, log: Path) -> tuple[Store, dict[str, bytes]]:
    """The records of a study in a store, and the files of its report, which is built in `folder`.

    Raises DevError if `cppo report` fails.
    """
    stored = read_store(uri)
    if status := call(["report", *study.words], folder, environment(uri, folder / "cache"), log, SECONDS):
        raise DevError(f"`cppo report` ended with status {status}: see {log}")
    ids = {one.mlflow_id: run_id for run_id, found in stored.runs.items() for one in found}
    return stored, read_report(folder / "reports" / "build" / SWEEP, ids, uri)
