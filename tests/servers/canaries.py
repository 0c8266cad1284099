"""Secrets in the environment of a launch, and a search for them in everything that the launch has written."""

import contextlib
import os
import threading
from pathlib import Path
from typing import Self

import psutil

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
    return [
        f"{path}: {word}"
        for folder in folders
        for path in folder.rglob("*")
        for content in [path.read_bytes() if path.is_file() and not path.is_symlink() else b""]
        for word in WORDS
        if word.encode() in content or word in path.name
    ]


class ArgumentsOfProcesses(contextlib.ExitStack):
    """Looks at the arguments of all processes, as `ps` shows them, while it is open; `found` have a canary."""

    def __enter__(self) -> Self:
        self.found: set[str] = set()
        self.looks, ended = 0, threading.Event()
        thread = threading.Thread(target=self._look, args=(ended,))
        thread.start()
        self.callback(thread.join)
        self.callback(ended.set)
        return self

    def _look(self, ended: threading.Event) -> None:
        while not ended.wait(0.05):
            self.looks += 1
            for process in psutil.process_iter(["pid", "cmdline"]):
                arguments = " ".join(process.info["cmdline"] or ())
                if process.info["pid"] != os.getpid() and any(word in arguments for word in WORDS):
                    self.found.add(arguments)
