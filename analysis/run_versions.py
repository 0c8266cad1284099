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
    """Whether reports are about this metric: all but how fast a run was and what its machine did."""
    return not metric.startswith(_BESIDE)


def stored_version(run: Run) -> str:
    """Changes with everything that the store says of the run, ids and times included: a report may show it.

    Histories and diagnostics count too, though they are not looked at: a run that goes on has other last points, and
    a tag says when the artifacts of one that has ended are there. A point that somebody puts behind the last one later
    goes unseen.
    """
    info = run.info
    points = sorted(
        (one.key, one.step, one.timestamp, repr(one.value)) for one in run.data.to_proto().metrics
    )
    about = (info.run_id, info.run_name, info.status, info.start_time, info.end_time, info.artifact_uri)
    tags = sorted(item for item in run.data.tags.items() if item[0] != schema.TAG_NOTE)
    return _digest((about, tags, sorted(run.data.params.items()), points))


def result_version(run: Run) -> str:
    """Changes with the configuration and the result of the run: equal for copies of it in different stores."""
    tags = [(name, run.data.tags.get(name, "")) for name in _RESULT_TAGS]
    points = sorted(
        (one.key, one.step, repr(one.value)) for one in run.data.to_proto().metrics if is_result(one.key)
    )
    return _digest((tags, sorted(run.data.params.items()), points))


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()
