"""The attempts at a run in the store."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cppo_lab import schema
from cppo_lab.store.reader import Reader, recorded_status


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


def attempts(reader: Reader, experiment: str, run_ids: Iterable[str]) -> dict[str, list[AttemptRecord]]:
    """All attempts at the runs `run_ids`, newest first. Reads every run of the experiment once."""
    wanted: dict[str, list[AttemptRecord]] = {run_id: [] for run_id in run_ids}
    for run in reader.runs(experiment, schema.TAG_RUN_ID):
        one = attempt_record(run.mlflow_id, run.tags)
        if one.run_id in wanted:
            wanted[one.run_id].append(one)
    return wanted


def attempts_at(reader: Reader, experiment: str, run_id: str) -> list[AttemptRecord]:
    """All attempts at one run, newest first."""
    found = reader.runs(experiment, schema.TAG_RUN_ID, run_id)
    return [attempt_record(run.mlflow_id, run.tags) for run in found]


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
