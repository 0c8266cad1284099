"""An MLflow server that is forked from a process which has imported MLflow already: back at once after a kill.

What it runs is what `mlflow server` runs, with the same environment: uvicorn with MLflow's application.
"""

from pathlib import Path

from dev.servers.group import free_port
from dev.servers.mlflow_server import QUIET, answers
from tests.servers.forked import Forked
from tests.waiting import until


def serve(port: int) -> None:
    """In a process of its own."""
    import uvicorn
    from mlflow.server import _build_uvicorn_command

    command = _build_uvicorn_command(None, "127.0.0.1", port, 1, "mlflow.server.fastapi_app:app")
    uvicorn.main(command[command.index("uvicorn") + 1 :])


class ForkedServer:
    """One server over the SQLite file `folder`/mlflow.db, always on the same port; artifacts go through it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._process: Forked | None = None

    @property
    def uri(self) -> str:
        """The tracking URI."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "ForkedServer":
        """Starts or restarts it, and waits until it answers."""
        self._process = process = Forked(
            serve,
            self.port,
            log=self.folder / "server.log",
            folder=self.folder,
            environment={
                **QUIET,
                # As `mlflow server` sets them for its workers.
                "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{self.folder}/mlflow.db",
                "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
                "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
                "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(self.folder / "artifacts"),
                "_MLFLOW_SGI_NAME": "uvicorn",
            },
        )

        def ready() -> bool:
            assert process.alive(), (self.folder / "server.log").read_text()
            return answers(self.uri)

        until("the server answers", ready)
        return self

    def kill(self) -> None:
        """SIGKILL: connections are refused."""
        if self._process is not None:
            self._process.close()
