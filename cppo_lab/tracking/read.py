"""Opens the tracking store for reading, and lists the runs of an experiment, page by page."""

import gc
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab import schema
from cppo_lab.answers import ANSWERS
from cppo_lab.errors import StoreAway, UserError
from cppo_lab.files import redacted
from cppo_lab.tracking import address
from cppo_lab.tracking.client import (
    REMEDY,
    STORE_FAULTS,
    deferred_for,
    fault_line,
    guard,
    open_client,
    require_answer,
    require_health,
)
from cppo_lab.tracking.records import AttemptRecord, StoredRun, attempt_record

PAGE = 1000  # runs per request
SERVER_PAGE = 200  # to a server, which takes seconds for a page
FEW = 10  # runs that are asked for one by one
_PLAIN = re.compile(r"[\w.\-]+")


def open_store(uri: str) -> MlflowClient:
    """A client that reads the store at `uri`. Raises SQLAlchemyError if it is a database server that does not
    answer.
    """
    require_answer(uri)
    guard()
    return MlflowClient(uri)


@contextmanager
def reading(uri: str) -> Iterator[MlflowClient]:
    """A client that reads the store at `uri`. Raises UserError if MLflow fails on the store meanwhile."""
    try:
        yield open_store(uri)
    except (MlflowException, SQLAlchemyError) as error:
        raise _unreadable(uri, error) from error


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


def _unreadable(uri: str, error: Exception) -> UserError:
    """The error to raise when MLflow fails on the store at `uri`."""
    if text := address.outdated(uri):
        return UserError(text)
    reason = address.no_answer(error) or redacted(str(error).splitlines()[0])
    return StoreAway(
        f"tracking store {redacted(uri)} cannot be read ({reason}): check that it is an "
        "MLflow store and that its server is up, or set MLFLOW_TRACKING_URI to the right one"
    )


def search_runs(
    client: MlflowClient,
    experiment_id: str,
    condition: str = "",
    newest_first: bool = False,
    view: int = ViewType.ACTIVE_ONLY,
) -> Iterator[Run]:
    """The runs of an experiment that meet MLflow's filter `condition`, read lazily. `view`: also or only deleted ones.

    Oldest first by default, so that a run that starts meanwhile does not shift others to another page.
    """
    served = str(client.tracking_uri).startswith(("http://", "https://"))
    token = None
    while True:
        with _no_collection():
            page = client.search_runs(
                [experiment_id],
                filter_string=condition,
                run_view_type=view,
                max_results=SERVER_PAGE if served else PAGE,
                order_by=[f"attributes.start_time {'DESC' if newest_first else 'ASC'}"],
                page_token=token,
            )
        yield from page
        token = page.token
        if not token:
            return


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend garbage collection, which takes two thirds of the time in which MLflow makes the objects of a page."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def all_runs(
    client: MlflowClient, experiment_id: str, tag: str | None = None, newest_first: bool = False
) -> Iterator[Run]:
    """The runs of an experiment that have the tag `tag` (None: all of them); see `search_runs`."""
    plain = tag is not None and _PLAIN.fullmatch(tag)  # MLflow's filters cannot quote other names
    condition = f"tags.`{tag}` LIKE '%'" if plain else ""
    runs = search_runs(client, experiment_id, condition, newest_first)
    yield from (run for run in runs if tag is None or tag in run.data.tags)


def experiment_runs(client: MlflowClient, experiment: str, tag: str | None = None) -> Iterator[Run]:
    """The runs of an experiment, given by name, that have `tag` (None: all of them), newest first, read lazily; empty
    if the experiment does not exist.
    """
    found = client.get_experiment_by_name(experiment)
    if found is not None:
        yield from all_runs(client, found.experiment_id, tag, newest_first=True)


def newest_runs(client: MlflowClient, experiment: str, condition: str = "") -> Iterator[Run]:
    """The runs of an experiment, given by name, that meet MLflow's filter `condition`, newest first, read lazily."""
    found = client.get_experiment_by_name(experiment)
    if found is not None:
        yield from search_runs(client, found.experiment_id, condition, newest_first=True)


def stored_run(run: Run) -> StoredRun:
    """An MLflow run without its metrics and parameters."""
    info = run.info
    return StoredRun(
        info.run_id, info.artifact_uri, run.data.tags, info.run_name or "", info.start_time, info.end_time
    )


def attempts(
    client: MlflowClient, experiment: str, run_ids: Collection[str]
) -> dict[str, list[AttemptRecord]]:
    """All attempts at the runs `run_ids`, newest first. Few runs are asked for one by one; for more of them, every run
    of the experiment is read once.
    """
    if len(run_ids) <= FEW:
        return {run_id: attempts_at(client, experiment, run_id) for run_id in run_ids}
    by_run: dict[str, list[AttemptRecord]] = {run_id: [] for run_id in run_ids}
    for run in experiment_runs(client, experiment, schema.TAG_RUN_ID):
        attempt = attempt_record(run.info.run_id, run.data.tags)
        if attempt.run_id in by_run:
            by_run[attempt.run_id].append(attempt)
    return by_run


