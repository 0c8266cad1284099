"""A run in the store, and an attempt at a run of ours."""

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


def recorded_status(tags: Mapping[str, str]) -> str:
    """How a run of ours has ended, one of schema.STATUSES; RUNNING if no end is recorded.

    MLflow's own status says nothing about training: `mlflow.start_run(run_id=...)` sets it to FINISHED when somebody
    adds a note to a run.
    """
    tag = tags.get(schema.TAG_STATUS, "")
    return tag if tag in schema.STATUSES else schema.RUNNING


@dataclass(frozen=True)
class AttemptRecord:
    """One MLflow run: one attempt at training `run_id`."""

    mlflow_id: str
    run_id: str
    status: str  # one of schema.STATUSES
    code_version: str
    reason: str
    folder: str
    sweeps: frozenset[str]
    record: str = ""  # id of the spool it was uploaded from
    step: int | None = None  # the last recorded step, of an attempt that was interrupted or failed
    t_stop: int | None = None
    replaces: frozenset[str] = frozenset()  # MLflow ids of the results that it replaces
    parent: str = ""  # MLflow id of the sweep or trial that it is nested under

    @property
    def is_result(self) -> bool:
        """Whether nothing is left to train."""
        return self.status in schema.FINISHED


def attempt_record(mlflow_id: str, tags: Mapping[str, str]) -> AttemptRecord:
    """The attempt described by the tags of an MLflow run."""
    return AttemptRecord(
        mlflow_id=mlflow_id,
        run_id=tags.get(schema.TAG_RUN_ID, ""),
        status=recorded_status(tags),
        code_version=tags.get(schema.TAG_CODE_VERSION, ""),
        reason=tags.get(schema.TAG_REASON, ""),
        folder=tags.get(schema.TAG_FOLDER, ""),
        record=tags.get(schema.TAG_RECORD, ""),
        sweeps=frozenset(key for key in tags if key.startswith(schema.TAG_SWEEP_PREFIX)),
        step=_integer(tags.get(schema.TAG_STEP)),
        t_stop=_integer(tags.get(schema.TAG_T_STOP)),
        replaces=frozenset(tags.get(schema.TAG_REPLACES, "").split()),
        parent=tags.get(schema.TAG_PARENT, ""),
    )


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
