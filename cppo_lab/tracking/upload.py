"""Uploads the spools of runs to MLflow. All data of training runs get into MLflow this way.

Uploads are idempotent, whatever is killed, restarted or repeated: before the MLflow run of a record is created, it is
looked up by its token; points carry the times at which they were measured, so that MLflow recognises a point that is
sent twice, and a later attempt sends no step that the store has with another time. Files are uploaded after a run's
end, since they may be in a separate store, followed by the tag TAG_FILES. `shipped.json` records how much of the spool
a store has.
"""

import contextlib
import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from cppo_lab import schema
from cppo_lab.answers.records import FolderFiles, read_texts, steps_with
from cppo_lab.answers.texts import Sample
from cppo_lab.core_records import core_if_installed
from cppo_lab.errors import UserError, few, say
from cppo_lab.files import open_plain, redacted
from cppo_lab.runs.folder import read_status
from cppo_lab.runs.spool import (
    NOTES,
    SPOOL_FOLDER,
    Artifact,
    Begin,
    End,
    Line,
    Shipped,
    ShippedRecord,
    StepEvent,
    Tags,
    decoded,
    files,
    lines,
    load_shipped,
    newest_record,
    save_shipped,
    shipping,
    unsent,
)
from cppo_lab.runs.tags import merged
from cppo_lab.tracking import address, history
from cppo_lab.tracking.client import STORE_FAULTS, ensure_experiment, exclusive, fault_line, open_client
from cppo_lab.tracking.history import recorded_status
from cppo_lab.tracking.read import is_active, newest_runs, reading

BATCH = 1000  # MLflow's limit on metrics and tags together per request
COMPARED = 100  # requests of points per comparison with the store
PARAMS = 100  # and on parameters, and on tags
# MLflow's error codes for a deleted run.
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST"})
# All others: FINISHED.
_MLFLOW_STATUS = {schema.FAILED: "FAILED", schema.PARTIAL: "KILLED", schema.STOPPED: "KILLED"}
TABLE = (
    "answers.json"  # an artifact of the MLflow run: the kept responses, in the format of MLflow's `log_table`
)
TABLE_TAG = "mlflow.loggedArtifacts"  # by which MLflow's page finds a run's tables
LARGEST_TABLE = 2_000_000  # bytes; the page reads it as a whole, and the run's files have the rest
LONGEST_CELL = 4_000  # characters
_COLUMNS = (
    "step",
    "problem",
    "prompt",
    "response",
    "answer",
    "truth",
    "right",
    "length",
    "stop",
    "kind",
    "benchmark",
    "draw",
    "reward",
    "advantage",
)


def upload(
    folders: Iterable[Path],
    uri: str,
    report: Callable[[int, int], None] = lambda done, of: None,
    unwritten: dict[Path, Sequence[Line]] | None = None,
    sent: Callable[[Path], None] = lambda folder: None,
) -> tuple[int, int]:
    """Upload what the store lacks of the runs in `folders`; a run that is training may be among them. Returns how many
    had something to upload, and the number of their points.

    `report` is called after each run with how many of how many are done, `sent` with each that the store took.
    `unwritten`: lines that a full disk kept out of the spools; those that the store took are removed. Raises UserError
    if the store is offline, or, once all others are sent, for runs that it refuses.
    """
    held = {} if unwritten is None else unwritten
    waiting = [folder for folder in folders if folder in held or unsent(folder, uri)]
    if not waiting:
        return 0, 0
    client, points, faults = open_client(uri), 0, list[tuple[str, Exception]]()
    for number, folder in enumerate(waiting, start=1):
        try:
            points += ship(folder, uri, client, held.get(folder, ()))
            held.pop(folder, None)
            sent(folder)
        except (*STORE_FAULTS, UserError) as error:
            faults.append((folder.name, error))
            # Raises if the store does not answer: then the remaining runs would fail too.
            client = open_client(uri)
        report(number, len(waiting))
    if faults:
        (run, fault), *others = faults
        more = f", and {len(others)} more" if others else ""
        # A message of ours has the remedy; else the store may take later what it does not take now.
        later = (
            "" if isinstance(fault, UserError) else ", `cppo sync` uploads the rest once the store accepts it"
        )
        raise UserError(
            f"run {run} could not be uploaded to the tracking store ({fault_line(fault)}){more}: nothing is lost{later}"
        )
    return len(waiting), points