def attempts_at(client: MlflowClient, experiment: str, run_id: str) -> list[AttemptRecord]:
    """All attempts at one run, newest first."""
    runs = newest_runs(client, experiment, f"tags.`{schema.TAG_RUN_ID}` = '{run_id}'")
    return [attempt_record(run.info.run_id, run.data.tags) for run in runs]


def past_attempts(run_ids: Sequence[str], core: str, uri: str) -> dict[str, list[AttemptRecord]]:
    """All attempts at the runs that the store has, newest first; none if it is a SQLite file that does not exist.

    Raises UserError if it cannot be read, StoreAway if it does not answer within seconds.
    """
    if not run_ids or ((database := address.sqlite_file(uri)) is not None and not database.is_file()):
        return {run_id: [] for run_id in run_ids}
    try:
        require_health(uri)
        return attempts(open_client(uri), schema.experiment_name(core), run_ids)
    except STORE_FAULTS as error:
        raise StoreAway(
            f"tracking store {redacted(uri)} cannot be read: {fault_line(error)}: {REMEDY}"
        ) from None


def known_attempts(uri: str, experiment: str, run_id: str) -> list[AttemptRecord] | None:
    """All attempts at one run, newest first; None if the store does not answer, which is reported on standard error."""
    found = known_attempts_of(uri, experiment, [run_id])
    return None if found is None else found[run_id]


def known_attempts_of(
    uri: str, experiment: str, run_ids: Sequence[str]
) -> dict[str, list[AttemptRecord]] | None:
    """All attempts at several runs, by run id; see `known_attempts`."""
    try:
        require_health(uri)
        with deferred_for(uri):
            return attempts(open_client(uri), experiment, run_ids)
    except (*STORE_FAULTS, UserError) as error:
        said = f"tracking store does not answer, using the run's folder: {fault_line(error)}"
        print(said, file=sys.stderr, flush=True)
        return None


def mark_interrupted(client: MlflowClient, mlflow_id: str, reason: str, step: int | None = None) -> None:
    """Record that an attempt was ended from outside after `step`; `reason` is one line.

    For runs without a spool in their folder; for all others the spool records how they ended.
    """
    client.set_tag(mlflow_id, schema.TAG_REASON, reason[:500])
    if step is not None:
        client.set_tag(mlflow_id, schema.TAG_STEP, str(step))
    client.set_terminated(mlflow_id, "KILLED")
    client.set_tag(mlflow_id, schema.TAG_STATUS, schema.PARTIAL)  # last: it says that the rest is done


class StoredFiles:
    """Implements `answers.reading.AnswerFiles` for the MLflow run `mlflow_id`."""

    def __init__(self, client: MlflowClient, mlflow_id: str) -> None:
        self.client, self.mlflow_id = client, mlflow_id

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Bytes of each file, by its path."""
        try:
            entries = self.client.list_artifacts(self.mlflow_id, ANSWERS)
        except STORE_FAULTS as error:
            raise self._unreadable(error) from None
        return {one.path: one.file_size or 0 for one in entries if not one.is_dir}

    def names(self) -> list[str]:
        return sorted(path.removeprefix(f"{ANSWERS}/") for path in self._sizes)

    def content(self, name: str, largest: int) -> bytes | None:
        if name not in self._sizes:
            return None
        if self._sizes[name] > largest:  # an oversized file is not downloaded at all
            raise UserError(
                f"{self.what(name)} has {self._sizes[name]} bytes, more than the {largest} allowed: delete that "
                "artifact"
            )
        try:
            with tempfile.TemporaryDirectory(prefix="cppo-") as target:
                local = Path(self.client.download_artifacts(self.mlflow_id, name, target))
                with local.open("rb") as file:
                    return file.read(largest + 1)
        except STORE_FAULTS as error:
            raise self._unreadable(error) from None

    def what(self, name: str) -> str:
        return f"{name} of MLflow run {self.mlflow_id}"

    def _unreadable(self, error: Exception) -> StoreAway:
        return StoreAway(
            f"the artifacts of MLflow run {self.mlflow_id} cannot be read: {fault_line(error)}: {REMEDY}"
        )


def stored_files(uri: str, experiment: str, run_id: str) -> StoredFiles | None:
    """The files of the newest finished attempt at a run, or else of the newest attempt; None if the store has no
    attempt.

    Raises UserError if the store does not answer.
    """
    past = known_attempts(uri, experiment, run_id)
    if past is None:
        raise StoreAway(f"tracking store {redacted(uri)} does not answer: {REMEDY}")
    chosen = [one for one in past if one.is_result] or past
    return StoredFiles(open_client(uri), chosen[0].mlflow_id) if chosen else None
