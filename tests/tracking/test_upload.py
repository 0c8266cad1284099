"""MLflow is brought to the state of a spool, whatever is killed, lost, deleted or done twice on the way, while the
store is away, the disk is full, or both: nothing is lost, nobody waits.
"""

import contextlib
import errno
import itertools
import json
import math
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from mlflow import MlflowClient
from mlflow.data import dataset_source_registry
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST

from cppo_lab import schema
from cppo_lab.runs import recorder as recorder_module
from cppo_lab.runs.folder import folder_tag, read_status, write_status
from cppo_lab.runs.recorder import Recorder, record_end
from cppo_lab.runs.spool import SPOOL_FOLDER, add_evaluation, add_notes, newest_record, notes, unsent
from cppo_lab.schema import Dataset, Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from cppo_lab.tracking import history, uploader
from cppo_lab.tracking import upload as upload_module
from cppo_lab.tracking.address import VARIABLE, sqlite_file, tracking_uri
from cppo_lab.tracking.client import open_client, store_error
from cppo_lab.tracking.read import attempts_at
from cppo_lab.tracking.upload import forget_lost, retire, ship, upload
from cppo_lab.tracking.uploader import upload_last
from tests.conftest import FINISHED, TINY, user_error
from tests.recorded import mlflow_client, mlflow_run, mlflow_runs, points, sent, upload_ended
from tests.runs.test_folder import full
from tests.tracking.conftest import LOSS, REWARD, Attempt, log


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


def steps(folder: Path) -> list[int]:
    """The steps of the reward, which are those of the loss."""
    rewards, losses = ([step for step, _, _ in points(folder, metric)] for metric in (REWARD, LOSS))
    assert rewards == losses
    return rewards


def forget_progress(folder: Path) -> None:
    (folder / SPOOL_FOLDER / "shipped.json").unlink(missing_ok=True)


def artifacts(run: Run) -> set[str]:
    return {file.path for file in mlflow_client().list_artifacts(run.info.run_id)}


def stored(folder: Path, name: str) -> bytes:
    """A file of the run, as the store has it."""
    client, run = mlflow_client(), mlflow_run(folder)
    return Path(client.download_artifacts(run.info.run_id, name)).read_bytes()


def packed_history(folder: Path) -> dict[str, list[tuple[int, float, int]]]:
    """The points in the artifact that the store has."""
    packed = history.unpack(stored(folder, history.HISTORY), "it")
    return {
        name: list(zip(*(column.tolist() for column in columns), strict=True))
        for name, columns in packed.items()
    }


def test_a_run_goes_on_in_its_mlflow_run(folder: Path, tiny_spec: RunSpec, attempt: Attempt) -> None:
    first = attempt(0, 1, 2, 3, **{schema.sweep_tag("main"): "cppo", schema.TAG_CODE_VERSION: "old"})
    before = points(folder, REWARD)
    first.fail("ValueError: bad", "traceback")
    failed = mlflow_run(folder)
    assert (failed.info.status, failed.data.tags[schema.TAG_FILES]) == ("FAILED", "complete")
    second = Recorder(tiny_spec, {schema.TAG_CODE_VERSION: "new"}, folder)
    run, tags = mlflow_run(folder), mlflow_run(folder).data.tags
    assert (run.info.status, tags[schema.TAG_STATUS]) == ("RUNNING", schema.RUNNING)
    assert not {schema.TAG_REASON, schema.TAG_STEP, schema.TAG_FILES} & tags.keys()
    expected = {
        schema.TAG_CODE_VERSION: "new",
        schema.sweep_tag("main"): "cppo",
        schema.TAG_FOLDER: folder_tag(folder),
    }
    assert expected.items() <= tags.items() and run.data.params["training.t_stop"] == "4"
    second.begin(2)
    second.tag(schema.TAG_WARM_START, "0123456789ab")
    log(second, 0, 1, 2)  # the trainer's record, as a core hands it over when it continues
    log(second, 3, 4)  # trained again: step 3 stands as it was measured first
    record_end(folder, schema.PARTIAL, "interrupted: killed")  # as others write it
    assert mlflow_run(folder).info.status == "KILLED"
    third = attempt(5, after=4)
    assert mlflow_run(folder).info.status == "RUNNING"
    third.finish(FINISHED)
    assert points(folder, REWARD)[:4] == before and steps(folder) == [0, 1, 2, 3, 4, 5]
    times = [time for _, _, time in points(folder, REWARD)]
    assert times == sorted(set(times))
    [stored] = attempts_at(mlflow_client(), "cppo-mini", tiny_spec.run_id)
    assert (stored.status, stored.tags[schema.TAG_FILES]) == (schema.DONE, "complete")
    assert schema.TAG_REASON not in stored.tags and stored.tags[schema.TAG_WARM_START] == "0123456789ab"
    assert len(mlflow_runs(view=ViewType.ALL)) == 1


