"""Uploads a run's spool to MLflow. All data of training runs get into MLflow this way.

Uploads are idempotent, whatever is killed, restarted or repeated: before the MLflow run of a record is created, it is
looked up by its token; points carry the times at which they were measured, so that MLflow recognises one that is sent
twice. Files are uploaded after a run's end, since they may be in a separate store, followed by the tag TAG_FILES.
`shipped.json` records how much of the spool a store has.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.runs.events import Artifact, Begin, End, Line, StepEvent, Tags
from cppo_lab.runs.offsets import ShippedRecord, load_shipped, save_shipped
from cppo_lab.runs.spool import FOLDER, files, is_damaged, newest_record, place_in, read_lines
from cppo_lab.safe_open import open_lock
from cppo_lab.store import address
from cppo_lab.store.client import ensure_experiment
from cppo_lab.store.records import recorded_status
from cppo_lab.tracking.artifacts import Artifacts
from cppo_lab.tracking.datasets import log_datasets
from cppo_lab.tracking.naming import merged
from cppo_lab.tracking.replace import retire

BATCH = 1000  # MLflow's limit on metrics per request
PARAMS, TAGS = 100, 100  # and on these
# MLflow's error codes for a deleted run.
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST"})
_MLFLOW_STATUS = {schema.FAILED: "FAILED", schema.PARTIAL: "KILLED"}  # all others: FINISHED


def ship(folder: Path, uri: str, client: MlflowClient, unwritten: Sequence[Line] = ()) -> int:
    """Upload the lines of the run in `folder` that the store at `uri` lacks; returns the number of points sent.

    `unwritten` are lines that a full disk kept out of the spool. Several processes may ship the same folder; a lock
    lets one at a time do so. Raises what MLflow raises if the store does not answer or refuses.
    """
    if not files(folder) and not unwritten:
        return 0
    with _only_one(folder):
        shipment = _Shipment(folder, uri, client, _safe_to_send(unwritten))
        try:
            return shipment.send()
        except MlflowException as error:
            if error.error_code not in _REFUSALS or not shipment.forget_deleted():
                raise
        return _Shipment(folder, uri, client, _safe_to_send(unwritten)).send()


def _safe_to_send(unwritten: Sequence[Line]) -> Sequence[Line]:
    """The lines that may be uploaded although no file has them.

    A resumed run trains steps that are in no file again, and would record them twice. So steps are sent only if the run
    has finished.
    """
    last = unwritten[-1] if unwritten else None
    if isinstance(last, End) and last.status in schema.FINISHED:
        return unwritten
    return [line for line in unwritten if not isinstance(line, StepEvent)]


class _Shipment:
    """One upload."""

    def __init__(self, folder: Path, uri: str, client: MlflowClient, unwritten: Sequence[Line]) -> None:
        self.folder, self.uri, self.client, self.unwritten = folder, uri, client, unwritten
        self.state = load_shipped(folder, uri)
        self.token = ""  # of the record whose lines are being read
        self.points: list[Metric] = []
        self.sent = 0
        self.times: dict[str, dict[int, int]] = {}  # in the store, by metric and step: see _is_in_store

    @property
    def record(self) -> ShippedRecord:
        return self.state.records.setdefault(self.token, ShippedRecord())

    def send(self) -> int:
        for path in files(self.folder):
            self._send_file(path)
        if self.unwritten and (newest := newest_record(self.folder)) is not None:
            self.token = newest.begin.record  # needed if the files had nothing to send
        for line in self.unwritten:
            self._take(line)
        self._flush()
        # Last, since files can be in a separate store and may fail where points succeed.
        for token, record in self.state.records.items():
            self._artifacts(token, record)
        return self.sent

    def forget_deleted(self) -> bool:
        """Whether a user has deleted the MLflow run of the record that was being sent.

        If it is the newest record, training continues and everything is uploaded again; any other record stays deleted.
        """
        if not self.token or self._active(self.record.mlflow_id) is not None:
            return False
        newest = newest_record(self.folder)
        if newest is not None and newest.begin.record == self.token:
            self.state.records[self.token] = ShippedRecord()
            self._create(newest.begin)
            for path in files(self.folder):
                if _owner(path) == self.token:
                    self.state.offsets.pop(path.name, None)
        else:
            self.record.deleted = True
        save_shipped(self.folder, self.uri, self.state)
        return True

    def _active(self, mlflow_id: str) -> Run | None:
        """The MLflow run; None if it is deleted."""
        try:
            run = self.client.get_run(mlflow_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def _is_unfinished(self, token: str) -> bool:
        newest = newest_record(self.folder)
        if newest is None or newest.begin.record != token:
            return False
        return newest.end is None or newest.end.status not in schema.FINISHED

    def _send_file(self, path: Path) -> None:
        offset = self.state.offsets.get(path.name, 0)
        if not path.is_file() or path.stat().st_size == offset:
            return
        offset = place_in(path, offset)
        # Sync first: if the machine crashed and lost an uploaded step, the step would get a second, later point.
        with path.open("rb") as file:
            safe = os.fstat(file.fileno()).st_size
            os.fsync(file.fileno())
        self.token = _owner(path)
        self.times = {}
        for line, end in read_lines(path, offset):
            if end > safe:
                break
            self._take(line)
            offset = end
            if not self.points:
                self._reached(path, offset)
        self._flush()
        self._reached(path, offset)

    def _reached(self, path: Path, offset: int) -> None:
        self.state.offsets[path.name] = offset
        save_shipped(self.folder, self.uri, self.state)

    def _take(self, line: Line) -> None:
        if isinstance(line, Begin):
            self.token = line.record
            if not self.record.deleted:
                self._begin(line)
        elif self.record.deleted or not self.record.mlflow_id:
            return  # lines of ours follow a `begin` line
        elif isinstance(line, StepEvent):
            if self.record.doubtful and self._is_in_store(line):
                return
            self.points += [
                Metric(name, value, line.time_ms, line.step) for name, value in line.metrics.items()
            ]
            if len(self.points) >= BATCH:
                self._flush()
        elif isinstance(line, Artifact):
            if line.path not in self.record.pending:
                self.record.pending.append(line.path)
        elif isinstance(line, Tags):
            self._tags(line.tags)
        else:
            self._flush()
            self._end(line)

    def _is_in_store(self, line: StepEvent) -> bool:
        """Whether the store already has the step, from a line that was damaged after its upload.

        The run could not see that the step was recorded and trained it again; the first record of a step is kept.
        """
        name = next((name for name in line.metrics if not name.startswith("system/")), "")
        if name and name not in self.times:
            history = self.client.get_metric_history(self.record.mlflow_id, name)
            self.times[name] = {point.step: point.timestamp for point in history}
        return self.times.get(name, {}).get(line.step, line.time_ms) != line.time_ms

    def _flush(self) -> None:
        while self.points:
            batch = self.points[:BATCH]
            self.client.log_batch(self.record.mlflow_id, metrics=batch)
            del self.points[:BATCH]
            self.sent += len(batch)

    def _begin(self, line: Begin) -> None:
        """Create the record's MLflow run if needed, and set it to RUNNING."""
        if not self.record.mlflow_id and not self._find(line):
            self._create(line)
        if self.record.deleted:
            return
        mlflow_id = self.record.mlflow_id
        self.record.ended = False
        self.record.doubtful = any(
            _owner(path) == line.record and is_damaged(path) for path in files(self.folder)[:-1]
        )
        run = self.client.get_run(mlflow_id)
        self._remove_others(run)
        tags = {**merged(run.data.tags, line.tags), schema.TAG_STATUS: schema.RUNNING}
        if recorded_status(run.data.tags) in schema.FINISHED:
            del tags[schema.TAG_STATUS]  # it is not resumed, and only the store may have its end
            if (
                schema.TAG_REPLACED in run.data.tags
            ):  # a result that a user has restored is not replaced again
                tags.pop(schema.TAG_REPLACES, None)
        else:
            self.client.update_run(mlflow_id, status="RUNNING")
            for key in sorted({schema.TAG_REASON, schema.TAG_STEP, schema.TAG_FILES} & run.data.tags.keys()):
                self.client.delete_tag(mlflow_id, key)
        params = [Param(key, value) for key, value in line.params.items()]
        for start in range(0, len(params), PARAMS):
            self.client.log_batch(mlflow_id, params=params[start : start + PARAMS])
        self._tags(tags)
        log_datasets(self.client, mlflow_id, [schema.Dataset(**one) for one in line.datasets])

    def _tags(self, tags: Mapping[str, str]) -> None:
        entities = [RunTag(key, value) for key, value in tags.items()]
        for start in range(0, len(entities), TAGS):
            self.client.log_batch(self.record.mlflow_id, tags=entities[start : start + TAGS])

    def _find(self, line: Begin) -> bool:
        """Whether the store has the record from an earlier try whose response, or our record of it, was lost."""
        experiment = self.client.get_experiment_by_name(line.experiment)
        if experiment is None:
            return False
        found = self._of_record(experiment.experiment_id)
        active = [run for run in found if run.info.lifecycle_stage == "active"]
        if active:
            self.record.mlflow_id = active[0].info.run_id
        self.record.deleted = bool(found) and not active and not self._is_unfinished(line.record)
        return bool(active) or self.record.deleted

    def _of_record(self, experiment_id: str) -> list[Run]:
        """The MLflow runs of the record whose lines are being read: several if a request was sent twice."""
        return list(
            self.client.search_runs(
                [experiment_id],
                filter_string=f"tags.`{schema.TAG_RECORD}` = '{_plain(self.token)}'",
                run_view_type=ViewType.ALL,
                order_by=["attributes.start_time ASC"],
            )
        )

    def _remove_others(self, ours: Run) -> None:
        """Delete runs of the record beside `ours`.

        A request whose response is lost is retried, also by MLflow's client; a server that hung may still carry it out.
        """
        if address.sqlite_file(self.uri) is not None:  # a SQLite file has no retries
            return
        for run in self._of_record(ours.info.experiment_id):
            if run.info.run_id != ours.info.run_id and run.info.lifecycle_stage == "active":
                self.client.set_terminated(run.info.run_id, "KILLED")
                self.client.delete_run(run.info.run_id)

    def _create(self, line: Begin) -> None:
        experiment = ensure_experiment(self.client, self.uri, line.experiment)
        tags = {**line.tags, schema.TAG_RECORD: _plain(line.record)}
        run = self.client.create_run(experiment, start_time=line.time_ms, tags=tags, run_name=line.name)
        self.record.mlflow_id = run.info.run_id

    def _end(self, line: End) -> None:
        run = self.client.get_run(self.record.mlflow_id)
        self._remove_others(run)
        if recorded_status(run.data.tags) in schema.FINISHED and line.status not in schema.FINISHED:
            return  # the end of an earlier attempt, sent twice
        tags = {schema.TAG_STATUS: line.status}
        if line.reason:
            tags[schema.TAG_REASON] = line.reason[:500]
        if line.step is not None and line.status not in schema.FINISHED:
            tags[schema.TAG_STEP] = str(line.step)
        self._tags(tags)
        status = _MLFLOW_STATUS.get(line.status, "FINISHED")
        self.client.set_terminated(self.record.mlflow_id, status, line.time_ms)
        # Do not upload the history again when an end is sent twice: the store's copy may hold steps that a full disk
        # kept out of the files here.
        self.record.ended = run.data.tags.get(schema.TAG_FILES) != "complete"
        if line.status in schema.FINISHED and schema.TAG_REPLACES in run.data.tags:
            retire(self.client, self.record.mlflow_id)

    def _artifacts(self, token: str, record: ShippedRecord) -> None:
        if not record.mlflow_id or not (record.pending or record.ended):
            return
        run = self._active(record.mlflow_id)
        if record.ended and run is None:  # deleted since its end
            record.pending, record.ended = [], False
            save_shipped(self.folder, self.uri, self.state)
            return
        lines = cache(partial(self._lines, token))
        store = Artifacts(self.client, record.mlflow_id, self.folder, lines)
        tags = run.data.tags if run is not None else {}
        if recorded_status(tags) in schema.FINISHED and tags.get(schema.TAG_FILES) == "complete":
            # Sent twice, since a full disk lost the progress of the upload; the files here may be older, too.
            missing = store.missing()
            record.pending = [name for name in record.pending if name in missing]
        while record.pending:
            store.upload(record.pending[0])
            del record.pending[0]
        if record.ended:
            for name in store.missing():
                store.upload(name)
            store.upload_history()
            store.upload_table()
            # The tag tells readers that the run's files are complete.
            self.client.set_tag(record.mlflow_id, schema.TAG_FILES, "complete")
            record.ended = False
        save_shipped(self.folder, self.uri, self.state)

    def _lines(self, token: str) -> list[Line]:
        """All lines of a record, including those that are in no file."""
        lines = [line for path in files(self.folder) if _owner(path) == token for line, _ in read_lines(path)]
        return [*lines, *self.unwritten] if token == self.token else lines


def _owner(path: Path) -> str:
    """The record that a spool's file belongs to, by its first line."""
    first = next(read_lines(path), None)
    return first[0].record if first and isinstance(first[0], Begin) else ""


def _plain(record: str) -> str:
    """A record's name, checked to be safe in a filter."""
    if not record.isalnum():
        raise MlflowException(f"a spool names the record {record!r}, which this program did not write")
    return record


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    try:
        file = open_lock(folder / FOLDER / "shipping.lock")
    except OSError:  # a full disk: better to send twice than not at all
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
