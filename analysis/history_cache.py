"""Histories already fetched from a store, cached on this machine so that an unchanged run is not fetched again.

Each run of a store has one `history.npz` under `cppo-lab/histories/` of the cache (see `cppo_lab.file_cache`).
"""

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

from cppo_lab.errors import UserError
from cppo_lab.file_cache import FileCache
from cppo_lab.store.history import LARGEST, History, unpack

FOLDER = Path("cppo-lab/histories")
MOST_BYTES = (
    4 * 2**30
)  # of all stores together: about ten thousand runs of sixty metrics over a thousand steps


class HistoryCache:
    """The cache of one store. It is safe to use from several processes and threads at once."""

    def __init__(self, uri: str) -> None:
        self._files = FileCache(FOLDER)
        self._folder = Path(hashlib.sha256(_place(uri).encode()).hexdigest()[:16])

    def get(self, mlflow_id: str, version: str) -> History | None:
        """The cached history of this version of the run; None if there is none. It may lack metrics."""
        name = self._name(mlflow_id)
        content = None if name is None else self._files.get(name, version, LARGEST)
        try:
            return None if content is None else unpack(content, f"the kept history of MLflow run {mlflow_id}")
        except UserError:
            return None

    def put(self, mlflow_id: str, version: str, packed: bytes) -> None:
        """Replace the run's cached history by this packed one."""
        name = self._name(mlflow_id)
        if name is not None:
            self._files.put(name, version, packed)

    def prune(self) -> None:
        """Delete the least recently used files of all stores if the cache exceeds MOST_BYTES."""
        self._files.prune(MOST_BYTES)

    def _name(self, mlflow_id: str) -> Path | None:
        """The file of a run; None if its id is not a valid file name."""
        return self._folder / f"{mlflow_id}.history" if mlflow_id.isalnum() else None


def _place(uri: str) -> str:
    """The store's URI without user name and password."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
