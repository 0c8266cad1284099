"""Secrets in the environment of a launch, and a search for them in everything that the launch has written."""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

SECRETS = {
    "MLFLOW_TRACKING_PASSWORD": "canary-tracking-password-0001",
    "AWS_ACCESS_KEY_ID": "AKIACANARY0000000002",
    "AWS_SECRET_ACCESS_KEY": "canary-cloud-key-0003",
    "AZURE_STORAGE_ACCESS_KEY": "canary-cloud-key-0004",
    "HF_TOKEN": "hf_canary0005canary0005canary0005cana",
    "MLFLOW_S3_SECRET": "canary-s3-secret-0006",
    "OPTUNA_STORAGE": "postgresql://ada:canary-optuna-0007@127.0.0.1:1/studies",
    "WANDB_API_KEY": "canary0008canary0008canary0008canary0008",
}
TRACKING_PASSWORD = "canary-in-the-address-0009"
WORDS = [
    *(value for name, value in SECRETS.items() if name != "OPTUNA_STORAGE"),
    "canary-optuna-0007",
    TRACKING_PASSWORD,
]


def with_canary(uri: str) -> str:
    """The address of a server, with a user's name and a password that nothing may write."""
    return uri.replace("http://", f"http://admin:{TRACKING_PASSWORD}@")


def found_in(*folders: Path) -> list[str]:
    """Where a canary stands: `file: canary`, by content or by name of every file below the folders."""
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found += [f"{path}: {word}" for word in WORDS if word.encode() in content or word in path.name]
    return found


class ArgumentsOfProcesses:
    """Looks at the arguments of all processes, as `ps` shows them, while it is open; `found` have a canary."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.looks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self.looks += 1
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    arguments = (
                        (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
                except OSError:  # it has ended
                    continue
                if int(process.name) != os.getpid() and any(word in arguments for word in WORDS):
                    self.found.add(arguments)