def test_a_run_without_a_checkpoint_begins_anew(folder: Path, tiny_spec: RunSpec, attempt: Attempt) -> None:
    attempt()
    sent(folder)
    attempt(0, 1)  # one that recorded nothing is gone on with
    add_notes(folder, {"looked": "yes"})
    old_id = mlflow_run(folder).info.run_id
    attempt(0).finish(FINISHED)  # the one before was killed: it could not say so itself
    assert steps(folder) == [0]
    client = mlflow_client()
    newest, old = attempts_at(client, "cppo-mini", tiny_spec.run_id)
    assert (newest.status, old.mlflow_id) == (schema.DONE, old_id)
    assert newest.tags["looked"] == old.tags["looked"] == "yes"
    assert (client.get_run(old_id).info.status, old.status) == ("KILLED", schema.PARTIAL)
    assert "there was no checkpoint to resume from" in old.tags[schema.TAG_REASON]
    assert [point.step for point in client.get_metric_history(old_id, REWARD)] == [
        0,
        1,
    ]  # measured, it stands


def test_notes_at_the_same_time_are_all_kept_and_wait_for_the_beginning_of_a_record(
    folder: Path, attempt: Attempt
) -> None:
    attempt(0)
    with ThreadPoolExecutor(8) as pool:
        assert len([*pool.map(lambda number: add_notes(folder, {f"t{number}": "yes"}), range(40))]) == 40
        [*pool.map(lambda number: add_notes(folder, {}, f"note {number}"), range(10))]
    assert len(given := notes(folder)) == 41
    assert sorted(given[schema.TAG_NOTE].split("\n\n")) == sorted(f"note {number}" for number in range(10))
    shipment = upload_module._Shipment(folder, tracking_uri(), mlflow_client(), ())
    shipment._send_notes()  # the record has begun, and nothing of it is sent yet
    assert mlflow_run(folder).data.tags.items() >= {f"t{number}": "yes" for number in range(40)}.items()


