"""Which of several attempts at one configuration counts, and in what state it is."""

from collections.abc import Iterable

from cppo_lab import schema
from cppo_lab.tracking.history import StoredRun


def run_id_of(run: StoredRun) -> str:
    """The id of the run's configuration, or MLflow's id if it has none."""
    return run.tags.get(schema.TAG_RUN_ID) or run.mlflow_id


def newest_of_each(found: Iterable[StoredRun]) -> list[StoredRun]:
    """One run per run id, sorted by id: the newest that is a result, or the newest of all if none is."""
    best: dict[str, StoredRun] = {}

    def rank(run: StoredRun) -> tuple[bool, int, str]:
        return (run.status in schema.FINISHED, run.start_ms or 0, run.mlflow_id)

    for run in found:
        key = run_id_of(run)
        if key not in best or rank(run) > rank(best[key]):
            best[key] = run
    return [best[key] for key in sorted(best)]