def ship(folder: Path, uri: str, client: MlflowClient, unwritten: Sequence[Line] = ()) -> int:
    """Upload the lines of the run in `folder` that the store at `uri` lacks; returns the number of points sent.

    `unwritten` are lines that a full disk kept out of the spool. Several processes may ship the same folder; a lock
    lets them do so in turn. Raises what MLflow raises if the store does not answer or refuses.
    """
    if not files(folder) and not unwritten:
        return 0
    # A resumed run trains steps that are in no file again, and would record them twice: only a finished run sends
    # them.
    is_over = bool(unwritten) and isinstance(end := unwritten[-1], End) and end.status in schema.FINISHED
    safe = [line for line in unwritten if is_over or not isinstance(line, StepEvent)]
    with shipping(folder):
        shipment = _Shipment(folder, uri, client, safe)
        try:
            return shipment.send()
        except MlflowException as error:
            if error.error_code not in _REFUSALS or not shipment.forget_deleted():
                raise
        return _Shipment(folder, uri, client, safe).send()


def forget_lost(folders: Iterable[Path], uri: str) -> list[Path]:
    """Forget what has been sent of finished runs that the store does not have any more: deleted there, or the store has
    been replaced or put back. The next upload sends them again, which is said. Returns their folders.

    Asks the store for all runs of an experiment at once. Raises UserError if it cannot be read.
    """
    records = {}
    for folder in folders:
        status = read_status(folder)  # and not the spools, which for thousands of runs takes minutes
        if status.get("status") in schema.FINISHED and files(folder):
            records[folder] = status.get("record"), schema.experiment_name(str(status.get("core")))
    if not records or address.is_absent(uri):
        return []
    with reading(uri) as client:
        stored = {
            run.data.tags[schema.TAG_RECORD]
            for experiment in {experiment for _, experiment in records.values()}
            for run in newest_runs(client, experiment, tag=schema.TAG_RECORD)
        }
    absent = [folder for folder, (record, _) in records.items() if record and record not in stored]
    lost = [folder for folder in absent if not unsent(folder, uri)]
    for folder in lost:
        save_shipped(folder, uri, Shipped())
    if lost:
        count = "1 finished run was" if len(lost) == 1 else f"{len(lost)} finished runs were"
        named = few([folder.name for folder in lost])
        say(f"cppo: {count} not in the tracking store any more: uploaded again ({named})")
    return lost


def retire(client: MlflowClient, mlflow_id: str) -> bool:
    """Delete the results that the run `mlflow_id` names, if it has finished. `mlflow runs restore` brings them back.

    From its start, the MLflow run of a retrained run names the results that it is to replace (TAG_REPLACES); once they
    are deleted, the tag becomes TAG_REPLACED, with their MLflow ids. A kill at any point leaves exactly one valid
    result, since readers take the newest finished run. False, with a message, if the store does not answer.
    """
    try:
        successor = client.get_run(mlflow_id)
        tags = successor.data.tags
        if recorded_status(tags) not in schema.FINISHED or not tags.get(schema.TAG_REPLACES):
            return True
        replaced = []
        for name in tags[schema.TAG_REPLACES].split():
            olds = _named(client, successor.info.experiment_id, name)
            replaced += [old.info.run_id for old in olds] or [name]
            for old in olds:
                # Nothing but an attempt at the same run, whatever the tags are.
                is_same = old.data.tags.get(schema.TAG_RUN_ID) == tags.get(schema.TAG_RUN_ID)
                if is_same and old.info.lifecycle_stage == "active":
                    client.delete_run(old.info.run_id)
        client.set_tag(mlflow_id, schema.TAG_REPLACED, " ".join(replaced))
        client.delete_tag(mlflow_id, schema.TAG_REPLACES)
    except STORE_FAULTS as error:
        line = f"replaced results are still there, the next launch removes them: {fault_line(error)}"
        say(line)
        return False
    return True


