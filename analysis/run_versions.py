"""Fingerprints of a run's state, without reading its history."""

import hashlib

from cppo_lab import schema
from cppo_lab.tracking.history import StoredRun

_BESIDE = ("perf/", "system/")
_RESULT_TAGS = (
    *(schema.TAG_RUN_ID, schema.TAG_RULE, schema.TAG_MODEL, schema.TAG_CORE, schema.TAG_SEED),
    *(schema.TAG_T_STOP, schema.TAG_STATUS, schema.TAG_REASON),
)


def is_result(metric: str) -> bool:
    """Whether this metric is part of a run's result: all are, except speed and system metrics."""
    return not metric.startswith(_BESIDE)


def stored_version(run: StoredRun) -> str:
    """A digest of everything that the store has of the run, ids and times included, since a report may show it.

    It also covers histories and diagnostics, without reading them: an unfinished run gets new last points, and a tag
    marks when the artifacts of a finished run are uploaded. A point added later at a step before the last one goes
    unnoticed.
    """
    points = sorted((name, step, time_ms, repr(value)) for name, (step, time_ms, value) in run.latest.items())
    about = (run.mlflow_id, run.name, run.mlflow_status, run.start_ms, run.end_ms, run.artifact_uri)
    tags = sorted(item for item in run.tags.items() if item[0] != schema.TAG_NOTE)
    return _digest((about, tags, sorted(run.params.items()), points))


def result_version(run: StoredRun) -> str:
    """A digest of the run's configuration and result; copies of a run in different stores have the same one."""
    tags = [(name, run.tags.get(name, "")) for name in _RESULT_TAGS]
    points = sorted(
        (name, step, repr(value)) for name, (step, _, value) in run.latest.items() if is_result(name)
    )
    return _digest((tags, sorted(run.params.items()), points))


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()
