"""A real `mlflow server`, started like its command line does, that can be killed, restarted and paused."""

import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from dev.ceiling import CEILING_SECONDS
from dev.errors import DevError
from dev.servers.group import Group, free_port

QUIET = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # no workers for evaluations
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}


class MlflowServer:
    """One server, always on the same port. `store` is its database; artifacts go through it."""

    def __init__(self, folder: Path, store: str, workers: int = 1) -> None:
        self.folder, self.log = folder, folder / "mlflow_server.log"
        self._store, self._workers, self.port = store, workers, free_port()
        self._group: Group | None = None

    @property
    def uri(self) -> str:
        """The tracking URI."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "MlflowServer":
        """Starts or restarts it, and waits until it answers.

        Raises:
            DevError: It does not.
        """
        command = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={self.port}",
                   f"--workers={self._workers}", f"--artifacts-destination={self.folder / 'artifacts'}"]  # fmt: skip
        # Pass the URI by the environment, since everybody can read a password on a command line.
        env = {**os.environ, **QUIET, "MLFLOW_BACKEND_STORE_URI": self._store}
        env.pop("MLFLOW_TRACKING_URI", None)
        self._group = Group(command, self.log, env, self.folder)
        deadline = time.monotonic() + CEILING_SECONDS
        while not self.answers():
            if not self._group.alive() or time.monotonic() > deadline:
                self._group.kill()
                raise DevError(f"mlflow server does not come up: see {self.log}")
            time.sleep(0.1)
        return self

    def answers(self) -> bool:
        """Whether it answers within two seconds."""
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    @property
    def group(self) -> Group:
        """Its processes.

        Raises:
            DevError: It was never started.
        """
        if self._group is None:
            raise DevError("this server was not started")
        return self._group

    def pause(self) -> None:
        """Pause it: the kernel still accepts connections, but nothing answers."""
        self.group.pause()

    def resume(self) -> None:
        """Resume it where it was."""
        self.group.resume()

    def kill(self) -> None:
        """SIGKILL for all its processes: connections are refused."""
        self.group.kill()

    def stop(self) -> None:
        """Shuts it down cleanly."""
        if self._group is not None:
            self._group.stop()
