"""The version of a run's result, without reading its history."""

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


def result_version(run: StoredRun) -> str:
    """A digest of the run's configuration and result; copies of a run in different stores have the same one."""
    tags = [(name, run.tags.get(name, "")) for name in _RESULT_TAGS]
    points = sorted(
        (name, step, repr(value)) for name, (step, _, value) in run.latest.items() if is_result(name)
    )
    return _digest((tags, sorted(run.params.items()), points))


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()