def test_a_run_that_has_ended_and_is_sent_is_looked_at_no_more_unless_its_end_is_an_older_one(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store that is away at the first look has taken them all the same."""
    ends = {
        "trains": ("running", 1e12),
        "ended": ("done", 1e12),
        "retried": ("done", 1.0),
        "unsent": ("done", 1e12),
    }
    looks = list[list[str]]()
    for name, (status, updated) in ends.items():
        (workspace / name).mkdir()
        write_status(workspace / name, {"status": status, "updated": updated})

    def upload_once(waiting: list[Path], uri: str, sent: Callable[[Path], None]) -> str:
        looks.append([folder.name for folder in waiting])
        for folder in waiting:
            sent(folder)
        return "no route" if len(looks) % 2 else ""

    monkeypatch.setattr("cppo_lab.tracking.uploader.still_owned", Mock(side_effect=[True] * 4 + [False]))
    monkeypatch.setattr("cppo_lab.tracking.uploader.upload_once", upload_once)
    monkeypatch.setattr("cppo_lab.tracking.uploader.unsent", lambda folder, _: folder.name == "unsent")
    uploader.work([workspace / name for name in ends], tracking_uri(), 0.0)
    assert looks == [[*ends], *[["trains", "retried", "unsent"]] * 3]
    silent, back = "does not answer, training continues: no route", "is back after 0 s"
    assert capsys.readouterr().err.splitlines() == [f"tracking store {silent}", f"tracking store {back}"] * 2


def whole_life(attempt: Attempt) -> None:
    """Two attempts at one run: the first is interrupted."""
    first = attempt(0, 1, 2)
    first.artifact("diagnostics/window.json", {"a": 1})
    first.interrupt("terminated by SIGTERM")
    attempt(*range(5), after=2).finish(FINISHED)


WRITES = ("create_run", "log_batch", "update_run", "set_terminated", "log_artifact", "delete_tag")


@pytest.mark.parametrize(
    "after, forgets, first", [(False, False, 0), (True, False, 1), (False, True, 2), (True, True, 3)]
)
def test_killed_at_any_request_the_next_one_brings_the_rest(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, after: bool, forgets: bool, first: int
) -> None:
    """Before its work or with the answer lost; and with what was remembered lost as well. Together at every write, each
    time in a new store.
    """
    whole_life(attempt)
    for survived in itertools.count(first, 4):
        monkeypatch.setenv(VARIABLE, f"sqlite:///{survived}.db")
        uri = tracking_uri()
        client, left = open_client(uri), iter(range(survived))
        for name in WRITES:
            setattr(client, name, dying(getattr(client, name), left, after))
        try:
            ship(folder, uri, client)
        except Killed:
            pass
        else:
            break
        if forgets:
            forget_progress(folder)
        assert [point[:2] for point in points(folder, REWARD)] == [(n, n / 10) for n in range(5)], survived
        [run] = mlflow_runs(view=ViewType.ALL)
        assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
        assert schema.TAG_REASON not in run.data.tags
        assert {"config.json", "diagnostics", history.HISTORY} <= artifacts(run)
        assert not unsent(folder, uri)
    assert survived > 10


def dying(real: Callable[..., Any], left: Any, after: bool) -> Callable[..., Any]:
    """`real` until `left` is used up; then it kills, `after` its work or before."""

    def call(*args: Any, **kwargs: Any) -> Any:
        alive = next(left, None) is not None
        result = real(*args, **kwargs) if alive or after else None
        if not alive:
            raise Killed
        return result

    return call


def test_every_store_gets_all_of_it_once(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_life(attempt)
    for name in ("one.db", "other.db"):
        monkeypatch.setenv(VARIABLE, f"sqlite:///{name}")
        uri = tracking_uri()
        assert unsent(folder, uri)
        assert sent(folder) == 2 * 5
        assert not unsent(folder, uri)
        assert packed_history(folder) == {metric: points(folder, metric) for metric in (LOSS, REWARD)}
        client = open_client(uri)
        for write in WRITES:
            setattr(client, write, Mock(side_effect=AssertionError("sent again")))
        assert ship(folder, uri, client) == 0


def test_a_line_that_a_kill_cut_off_is_not_waited_for(folder: Path, attempt: Attempt) -> None:
    with attempt(0).spool.path.open("a") as file:
        file.write('{"step": 1, "time_ms"')
    assert unsent(folder, tracking_uri())
    sent(folder)
    assert not unsent(folder, tracking_uri())
    attempt(1, after=0)
    assert steps(folder) == [0, 1]


def test_what_is_no_file_among_those_of_a_spool_is_left_out(folder: Path, attempt: Attempt) -> None:
    """A pipe would let the upload wait for ever, a link to /dev/zero take all memory."""
    spool = attempt(0).spool.path.parent
    os.mkfifo(spool / "0002.jsonl")
    (spool / "0003.jsonl").symlink_to("/dev/zero")
    attempt(1, after=0)
    assert steps(folder) == [0, 1]
    mlflow_client().delete_run(mlflow_run(folder).info.run_id)
    attempt(2, after=1)
    assert steps(folder) == [0, 1, 2]


def test_a_file_that_only_seemed_to_arrive_is_sent_again_at_the_end(folder: Path, attempt: Attempt) -> None:
    recorder, client = attempt(), mlflow_client()
    with patch.object(client, "log_artifact", lambda *_: None):
        ship(folder, tracking_uri(), client)
    assert not unsent(folder, tracking_uri())
    recorder.finish(FINISHED)
    assert {"config.json", "requirements.txt", history.HISTORY} <= artifacts(mlflow_run(folder))


def test_a_run_that_a_user_deletes_while_it_trains_is_recorded_anew(folder: Path, attempt: Attempt) -> None:
    recorder = attempt(0, 1)
    old = mlflow_run(folder).info.run_id
    mlflow_client().delete_run(old)
    log(recorder, 2)
    recorder.finish(FINISHED)
    assert steps(folder) == [0, 1, 2]
    run = mlflow_run(folder)
    assert run.info.run_id != old and run.info.status == "FINISHED"


@pytest.mark.parametrize("lost", ["noticed", "progress", "files"])
def test_a_result_that_a_user_deleted_is_on_disk_and_comes_back(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Also if the progress is lost, and if it was deleted before its files had come."""
    whole_life(attempt)
    with monkeypatch.context() as patch, contextlib.suppress(MlflowException):
        if lost == "files":
            fails = Mock(side_effect=MlflowException("the store of files is away"))
            patch.setattr("cppo_lab.tracking.upload._Shipment._send_artifact", fails)
        sent(folder)
    [before] = mlflow_runs(view=ViewType.ALL)
    assert unsent(folder, tracking_uri()) is (lost == "files")
    mlflow_client().delete_run(before.info.run_id)
    if lost == "noticed":
        assert forget_lost([folder], tracking_uri()) == [folder]
    elif lost == "progress":
        forget_progress(folder)
    sent(folder)
    [after] = mlflow_runs()
    assert (after.info.status, after.data.metrics) == ("FINISHED", before.data.metrics)
    assert after.data.tags[schema.TAG_FILES] == "complete"
    assert not unsent(folder, tracking_uri())
    assert forget_lost([folder], tracking_uri()) == []


def test_only_files_of_the_run_are_uploaded(folder: Path, attempt: Attempt) -> None:
    (folder.parent.parent / "secret").write_text("s")
    (folder / "link").symlink_to(folder.parent.parent)
    (folder / "link.txt").symlink_to(folder.parent.parent / "secret")
    recorder = attempt()
    for name in ("../../secret", "/etc/hostname", "link/secret", "link/x", "link.txt"):
        for text in ("", "not ours"):
            recorder.spool.add(recorder_module.Artifact(name, text))
    recorder.spool.add(recorder_module.Artifact("gone.json", ""))
    recorder.finish(FINISHED)
    assert artifacts(mlflow_run(folder)) == {"config.json", "requirements.txt", history.HISTORY}


def test_a_run_that_cannot_be_sent_stops_no_other(folder: Path, attempt: Attempt) -> None:
    """A record with a strange name, and a deleted experiment."""
    client = mlflow_client()
    client.delete_experiment(client.create_experiment("cppo-verl"))
    verl = compose([*TINY[1:], "core=verl", "model=tiny_qwen3"]).run
    folders = [folder.with_name("strange"), folder.with_name(verl.run_id), folder]
    strange = attempt(0, place=folders[0])
    Recorder(verl, {}, folders[1]).finish(FINISHED)
    attempt(0).finish(FINISHED)
    path = strange.spool.path
    text = path.read_text().replace(strange.record_name, "x' OR 'a' = 'a")
    path.write_text(text.replace(strange.spec.run_id, "strange"))
    for places, said in (
        (folders, "run strange could not be uploaded .*which this program did not write.*, and 1 more"),
        (folders[1:2], "'cppo-verl' was deleted"),
    ):
        with user_error(said):
            upload(places, tracking_uri())
    assert [run.info.status for run in mlflow_runs(view=ViewType.ALL)] == ["FINISHED"]
    assert not unsent(folder, tracking_uri())


def test_a_step_of_a_damaged_line_that_is_trained_again_is_recorded_once(
    folder: Path, attempt: Attempt
) -> None:
    attempt(0, 1, 2, 3, 4).interrupt("by a test")
    before = points(folder, REWARD)
    [path] = (folder / SPOOL_FOLDER).glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"step": 2', b'#step": 2'))
    second = attempt(2, 3, after=1)
    assert points(folder, REWARD) == before  # while it trains
    log(second, 4, 5)
    second.finish(FINISHED)
    for _ in range(2):
        assert points(folder, REWARD)[:5] == before
        assert steps(folder) == [0, 1, 2, 3, 4, 5]
        forget_progress(folder)  # it may be lost
    assert len(mlflow_runs(view=ViewType.ALL)) == 1


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_copied_folder_that_is_trained_in_both_places_doubles_no_step(
    folder: Path, attempt: Attempt, is_sent: bool
) -> None:
    """As one that is put back to an older copy, whose progress is older, too."""
    attempt(0).interrupt("by a test")
    if is_sent:
        sent(folder)
    folders = [folder, folder.parent.with_name("copy") / folder.name]
    shutil.copytree(*folders)
    recorders = [attempt(after=0, place=place) for place in folders]
    for turn, last in ((0, 2), (1, 4), (0, 5), (1, 5)):  # one is ahead, then the other
        log(recorders[turn], *range(1, last + 1))
        sent(folders[turn])
    for turn in (1, 0):
        recorders[turn].finish(FINISHED)
        assert steps(folders[turn]) == [0, 1, 2, 3, 4, 5]
    assert len(mlflow_runs(view=ViewType.ALL)) == 1


def test_points_that_the_store_has_lost_are_sent_again_at_the_end(folder: Path, attempt: Attempt) -> None:
    """As when its database is put back to an older copy while the run trains. Some are no numbers, one is twice."""
    recorder, database = attempt(0), sqlite_file(tracking_uri())
    sent(folder)
    with (
        contextlib.closing(sqlite3.connect(database)) as store,
        contextlib.closing(sqlite3.connect(":memory:")) as old,
    ):
        store.backup(old)
        recorder.log(1, {REWARD: math.nan, LOSS: math.inf})
        log(recorder, 2, 3)
        sent(folder)
        old.backup(store)
    # By somebody else: the number of points alone would hide one that is lost.
    mlflow_client().log_metric(mlflow_run(folder).info.run_id, REWARD, 0.5, step=0)
    log(recorder, 4)
    recorder.finish(FINISHED)
    assert mlflow_run(folder).data.tags[schema.TAG_FILES] == "complete"
    assert sorted(step for step, _, _ in points(folder, REWARD)) == [0, 0, 1, 2, 3, 4]
    losses = points(folder, LOSS)
    assert [step for step, _, _ in losses] == [0, 1, 2, 3, 4] and losses[1][1] > 1e308
    assert [step for step, _, _ in packed_history(folder)[REWARD]] == [0, 1, 2, 3, 4]


def test_points_fill_their_requests(folder: Path, attempt: Attempt) -> None:
    """MLflow takes 1,000 points in a request, and a store in a file writes each request to the disk."""
    recorder = attempt()
    for number in range(400):
        recorder.log(number, {REWARD: 0.5, LOSS: 0.5, "train/response_length": 8.0})
    recorder.finish(FINISHED)
    client = mlflow_client()
    client.log_batch = asked = Mock(wraps=client.log_batch)
    ship(folder, tracking_uri(), client)
    sizes = [len(call.kwargs.get("metrics", ())) for call in asked.call_args_list]
    assert [size for size in sizes if size] == [999, 201]


def test_a_run_whose_points_the_store_does_not_keep_is_not_complete(folder: Path, attempt: Attempt) -> None:
    attempt(0, 1, 2).finish(FINISHED)
    client = mlflow_client()
    real = client.log_batch

    def forgetful(mlflow_id: str, metrics: Any = (), **named: Any) -> None:
        real(mlflow_id, metrics=[point for point in metrics if point.step != 1], **named)

    client.log_batch = forgetful
    uri = tracking_uri()
    with (
        patch("cppo_lab.tracking.address.sqlite_file", lambda uri: None),
        pytest.raises(MlflowException, match="6 points and lacks 2 of them"),
    ):
        # As of a server, whose gateway may lose a request.
        ship(folder, uri, client)
    [run] = mlflow_runs(view=ViewType.ALL)
    assert schema.TAG_FILES not in run.data.tags and unsent(folder, tracking_uri())
    assert steps(folder) == [0, 1, 2]  # once it does
    assert mlflow_run(folder).data.tags[schema.TAG_FILES] == "complete"
    assert not unsent(folder, tracking_uri())


@pytest.mark.parametrize("status, gone", [(schema.PARTIAL, False), (schema.COLLAPSED, True)])
def test_a_result_is_deleted_once_the_run_that_replaces_it_has_finished(
    workspace: Path, status: str, gone: bool
) -> None:
    """It is named by its MLflow id, as before version 0.2.0, or by its record. Another run's, and one that is gone
    for good (`mlflow gc`), are left alone."""
    client, tags = mlflow_client(), {schema.TAG_RUN_ID: "r"}
    number = client.create_experiment("cppo-mini")
    old, recorded, other, third = (
        client.create_run(number, tags=more).info.run_id
        for more in (
            tags,
            tags | {schema.TAG_RECORD: "abc"},
            {schema.TAG_RUN_ID: "other", schema.TAG_RECORD: "xyz"},
            {schema.TAG_RUN_ID: "third"},
        )
    )
    replaces = {schema.TAG_REPLACES: f"{old} abc xyz {third} {'0' * 32}", schema.TAG_STATUS: status}
    new = client.create_run(number, tags=tags | replaces).info.run_id
    assert retire(client, new)
    stages = [client.get_run(mlflow_id).info.lifecycle_stage for mlflow_id in (old, recorded, other, third)]
    assert stages == (["deleted", "deleted", "active", "active"] if gone else ["active"] * 4)
    after = client.get_run(new).data.tags
    replaced = f"{old} {recorded} {other} {third} {'0' * 32}"
    assert (after.get(schema.TAG_REPLACED) == replaced, schema.TAG_REPLACES in after) == (gone, not gone)


ADDRESS = "https://ada:s3cret@host/a.parquet"
DATASETS = [
    Dataset("chain", "0123456789ab", "cppo_lab.x", schema.CODE, schema.TRAINING, {"problems": 7}),
    Dataset("aime24", "a" * 12, "/data/aime24.parquet", schema.LOCAL, schema.VALIDATION, {"origin": "hub"}),
    Dataset("a", "b", ADDRESS, schema.LOCAL, schema.TRAINING, {"origin": ADDRESS}),
]


def test_datasets_are_inputs_once_and_tell_no_password(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of two runs that add one at the same moment: MLflow finds none, and refuses to add a second."""
    real, refused = MlflowClient.log_inputs, []

    def log_inputs(client: MlflowClient, *arguments: Any, **named: Any) -> None:
        if not refused:
            refused.append(named)
            raise MlflowException("UNIQUE constraint failed: datasets.name", error_code=BAD_REQUEST)
        real(client, *arguments, **named)

    monkeypatch.setattr("mlflow.MlflowClient.log_inputs", log_inputs)
    Recorder(tiny_spec, {}, folder, datasets=DATASETS)
    mlflow_run(folder)
    forget_progress(folder)
    inputs = {stored.dataset.name: stored for stored in mlflow_run(folder).inputs.dataset_inputs}
    assert len(mlflow_run(folder).inputs.dataset_inputs) == 3 and refused
    for ours in DATASETS[:2]:
        theirs = inputs[ours.name].dataset
        assert (theirs.digest, json.loads(theirs.profile)) == (ours.digest, ours.profile)
        tags = [(tag.key, tag.value) for tag in inputs[ours.name].tags]
        assert tags == [("mlflow.data.context", ours.context)]
        # MLflow itself reads the source as one of its kinds.
        read = dataset_source_registry.get_dataset_source_from_json
        assert ours.source in read(theirs.source, theirs.source_type).to_json()
    masked = inputs["a"].dataset
    assert "s3cret" not in masked.source + masked.profile
    assert json.loads(masked.profile)["origin"] == "https://ada:***@host/a.parquet"
    Recorder(tiny_spec, {}, folder, datasets=[Dataset(**{**vars(DATASETS[0]), "digest": "b" * 12})])
    assert len(mlflow_run(folder).inputs.dataset_inputs) == 4  # other problems are another dataset


@pytest.mark.parametrize("again", ["nothing lost", "progress lost"])
def test_an_evaluation_after_the_end_is_a_point_and_in_the_history_once(
    folder: Path, attempt: Attempt, again: str
) -> None:
    attempt(*range(FINISHED.step + 1)).finish(FINISHED)
    sent(folder)
    before, metric = mlflow_run(folder), schema.evaluation_metric("other", 4)
    add_evaluation(folder, 1, {metric: 0.5})
    assert newest_record(folder).end.status == schema.DONE  # also for launches, which would train it again
    assert newest_record(folder).evaluations[metric].metrics == {metric: 0.5}
    for _ in range(2):
        sent(folder)
        if again == "progress lost":
            forget_progress(folder)
    after = mlflow_run(folder)
    assert [(step, value) for step, value, _ in points(folder, metric)] == [(1, 0.5)]
    assert packed_history(folder)[metric] == points(folder, metric)
    assert steps(folder) == list(range(FINISHED.step + 1))
    assert (after.info.run_id, after.info.status) == (before.info.run_id, before.info.status)
    assert after.info.end_time == before.info.end_time
    assert after.data.tags[schema.TAG_FILES] == "complete"


def test_only_a_finished_run_with_all_of_its_steps_is_evaluated(folder: Path, attempt: Attempt) -> None:
    running = attempt(0, 1)
    with user_error("is not finished"):
        add_evaluation(folder, 1, {schema.evaluation_metric("other", 4): 0.5})
    running.finish(Outcome(schema.DONE, 5))  # steps 2 to 5 are not on file
    with user_error("its record here is not whole"):
        add_evaluation(folder, 1, {schema.evaluation_metric("other", 4): 0.5})


OUTCOMES, POSITIONS = "answers/outcomes.npz", "diagnostics/positions.json"


def away(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The store does not answer what it is asked."""
    asked = Mock(side_effect=MlflowException("the server is away"))
    monkeypatch.setattr("mlflow.MlflowClient.get_experiment_by_name", asked)
    return asked


def job_ends(recorder: Recorder) -> None:
    """What a job does when its run has ended."""
    lines = list(recorder.spool.unwritten)
    upload_last([recorder.folder], tracking_uri(), {recorder.folder: lines} if lines else None)


no_room = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))