def _named(client: MlflowClient, experiment_id: str, name: str) -> list[Run]:
    """The runs that a name in TAG_REPLACES means: that of a record, or, as versions before 0.2.0 wrote it, of an MLflow
    id.
    """
    if not name.isalnum():
        return []
    condition = f"tags.`{schema.TAG_RECORD}` = '{name}'"
    runs = list(client.search_runs([experiment_id], condition, run_view_type=ViewType.ALL))
    try:
        return runs or [client.get_run(name)]
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # `mlflow gc` removes deleted runs for good
            return []
        raise


class _Shipment:
    """An upload of a run's folder."""

    def __init__(self, folder: Path, uri: str, client: MlflowClient, unwritten: Sequence[Line]) -> None:
        self.folder, self.uri, self.client, self.unwritten = folder, uri, client, unwritten
        self.state = load_shipped(folder, uri)
        self.token = ""  # of the record that is being sent
        self.runs: dict[str, Run] = {}  # by record: its MLflow run with the tags that it has by now
        self.steps: list[StepEvent] = []  # that wait to be sent
        begins = (line for line in chain(lines(folder), unwritten) if isinstance(line, Begin))
        tags = next((line.tags for line in begins), {})
        if (other := tags.get(schema.TAG_RUN_ID, folder.name)) != folder.name:
            raise UserError(f"the folder is a copy of run {other}: give it its run's name, or move it away")
        self.validated_points = core_if_installed(tags.get(schema.TAG_CORE, "")).validated_points
        self.evaluated = False  # whether what is sent has evaluations of its checkpoint, after its end
        # The record at the end of the file before that which is sent: a later attempt goes on with the same.
        self.before = ""
        self.sent: Counter[str] = Counter()  # points, by record

    @property
    def record(self) -> ShippedRecord:
        return self.state.records.setdefault(self.token, ShippedRecord())

    def send(self) -> int:
        paths = files(self.folder)
        for path, previous in zip(paths, [None, *paths], strict=False):
            self.before = "" if previous is None else _owner(previous)
            self._send_file(path)
        if self.unwritten and (newest := newest_record(self.folder)) is not None:
            self.token = newest.begin.record  # needed if the files had nothing to send
        for line in self.unwritten:
            self._take(line)
        self._flush()
        newest_token = self.token
        self._send_notes()
        # Last, since files can be in a separate store and may fail where points succeed.
        for token in list(self.state.records):
            self.token = token
            self._send_artifacts(self.unwritten if token == newest_token else ())
        return self.sent.total()

    def forget_deleted(self) -> bool:
        """Whether the MLflow run of the record that was being sent was deleted. Then the whole record is to be sent
        again, to a new run.
        """
        if not self.token or not self.record.mlflow_id or is_active(self.client, self.record.mlflow_id):
            return False
        del self.state.records[self.token]
        for path in files(self.folder):
            if self.token.encode() in _content(path):
                self.state.offsets.pop(path.name, None)
        save_shipped(self.folder, self.uri, self.state)
        return True

    def _send_file(self, path: Path) -> None:
        unsent_lines = self.state.rest(path)
        if (first := next(unsent_lines, None)) is None:
            return
        # Sync first: if the machine crashed and lost an uploaded step, the step would get a second, later point.
        with path.open("rb") as file:
            safe = os.fstat(file.fileno()).st_size
            os.fsync(file.fileno())
        self.token = _owner(path, self.state.offsets.get(path.name, 0))
        offset, sent = 0, self.sent.total()
        for line, end in chain([first], unsent_lines):
            if end > safe:
                break
            self._take(line)
            offset = end
            # Lines of which nothing is sent take no write, in thousands of runs.
            if self.sent.total() > sent and not self.steps:
                self._reached(path, offset)
                sent = self.sent.total()
        self._flush()
        if self.state.offsets.get(path.name) != offset:
            self._reached(path, offset)

    def _send_notes(self) -> None:
        """What somebody has noted on the run becomes tags of its newest record."""
        path = self.folder / SPOOL_FOLDER / NOTES
        added = list(self.state.rest(path))
        if not added or (newest := newest_record(self.folder)) is None:
            return
        if (shipped := self.state.records.get(newest.begin.record)) is None:
            return  # it has begun meanwhile: the next upload sends it first
        for line, end in added:
            for key, value in line.tags.items() if isinstance(line, Tags) else ():
                self.client.set_tag(shipped.mlflow_id, key, value)
            self._reached(path, end)

    def _reached(self, path: Path, offset: int) -> None:
        self.state.offsets[path.name] = offset
        save_shipped(self.folder, self.uri, self.state)

    def _take(self, line: Line) -> None:
        if isinstance(line, Begin):
            self.token = line.record
            self._begin(line)
        elif not self.record.mlflow_id:
            return  # lines of ours follow a `begin` line
        elif isinstance(line, StepEvent):
            if not self._is_sent(line.metrics):
                return
            self.steps.append(line)
            self.evaluated = self.evaluated or any(map(schema.is_evaluation, line.metrics))
            # Sent before another of this size would take a second request. Each comparison reads a whole history.
            requests = COMPARED if self.token == self.before else 1
            if (len(self.steps) + 1) * len(line.metrics) > BATCH * requests:
                self._flush()
        elif isinstance(line, Artifact):
            if line.path not in self.record.pending:
                self.record.pending.append(line.path)
        elif isinstance(line, Tags):
            self._flush(line.tags)
        else:
            self._end(line)

    def _is_sent(self, metrics: Iterable[str]) -> bool:
        """Whether MLflow gets the points of a step with these metrics."""
        if not self.validated_points:
            return True
        return any(schema.parse_validation_metric(name) or schema.is_evaluation(name) for name in metrics)

    def _flush(self, tags: Mapping[str, str] = MappingProxyType({})) -> None:
        """Send the steps that wait, and with the last of their points `tags`."""
        # If the store is a file, nobody else sends a step between the comparison and the sending.
        compares = self.token == self.before and bool(self.steps)
        with exclusive(self.uri) if compares else contextlib.nullcontext():
            steps = self._unknown() if compares else self.steps
            self.steps = []
            self._log(
                [
                    Metric(name, value, step.time_ms, step.step)
                    for step in steps
                    for name, value in step.metrics.items()
                ],
                tags,
            )

    def _unknown(self) -> list[StepEvent]:
        """The steps that wait and that the store does not have with another time.

        A later attempt could not see that a step was recorded if its line was damaged, if the folder was restored from
        an older copy, or if a copy of it is trained elsewhere. The first record of a step is kept.
        """
        times: dict[str, dict[int, int]] = {"": {}}  # in the store, by metric and step
        unknown = []
        for line in self.steps:
            # What a machine's load is called depends on the machine.
            name = min(line.metrics, key=lambda name: name.startswith("system/"), default="")
            if name not in times:
                points = self.client.get_metric_history(self.record.mlflow_id, name)
                times[name] = {point.step: point.timestamp for point in points}
            if times[name].get(line.step, line.time_ms) == line.time_ms:
                unknown.append(line)
        return unknown

    def _log(self, points: Sequence[Metric], tags: Mapping[str, str]) -> None:
        entities = [RunTag(key, value) for key, value in tags.items()]
        size = BATCH - len(entities)
        for start in range(0, len(points) or len(entities), size):
            is_last = start + size >= len(points)
            batch = points[start : start + size]
            self.client.log_batch(self.record.mlflow_id, metrics=batch, tags=entities if is_last else [])
            self.sent[self.token] += len(batch)
        if self.token in self.runs:
            self.runs[self.token].data.tags.update(tags)

    def _begin(self, line: Begin) -> None:
        """Create the record's MLflow run if needed, and set it to RUNNING."""
        run = self.client.get_run(self.record.mlflow_id) if self.record.mlflow_id else None
        if run is None:
            experiment_id = ensure_experiment(self.client, line.experiment)
            # From an earlier try whose response, or our record of it, was lost.
            run = next(iter(self._of_record(experiment_id)), None)
        is_new = run is None
        if run is None:
            tags = {**line.tags, schema.TAG_RECORD: line.record}
            run = self.client.create_run(experiment_id, line.time_ms, tags, line.name)
        self.runs[self.token] = run
        before, mlflow_id = run.data.tags, run.info.run_id
        if self.record.mlflow_id != mlflow_id:
            self.state.offsets.pop(NOTES, None)  # its newest record has them all
        self.record.mlflow_id = mlflow_id
        self.record.ended = False
        self._remove_others(run)
        tags = {**merged(before, line.tags), schema.TAG_STATUS: schema.RUNNING}
        if recorded_status(before) in schema.FINISHED:
            del tags[schema.TAG_STATUS]  # it is not resumed, and only the store may have its end
            if schema.TAG_REPLACED in before:  # a result that a user has restored is not replaced again
                tags.pop(schema.TAG_REPLACES, None)
        elif not is_new:
            self.client.update_run(mlflow_id, status="RUNNING")
            for key in sorted({schema.TAG_REASON, schema.TAG_STEP, schema.TAG_FILES} & before.keys()):
                self.client.delete_tag(mlflow_id, key)
                del before[key]
        new = [RunTag(key, value) for key, value in tags.items() if before.get(key) != value]
        params = [Param(key, value) for key, value in line.params.items()]
        for start in range(0, max(len(params), len(new)), PARAMS):
            place = slice(start, start + PARAMS)
            self.client.log_batch(mlflow_id, params=params[place], tags=new[place])
        before.update(tags)
        inputs = []
        for values in line.datasets:  # MLflow identifies a dataset by its name and digest
            dataset = schema.Dataset(**values)
            name, profile = redacted(dataset.source), redacted(json.dumps(dict(dataset.profile)))
            # MLflow's page reads source and profile as JSON.
            is_code = dataset.source_type == schema.CODE
            source = json.dumps({"tags": {"mlflow.source.name": name}} if is_code else {"uri": name})
            entity = Dataset(dataset.name, dataset.digest, dataset.source_type, source, profile=profile)
            inputs.append(DatasetInput(entity, [InputTag("mlflow.data.context", dataset.context)]))
        if inputs:
            try:
                self.client.log_inputs(mlflow_id, datasets=inputs)
            except MlflowException as error:
                # MLflow looks for a dataset before it adds it: of two runs that add the same dataset at once, the later
                # is refused, and finds it the next time.
                if error.error_code != "BAD_REQUEST":
                    raise
                self.client.log_inputs(mlflow_id, datasets=inputs)

    def _run(self) -> Run:
        """The MLflow run of the record."""
        if self.token not in self.runs:
            self.runs[self.token] = self.client.get_run(self.record.mlflow_id)
        return self.runs[self.token]

    def _of_record(self, experiment_id: str) -> list[Run]:
        """The active MLflow runs of the record whose lines are being read: several if a request was sent twice."""
        if not self.token.isalnum():
            raise MlflowException(
                f"a spool names the record {self.token!r}, which this program did not write"
            )
        return list(
            self.client.search_runs(
                [experiment_id],
                filter_string=f"tags.`{schema.TAG_RECORD}` = '{self.token}'",
                order_by=["attributes.start_time ASC"],
            )
        )

    def _remove_others(self, kept: Run) -> None:
        """Delete runs of the record beside `kept`.

        A request whose response is lost is retried, also by MLflow's client; a server that hung may still carry it out.
        """
        if address.sqlite_file(self.uri) is not None:  # a SQLite file has no retries
            return
        for run in self._of_record(kept.info.experiment_id):
            if run.info.run_id != kept.info.run_id:
                self.client.set_terminated(run.info.run_id, "KILLED")
                self.client.delete_run(run.info.run_id)

    def _end(self, line: End) -> None:
        run = self._run()
        self._remove_others(run)
        was_finished = recorded_status(run.data.tags) in schema.FINISHED
        if was_finished and line.status not in schema.FINISHED:
            return  # the end of an earlier attempt, sent twice
        tags = {schema.TAG_STATUS: line.status}
        if line.reason:
            tags[schema.TAG_REASON] = line.reason[:500]
        if line.step is not None and line.status not in schema.FINISHED:
            tags[schema.TAG_STEP] = str(line.step)
        self._flush(tags)
        status = _MLFLOW_STATUS.get(line.status, "FINISHED")
        self.client.set_terminated(self.record.mlflow_id, status, line.time_ms)
        # Do not upload the history again when a result is sent twice: the store's copy may hold steps that a full disk
        # kept out of the files here.
        complete = was_finished and run.data.tags.get(schema.TAG_FILES) == "complete"
        self.record.ended = self.evaluated or not complete

    def _send_artifacts(self, unwritten: Sequence[Line]) -> None:
        record = self.record
        if not record.mlflow_id or not (record.pending or record.ended):
            return
        run = self._run()
        if run.info.lifecycle_stage != "active":
            raise MlflowException("it was deleted meanwhile", RESOURCE_DOES_NOT_EXIST)
        recorded, token, tags = [], "", run.data.tags
        for line in lines(self.folder):
            token = line.record if isinstance(line, Begin) else token
            recorded += [line] * (token == self.token)
        recorded += unwritten
        # What a full disk did not accept is in the last line of a file.
        contents = {line.path: line.content() for line in recorded if isinstance(line, Artifact)}
        if recorded_status(tags) in schema.FINISHED and tags.get(schema.TAG_FILES) == "complete":
            record.pending = []  # sent twice, since a full disk lost the progress; the files here may be older, too
        while record.pending:
            self._send_artifact(record.pending[0], contents.get(record.pending[0]))
            del record.pending[0]
        if record.ended:
            for name in self._missing(contents, run.info.artifact_uri):
                self._send_artifact(name, contents[name])
            # All points in a file, which saves readers a request for each metric.
            events = (line for line in recorded if isinstance(line, StepEvent))
            rows = [(event.step, event.time_ms, event.metrics) for event in events]
            whole = history.from_rows(rows)
            self._send_artifact(history.HISTORY, history.pack(whole))
            if (table := answers_table(self.folder)) is not None:
                self._send_artifact(TABLE, table)
                tag = json.dumps([{"path": TABLE, "type": "table"}])
                self.client.set_tag(record.mlflow_id, TABLE_TAG, tag)
            if self.validated_points:
                whole = history.from_rows(row for row in rows if self._is_sent(row[-1]))
            # The points that the store has lost, as a database put back to an older copy, are sent again. A file took
            # all of them a moment ago: to read them all back takes as long as to send them.
            count = sum(len(steps) for steps, _, _ in whole.values())
            is_whole = address.sqlite_file(self.uri) is not None and self.sent[self.token] == count
            if not is_whole and self._lost(whole):
                with exclusive(self.uri):
                    self._log(self._lost(whole), {})
                if lost := self._lost(whole):
                    raise MlflowException(f"it accepted {count} points and lacks {len(lost)} of them")
            # The tag tells readers that the run's files are complete.
            self.client.set_tag(record.mlflow_id, schema.TAG_FILES, "complete")
            record.ended = schema.TAG_REPLACES in tags and not retire(self.client, record.mlflow_id)
        save_shipped(self.folder, self.uri, self.state)

    def _send_artifact(self, name: str, content: bytes | None) -> None:
        """Upload `content` as a file of that name, otherwise the file in the run's folder, if it is there."""
        if (path := self._path(name, content)) is None:
            return
        with tempfile.TemporaryDirectory(prefix="cppo-") as folder:
            if content:
                path = Path(folder) / Path(name).name
                path.write_bytes(content)
            self.client.log_artifact(self.record.mlflow_id, str(path), _place(name))

    def _missing(self, contents: Mapping[str, bytes], artifact_uri: str) -> list[str]:
        """Files of a record that the store lacks although it accepted them: a gateway may have lost them."""
        names = [name for name, content in contents.items() if self._path(name, content)]
        if (folder := address.artifact_folder(artifact_uri, self.uri)) is not None:
            return [name for name in names if not (folder / name).is_file()]
        stored = {
            file.path
            for place in {_place(name) for name in names}
            for file in self.client.list_artifacts(self.record.mlflow_id, place)
        }
        return [name for name in names if Path(name).as_posix() not in stored]

    def _path(self, name: str, content: bytes | None) -> Path | None:
        """Where a file of that name is in the run's folder, or would be with `content`; None if it would be elsewhere,
        or is not there.
        """
        # A name too long, or with a zero byte; links in a ring.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            path = (self.folder / name).resolve()
            if path.is_relative_to(self.folder.resolve()) and (content or path.is_file()):
                return path
        return None

    def _lost(self, whole: history.History) -> list[Metric]:
        """The points of a record that the store lacks, by their steps: it may have values as other numbers."""
        lost = []
        for name, columns in whole.items():
            stored = {point.step for point in self.client.get_metric_history(self.record.mlflow_id, name)}
            for step, value, time_ms in zip(*(column.tolist() for column in columns), strict=True):
                if step not in stored:
                    lost.append(Metric(name, value, time_ms, step))
        return lost


