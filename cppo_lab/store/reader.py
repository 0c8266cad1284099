"""The read-only interface of a store, implemented by: `read_only.SqliteReader` or `listing.ClientReader`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class StoredRun:
    """A run as the store has it. `status` is MLflow's word; `params` are there if they were asked for.

    `name` is the one in MLflow's page; start and end are in ms since 1970 (None: not begun, not ended).
    """

    mlflow_id: str
    status: str
    artifact_uri: str
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    name: str = ""
    start_ms: int | None = None
    end_ms: int | None = None


class Reader(Protocol):
    """The queries of read-only commands."""

    def runs(
        self,
        experiment: str,
        tag: str,
        value: str = "",
        *,
        beginning: str = "",
        params: bool = False,
        measured: str = "",
    ) -> Iterator[StoredRun]:
        """The runs of an experiment that have `tag`, newest first; only those with this value, or this beginning of it.

        `params`: with their parameters. `measured`: those alone whose last value of this metric is above 0.
        """

    def history(self, mlflow_id: str, metric: str) -> list[float]:
        """All values of a metric but NaN, by the time at which they were logged."""
