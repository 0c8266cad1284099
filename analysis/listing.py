"""Opening the tracking store for reading, and listing the runs of an experiment."""

from collections.abc import Iterator

from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient

from cppo_lab import schema
from cppo_lab.errors import StoreAway, UserError
from cppo_lab.redaction import redacted
from cppo_lab.store import address
from cppo_lab.store.database import experiment_runs, require_answer

PAGE = 200  # runs per request; a server takes seconds for a page


def open_store(uri: str) -> MlflowClient:
    """A client that reads the store at `uri`. Raises SQLAlchemyError if it is a database server that does not
    answer.
    """
    require_answer(uri)
    return MlflowClient(uri)


def experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """The id of the experiment `name`. Raises UserError if there is none, or if it was deleted."""
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "active":
        return found.experiment_id
    if found is not None:
        raise UserError(
            f"experiment {name!r} of {redacted(uri)} was deleted: restore it with "
            f"`mlflow experiments restore --experiment-id {found.experiment_id}`"
        )
    known = sorted(entry.name for entry in client.search_experiments(view_type=ViewType.ACTIVE_ONLY))
    remedy = "cppo reference import" if name == schema.experiment_name(schema.PAPER) else "cppo launch SWEEP"
    raise UserError(
        f"experiment {name!r} does not exist in {redacted(uri)}: it has {', '.join(known) or 'none'}; "
        f"run `{remedy}` first, or set MLFLOW_TRACKING_URI to the store that holds it"
    )


def all_runs(client: MlflowClient, experiment_id: str, tag: str | None = None) -> Iterator[Run]:
    """The runs of an experiment that have the tag `tag` (None: all of them), oldest first."""
    return experiment_runs(client, experiment_id, tag, page=PAGE)


def unreadable(uri: str, error: Exception) -> UserError:
    """The error to raise when MLflow fails on the store at `uri`."""
    if text := address.outdated(uri):
        return UserError(text)
    reason = address.no_answer(error) or redacted(str(error).splitlines()[0])
    return StoreAway(
        f"tracking store {redacted(uri)} cannot be read ({reason}): check that it is an "
        "MLflow store and that its server is up, or set MLFLOW_TRACKING_URI to the right one"
    )