def fill_disk(monkeypatch: pytest.MonkeyPatch, spool: bool) -> None:
    """No file of a run can be written from now on, and its spool neither, if so said."""
    monkeypatch.setattr("cppo_lab.files.replacing", full)
    if spool:
        monkeypatch.setattr("cppo_lab.runs.spool.os.write", no_room)


def test_a_store_that_is_away_at_the_end_loses_nothing(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cppo_lab.tracking.uploader.LOOK_SECONDS", 0.01)
    recorder = attempt(0, 1, 2)
    recorder.finish(FINISHED)
    with monkeypatch.context() as patch:
        asked = away(patch)
        # Its time is over once the store was asked a second time.
        patch.setattr("cppo_lab.tracking.uploader.time", clock := Mock(wraps=time))
        clock.monotonic = lambda: math.inf if asked.call_count > 1 else 0.0
        job_ends(recorder)
        assert asked.call_count > 1 and read_status(folder)["status"] == schema.DONE
        printed = capsys.readouterr().err
        assert printed.count("tracking store does not answer") == 1 and "`cppo sync` uploads it" in printed
        with user_error("nothing is lost, `cppo sync` uploads the rest"):
            upload([folder], tracking_uri())
        upload_ended()
    assert upload([folder], tracking_uri()) == (1, 6)
    assert steps(folder) == [0, 1, 2]


def test_the_last_upload_of_many_runs_says_how_many_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders, tried = [tmp_path / name for name in "abc"], threading.Event()

    def take_one(waiting: Sequence[Path], uri: str, sent: Callable[[Path], None], *_: object) -> str:
        if not tried.is_set():
            sent(waiting[0])
            tried.set()
        return "it is away"

    for name, value in {"LOOK_SECONDS": 0.01, "TELL_SECONDS": 0.0, "PATIENCE_SECONDS": 0.5}.items():
        monkeypatch.setattr(uploader, name, value)
    monkeypatch.setattr("cppo_lab.tracking.uploader.unsent", lambda *_: True)
    monkeypatch.setattr("cppo_lab.tracking.uploader.upload_once", take_one)
    upload_last(folders, "sqlite:///m.db")
    upload_ended()
    lines = capsys.readouterr().err.splitlines()
    assert "uploading to the tracking store: 2 of 3 runs left" in lines
    assert lines[-1] == (
        "tracking store did not accept all of 2 runs (b, c): the rest is safe in "
        f"{tmp_path}, and `cppo sync` uploads it"
    )


@pytest.mark.parametrize(
    "fault", ["database or disk is full", "(psycopg2.errors.DiskFull) could not extend file: no room"]
)
def test_the_last_upload_does_not_wait_a_minute_for_room_on_the_disk_of_the_store(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uploader, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr("cppo_lab.tracking.uploader.unsent", lambda *_: True)
    monkeypatch.setattr("cppo_lab.tracking.uploader.upload_once", lambda *_: fault)
    monkeypatch.setattr("cppo_lab.tracking.uploader.time", clock := Mock(wraps=time))
    clock.monotonic = itertools.count().__next__  # each look takes a second
    upload_last([tmp_path], "sqlite:///m.db")
    assert clock.monotonic() < uploader.PATIENCE_SECONDS
    upload_ended()
    assert "`cppo sync` uploads it" in capsys.readouterr().err
    assert str(store_error("sqlite:///m.db", OSError(fault), "used")).endswith(": free space on its disk")


def test_a_store_that_is_away_and_a_full_disk(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing has the end of the run: it is not called safe."""
    monkeypatch.setattr("cppo_lab.tracking.uploader.PATIENCE_SECONDS", 0.2)
    away(monkeypatch)
    recorder = attempt(0)
    with monkeypatch.context() as disk:
        fill_disk(disk, True)
        log(recorder, 1)
        recorder.finish(FINISHED)
    job_ends(recorder)
    upload_ended()
    printed = capsys.readouterr().err
    assert f"the disk of {folder} has no room for the rest: launch it again" in printed
    assert "safe" not in printed


def test_steps_that_a_full_disk_keeps_from_the_spool_are_sent_at_the_end(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(0).interrupt("terminated by SIGTERM")
    recorder = attempt(0, after=0)
    with monkeypatch.context() as disk:
        sent(folder)  # all that is on file is in the store
        disk.setattr("cppo_lab.runs.spool.os.write", no_room)
        log(recorder, 1, 2)
        recorder.finish(FINISHED)
        job_ends(recorder)
    # The store alone knows of the end: who sends all that is on file does not take it back.
    for _ in range(2):
        ended = mlflow_run(folder)
        assert (ended.info.status, ended.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
        assert steps(folder) == [0, 1, 2]
        forget_progress(folder)
    assert record_end(folder, schema.DONE, "")  # once there is room
    assert [step for step, _, _ in packed_history(folder)["train/reward"]] == steps(folder) == [0, 1, 2]


@pytest.mark.parametrize("spool", [True, False])
def test_files_that_a_full_disk_does_not_take_are_sent_all_the_same(
    folder: Path,
    attempt: Attempt,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spool: bool,
) -> None:
    """At the end, or with the lines of the spool if it has room for them. The disk takes the first outcomes only."""
    recorder = attempt(0)
    older = folder / OUTCOMES
    assert recorder.file(OUTCOMES, b"of step 0")
    with monkeypatch.context() as disk:
        fill_disk(disk, spool)
        log(recorder, 1)
        recorder.artifact(POSITIONS, {"position": [1, 2]})
        assert not recorder.file(OUTCOMES, b"\xff of steps 0 and 1")
        recorder.finish(FINISHED)
        assert not (folder / POSITIONS).exists()
        # Killed before the store has the end, the next attempt continues from its checkpoint and needs the older file;
        # if the end is on disk, the newer content is with it.
        assert older.read_bytes() == b"of step 0" if spool else not older.exists()
        job_ends(recorder)
    assert "did not accept all" not in capsys.readouterr().err
    for _ in range(2):  # also when the lines that name the older file are sent again
        assert stored(folder, OUTCOMES) == b"\xff of steps 0 and 1"
        assert stored(folder, POSITIONS) == b'{"position": [1, 2]}'
        forget_progress(folder)
    run = mlflow_run(folder)
    assert (run.info.status, run.data.tags[schema.TAG_FILES]) == ("FINISHED", "complete")
