"""Which runs an experiment of the tracking store has, newest first."""

from collections.abc import Iterator

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from cppo_lab.store import address
from cppo_lab.store.database import database_runs, is_database

PAGE = 500  # runs per request


def experiment_runs(
    client: MlflowClient, experiment: str, tag: str | None = None, tags_alone: bool = False
) -> Iterator[Run]:
    """The runs of an experiment that have `tag` (None: all of them), newest first, read as they are asked for.

    `tags_alone`: their parameters and metrics are of no interest, and may not be there.
    """
    uri, found = str(client.tracking_uri), client.get_experiment_by_name(experiment)
    if found is None:
        return iter(())
    if is_database(uri):
        return database_runs(uri, found.experiment_id, tag, newest_first=True, tags_alone=tags_alone)
    return newest_runs(client, experiment, "" if tag is None else f"tags.`{tag}` LIKE '%'")


def newest_runs(
    client: MlflowClient, experiment: str, condition: str = "", page: int = PAGE
) -> Iterator[Run]:
    """The runs of an experiment that meet MLflow's filter `condition`, newest first, read as they are asked for."""
    found = client.get_experiment_by_name(experiment)
    token = None
    while found is not None:
        with address.no_collection():
            runs = client.search_runs(
                [found.experiment_id],
                filter_string=condition,
                run_view_type=ViewType.ACTIVE_ONLY,
                order_by=["attributes.start_time DESC"],
                max_results=page,
                page_token=token,
            )
        yield from runs
        token = runs.token
        if not token:
            return
