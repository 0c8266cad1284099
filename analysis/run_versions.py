"""Fingerprints of a run's state, without reading its history."""

import hashlib

from mlflow.entities import Run

from cppo_lab import schema

_BESIDE = ("perf/", "system/")
_RESULT_TAGS = (
    *(schema.TAG_RUN_ID, schema.TAG_RULE, schema.TAG_MODEL, schema.TAG_CORE, schema.TAG_SEED),
    *(schema.TAG_T_STOP, schema.TAG_STATUS, schema.TAG_REASON),
)


def is_result(metric: str) -> bool:
    """Whether this metric is part of a run's result: all are, except speed and system metrics."""
    return not metric.startswith(_BESIDE)


def stored_version(run: Run) -> str:
    """A digest of everything that the store has of the run, ids and times included, since a report may show it.

    It also covers histories and diagnostics, without reading them: an unfinished run gets new last points, and a tag
    marks when the artifacts of a finished run are uploaded. A point added later at a step before the last one goes
    unnoticed.
    """
    info = run.info
    points = sorted(
        (one.key, one.step, one.timestamp, repr(one.value)) for one in run.data.to_proto().metrics
    )
    about = (info.run_id, info.run_name, info.status, info.start_time, info.end_time, info.artifact_uri)
    tags = sorted(item for item in run.data.tags.items() if item[0] != schema.TAG_NOTE)
    return _digest((about, tags, sorted(run.data.params.items()), points))


def result_version(run: Run) -> str:
    """A digest of the run's configuration and result; copies of a run in different stores have the same one."""
    tags = [(name, run.data.tags.get(name, "")) for name in _RESULT_TAGS]
    points = sorted(
        (one.key, one.step, repr(one.value)) for one in run.data.to_proto().metrics if is_result(one.key)
    )
    return _digest((tags, sorted(run.data.params.items()), points))


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()
