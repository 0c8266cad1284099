"""What a run has recorded, brought to the store at once: in tests nothing waits for the thread that does it."""

import threading
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from cppo_lab import schema
from cppo_lab.runs.spool import newest_record
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.upload import ship
from tests.waiting import until


def mlflow_client() -> MlflowClient:
    """Of the store of the working folder."""
    return open_client(tracking_uri())


def sent(folder: Path) -> int:
    """Ship a run's folder to the store of the working folder; the number of points sent."""
    return ship(folder, tracking_uri(), mlflow_client())


def mlflow_runs(
    core: str = "mini", view: int = ViewType.ACTIVE_ONLY, tag: str = schema.TAG_RUN_ID
) -> list[Run]:
    """Those in the store of the working folder that have a tag, the oldest first: runs of training, if not said."""
    client = mlflow_client()
    number = client.get_experiment_by_name(schema.experiment_name(core)).experiment_id
    runs = client.search_runs([number], f"tags.`{tag}` LIKE '%'", view)
    return sorted(runs, key=lambda run: run.info.start_time)


def mlflow_run(folder: Path) -> Run:
    """The MLflow run of the newest record of a run's folder, which is shipped first."""
    sent(folder)
    record = newest_record(folder)
    assert record is not None
    [run] = [run for run in mlflow_runs() if run.data.tags.get(schema.TAG_RECORD) == record.begin.record]
    return run


def ended(run: Run) -> tuple[str | None, ...]:
    """MLflow's status of a run; ours, the step and the reason, as far as it has them."""
    tags = (schema.TAG_STATUS, schema.TAG_STEP, schema.TAG_REASON)
    return (run.info.status, *map(run.data.tags.get, tags))


def history(run: Run, metric: str) -> dict[int, float]:
    """The points of a metric by step, of which each is there once."""
    points = mlflow_client().get_metric_history(run.info.run_id, metric)
    assert len({point.step for point in points}) == len(points)
    return {point.step: point.value for point in points}


def histories() -> dict[str, dict[str, dict[int, float]]]:
    """Every metric of each finished run in the store of the working folder, but for those of the machine."""
    return {
        run.data.tags[schema.TAG_RUN_ID]: {
            name: history(run, name) for name in run.data.metrics if not name.startswith(("perf/", "system/"))
        }
        for run in mlflow_runs()
        if run.info.status == "FINISHED"
    }


def points(folder: Path, metric: str) -> list[tuple[int, float, int]]:
    """(step, value, time) of every point that the store has of a metric, once the folder is shipped."""
    history = mlflow_client().get_metric_history(mlflow_run(folder).info.run_id, metric)
    return [(point.step, point.value, point.timestamp) for point in history]


def upload_ended() -> None:
    """Waits until no thread of this process uploads: one whose store is away may outlive its run by a try."""
    until("it has given up", lambda: "upload" not in {thread.name for thread in threading.enumerate()})