def _place(name: str) -> str | None:
    """The folder of an artifact, as MLflow takes it."""
    return None if (parent := Path(name).parent.as_posix()) == "." else parent


def answers_table(folder: Path) -> bytes | None:
    """The table of the texts in a run's folder, the newest steps first, cut at LARGEST_TABLE bytes.

    None if it has none. Unreadable files are omitted.
    """
    rows, size = list[str](), 0
    for sample in _samples(folder):
        row = json.dumps([_cell(getattr(sample, name)) for name in _COLUMNS])
        size += len(row) + 1
        if size > LARGEST_TABLE:
            break
        rows.append(row)
    return f'{{"columns":{json.dumps(_COLUMNS)},"data":[{",".join(rows)}]}}'.encode() if rows else None


def _samples(folder: Path) -> Iterator[Sample]:
    with contextlib.suppress(UserError):
        run_files = FolderFiles(folder)
        for step in reversed(steps_with(run_files, "texts")):
            with contextlib.suppress(UserError):
                texts = read_texts(run_files, step)
                yield from texts.samples if texts else ()


def _cell(value: object) -> object:
    if not isinstance(value, str) or len(value) <= LONGEST_CELL:
        return value
    half = LONGEST_CELL // 2
    return f"{value[:half]} [{len(value) - LONGEST_CELL} characters are left out here] {value[-half:]}"


def _content(path: Path) -> bytes:
    """All of a spool's file; nothing if it is none, but a pipe or a device."""
    with open_plain(path) or io.BytesIO() as file:
        return file.read()


def _owner(path: Path, end: int | None = None) -> str:
    """The record that begins last before byte `end` of a spool's file. A file has two if the end of the first had to
    wait for room on the disk.
    """
    text = _content(path)[:end]
    first = decoded(text[max(text.rfind(b'{"kind": "begin"'), 0) :].partition(b"\n")[0])
    return first.record if isinstance(first, Begin) else ""
