"""The read-only interface of a store, implemented by `read_only.SqliteReader` and `listing.ClientReader`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cppo_lab import schema


@dataclass(frozen=True)
class StoredRun:
    """A run in the store. `params` are present only if requested.

    `name` is the run name in MLflow; start and end are in ms since 1970 (None: not begun, not ended).
    """

    mlflow_id: str
    artifact_uri: str
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    name: str = ""
    start_ms: int | None = None
    end_ms: int | None = None

    @property
    def status(self) -> str:
        """One of schema.STATUSES."""
        return recorded_status(self.tags)


def recorded_status(tags: Mapping[str, str]) -> str:
    """How a run of ours has ended, one of schema.STATUSES; RUNNING if no end is recorded.

    MLflow's own status says nothing about training: `mlflow.start_run(run_id=...)` sets it to FINISHED when somebody
    adds a note to a run.
    """
    tag = tags.get(schema.TAG_STATUS, "")
    return tag if tag in schema.STATUSES else schema.RUNNING


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
        """The runs of an experiment that have `tag`, newest first; optionally only those with this value, or with this
        prefix of it.

        `params`: include their parameters. `measured`: only runs whose last value of this metric is above 0.
        """

    def history(self, mlflow_id: str, metric: str) -> list[float]:
        """All values of a metric except NaN, ordered by logging time."""
