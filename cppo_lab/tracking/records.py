"""A run in the store."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cppo_lab import schema


@dataclass(frozen=True)
class StoredRun:
    """A run in the store.

    `name` is the run name in MLflow; start and end are in ms since 1970 (None: not begun, not ended). `mlflow_status`
    is MLflow's own, which says nothing about training. `latest`: metric -> step, time in ms and value of its last
    point, as MLflow's database has it (infinity as the largest number).
    """

    mlflow_id: str
    artifact_uri: str
    tags: dict[str, str]
    name: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    experiment_id: str = ""
    mlflow_status: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    latest: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """One of schema.STATUSES."""
        return recorded_status(self.tags)

    @property
    def is_result(self) -> bool:
        """Whether nothing is left to train."""
        return self.status in schema.FINISHED


def recorded_status(tags: Mapping[str, str]) -> str:
    """How a run of ours has ended, one of schema.STATUSES; RUNNING if no end is recorded.

    MLflow's own status says nothing about training: `mlflow.start_run(run_id=...)` sets it to FINISHED when somebody
    adds a note to a run.
    """
    tag = tags.get(schema.TAG_STATUS, "")
    return tag if tag in schema.STATUSES else schema.RUNNING
