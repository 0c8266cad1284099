"""What commands that only read ask of a store, whoever answers: `read_only.SqliteReader` or `listing.ClientReader`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class StoredRun:
    """A run as the store has it. `status` is MLflow's word; `params` are there if they were asked for."""

    mlflow_id: str
    status: str
    artifact_uri: str
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)


class Reader(Protocol):
    """What commands that only read ask a store."""

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
