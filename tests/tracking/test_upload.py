"""MLflow is brought to the state of a spool, whatever is killed, lost, deleted or done twice on the way."""

import contextlib
import errno
import itertools
import math
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.runs import recorder as recorder_module
from cppo_lab.runs.folder import folder_tag, read_status
from cppo_lab.runs.recorder import Recorder, record_end
from cppo_lab.runs.spool import FOLDER
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from cppo_lab.tracking import history
from cppo_lab.tracking.address import sqlite_file, tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.read import attempts_at
from cppo_lab.tracking.sent import unsent
from cppo_lab.tracking.upload import forget_lost, ship, upload
from tests.conftest import FINISHED, TINY
from tests.recorded import mlflow_run, points, sent

REWARD, LOSS = "train/reward", "train/loss"


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


@pytest.fixture
def folder(workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a run, whose points are measured at times that can be told apart."""
    times = itertools.count(1_000)
    monkeypatch.setattr(recorder_module.time, "time", lambda: next(times))
    path = workspace / "runs" / tiny_spec.run_id
    path.mkdir(parents=True)
    return path


def log(recorder: Recorder, *numbers: int) -> None:
    for number in numbers:
        recorder.log(number, {REWARD: number / 10, LOSS: -number})


def steps(folder: Path, metric: str = REWARD) -> list[int]:
    return [step for step, _, _ in points(folder, metric)]


def all_runs(view: int = ViewType.ALL) -> list[Run]:
    client = open_client(tracking_uri())
    experiment = client.get_experiment_by_name("cppo-mini")
    return (
        [] if experiment is None else list(client.search_runs([experiment.experiment_id], run_view_type=view))
    )


def test_it_goes_on_in_the_same_mlflow_run(folder: Path, tiny_spec: RunSpec) -> None:
    first = Recorder(tiny_spec, {}, folder)
    first.begin(None)
    log(first, 0, 1, 2, 3)
    before = points(folder, REWARD)
    first.fail("Killed: ", "traceback")
    second = Recorder(tiny_spec, {}, folder)
    second.begin(2)
    log(second, 0, 1, 2)  # the trainer's record, as a core hands it over when it continues
    log(second, 3, 4)  # trained again: step 3 stands as it was measured first
    second.finish(FINISHED)
    assert points(folder, REWARD)[:4] == before
    assert steps(folder) == steps(folder, LOSS) == [0, 1, 2, 3, 4]
    times = [time for _, _, time in points(folder, REWARD)]
    assert times == sorted(set(times))
    assert len(all_runs()) == 1


def test_tags_reason_and_name_after_it_went_on(folder: Path, tiny_spec: RunSpec) -> None:
    first = Recorder(tiny_spec, {schema.sweep_tag("main"): "cppo", schema.TAG_CODE_VERSION: "old"}, folder)
    first.begin(None)
    log(first, 0)
    first.fail("ValueError: bad", "traceback")
    assert mlflow_run(folder).info.status == "FAILED"
    second = Recorder(tiny_spec, {schema.TAG_CODE_VERSION: "new"}, folder)
    run = mlflow_run(folder)
    assert run.info.status == "RUNNING"
    assert run.data.tags[schema.TAG_STATUS] == schema.RUNNING
    assert not {schema.TAG_REASON, schema.TAG_STEP} & run.data.tags.keys()
    assert run.data.tags[schema.TAG_CODE_VERSION] == "new"
    assert run.data.tags[schema.sweep_tag("main")] == "cppo"
    assert run.data.tags[schema.TAG_FOLDER] == folder_tag(folder)
    assert run.data.params["training.t_stop"] == "4"
    second.begin(0)
    second.finish(FINISHED)
    sent(folder)
    [found] = attempts_at(open_client(tracking_uri()), "cppo-mini", tiny_spec.run_id)
    assert (found.status, schema.TAG_REASON in found.tags) == (schema.DONE, False)


def test_a_run_without_a_checkpoint_begins_anew(folder: Path, tiny_spec: RunSpec) -> None:
    first = Recorder(tiny_spec, {}, folder)
    first.begin(None)
    log(first, 0, 1)
    old_id = mlflow_run(folder).info.run_id
    second = Recorder(tiny_spec, {}, folder)  # the first was killed: it could not say so itself
    second.begin(None)
    log(second, 0)
    second.finish(FINISHED)
    assert steps(folder) == [0]
    client = open_client(tracking_uri())
    old = client.get_run(old_id)
    assert old.info.status == "KILLED"
    assert old.data.tags[schema.TAG_STATUS] == schema.PARTIAL
    assert "there was no checkpoint to resume from" in old.data.tags[schema.TAG_REASON]
    assert [point.step for point in client.get_metric_history(old_id, REWARD)] == [
        0,
        1,
    ]  # what it measured stands
    newest, older = attempts_at(client, "cppo-mini", tiny_spec.run_id)
    assert (newest.status, older.mlflow_id) == (schema.DONE, old_id)


def test_an_attempt_that_recorded_nothing_is_gone_on_with(folder: Path, tiny_spec: RunSpec) -> None:
    Recorder(tiny_spec, {}, folder).begin(None)
    sent(folder)
    second = Recorder(tiny_spec, {}, folder)
    second.begin(None)
    second.finish(FINISHED)
    sent(folder)
    assert [run.info.status for run in all_runs()] == ["FINISHED"]


def whole_life(spec: RunSpec, folder: Path) -> None:
    """Two attempts at one run: the first is interrupted."""
    first = Recorder(spec, {}, folder)
    first.begin(None)
    log(first, 0, 1, 2)
    first.artifact("diagnostics/window.json", {"a": 1})
    first.interrupt("terminated by SIGTERM")
    second = Recorder(spec, {}, folder)
    second.begin(2)
    log(second, *range(5))
    second.finish(FINISHED)


WRITES = ("create_run", "log_batch", "update_run", "set_terminated", "log_artifact", "delete_tag")


@pytest.mark.parametrize(
    ("after", "forgets", "first"),
    [(False, False, 0), (True, False, 1), (False, True, 2), (True, True, 3)],
    ids=["before", "after", "before-forgets", "after-forgets"],
)
def test_killed_at_any_request_the_next_one_brings_the_rest(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch, after: bool, forgets: bool, first: int
) -> None:
    """Before its work or with the answer lost; and with what was remembered lost as well. Together at every write."""
    uri = tracking_uri()
    whole_life(tiny_spec, folder)
    expected = [(n, n / 10) for n in range(5)]
    for survived in itertools.count(first, 4):
        client = open_client(uri)
        left = iter(range(survived))
        for name in WRITES:
            monkeypatch.setattr(client, name, dying(getattr(client, name), left, after))
        try:
            ship(folder, uri, client)
        except Killed:
            pass
        else:
            break
        if forgets:
            (folder / FOLDER / "shipped.json").unlink(missing_ok=True)
        found = points(folder, REWARD)
        assert [point[:2] for point in found] == expected, survived
        run = mlflow_run(folder)
        assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
        assert schema.TAG_REASON not in run.data.tags
        assert len(all_runs()) == 1, survived
        names = {one.path for one in client.list_artifacts(run.info.run_id)}
        assert {"config.json", "diagnostics", history.HISTORY} <= names
        assert not unsent(folder, uri)
        open_client(uri).delete_run(run.info.run_id)  # and once more, from the beginning
        again = folder.with_name(f"{folder.name}-{survived}")
        again.mkdir()
        whole_life(tiny_spec, again)
        for one in all_runs():
            _remove(uri, one.info.run_id)
        folder = again
    assert survived > 10


def _remove(uri: str, mlflow_id: str) -> None:
    """For good: the next round must not find it among the deleted ones."""
    open_client(uri)._tracking_client.store._hard_delete_run(mlflow_id)


def dying(real: Callable[..., Any], left: Any, after: bool) -> Callable[..., Any]:
    """`real` until `left` is used up; then it kills, `after` its work or before."""

    def call(*args: Any, **kwargs: Any) -> Any:
        alive = next(left, None) is not None
        result = real(*args, **kwargs) if alive or after else None
        if not alive:
            raise Killed
        return result

    return call


def test_the_history_in_one_file_is_the_history(folder: Path, tiny_spec: RunSpec) -> None:
    whole_life(tiny_spec, folder)
    run = mlflow_run(folder)
    path = Path(open_client(tracking_uri()).download_artifacts(run.info.run_id, history.HISTORY))
    packed = history.unpack(path.read_bytes(), "it")
    assert packed.metrics == (LOSS, REWARD)
    for name, place in packed.points():
        columns = zip(packed.step[place], packed.value[place], packed.time_ms[place], strict=True)
        assert list(columns) == points(folder, name)


def test_a_second_look_sends_nothing(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_life(tiny_spec, folder)
    assert unsent(folder, tracking_uri())
    assert sent(folder) == 2 * 5
    assert not unsent(folder, tracking_uri())
    client = open_client(tracking_uri())
    for name in WRITES:
        monkeypatch.setattr(client, name, lambda *args, **kwargs: pytest.fail("sent again"))
    assert ship(folder, tracking_uri(), client) == 0


def test_a_line_that_a_kill_cut_off_is_not_waited_for(folder: Path, tiny_spec: RunSpec) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    log(recorder, 0)
    with recorder.spool.path.open("a") as file:
        file.write('{"step": 1, "time_ms"')
    assert unsent(folder, tracking_uri())
    sent(folder)
    assert not unsent(folder, tracking_uri())
    again = Recorder(tiny_spec, {}, folder)
    log(again, 1)
    assert steps(folder) == [0, 1]


def test_a_file_that_only_seemed_to_arrive_is_sent_again_at_the_end(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    client = open_client(tracking_uri())
    with monkeypatch.context() as patch:
        patch.setattr(client, "log_artifact", lambda *_: None)
        ship(folder, tracking_uri(), client)
    assert not unsent(folder, tracking_uri())
    recorder.finish(FINISHED)
    run = mlflow_run(folder)
    found = {one.path for one in client.list_artifacts(run.info.run_id)}
    assert {"config.json", "requirements.txt", history.HISTORY} <= found


def test_another_store_gets_all_of_it(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_life(tiny_spec, folder)
    before = points(folder, REWARD)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder.parent.parent}/other.db")
    assert unsent(folder, tracking_uri())
    assert points(folder, REWARD) == before


def test_a_run_that_a_user_deletes_while_it_trains_is_recorded_anew(folder: Path, tiny_spec: RunSpec) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    log(recorder, 0, 1)
    old = mlflow_run(folder).info.run_id
    open_client(tracking_uri()).delete_run(old)
    log(recorder, 2)
    recorder.finish(FINISHED)
    assert steps(folder) == [0, 1, 2]
    assert mlflow_run(folder).info.run_id != old
    assert mlflow_run(folder).info.status == "FINISHED"


@pytest.mark.parametrize("remembers", [True, False])
def test_a_result_that_a_user_deleted_is_on_disk_and_comes_back(
    folder: Path, tiny_spec: RunSpec, remembers: bool
) -> None:
    whole_life(tiny_spec, folder)
    before = mlflow_run(folder)
    open_client(tracking_uri()).delete_run(before.info.run_id)
    if remembers:
        assert forget_lost([folder], tracking_uri()) == [folder]
    else:
        (folder / FOLDER / "shipped.json").unlink()
    sent(folder)
    [after] = all_runs(ViewType.ACTIVE_ONLY)
    assert (after.info.status, after.data.metrics) == ("FINISHED", before.data.metrics)
    assert after.data.tags[schema.TAG_FILES] == "complete"
    assert not unsent(folder, tracking_uri())
    assert forget_lost([folder], tracking_uri()) == []


def test_what_is_known_once_training_begins_becomes_a_tag(folder: Path, tiny_spec: RunSpec) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.tag(schema.TAG_WARM_START, "0123456789ab")
    log(recorder, 0)
    with pytest.raises(ValueError, match=schema.TAG_STATUS):
        recorder.tag(schema.TAG_STATUS, schema.DONE)
    recorder.finish(FINISHED)
    assert mlflow_run(folder).data.tags[schema.TAG_WARM_START] == "0123456789ab"


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "link/x", "gone.json"])
@pytest.mark.parametrize("text", ["", "not ours"])
def test_only_files_of_the_run_are_uploaded(folder: Path, tiny_spec: RunSpec, name: str, text: str) -> None:
    (folder.parent.parent / "secret").write_text("s")
    (folder / "link").symlink_to(folder.parent.parent)
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.spool.add(recorder_module.Artifact(name, text if name != "gone.json" else ""))
    recorder.finish(FINISHED)
    run = mlflow_run(folder)
    found = {one.path for one in open_client(tracking_uri()).list_artifacts(run.info.run_id)}
    assert found == {"config.json", "requirements.txt", history.HISTORY}


def test_a_record_with_a_strange_name_is_refused(folder: Path, tiny_spec: RunSpec) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    path = recorder.spool.path
    path.write_text(path.read_text().replace(recorder.record_name, "x' OR 'a' = 'a"))
    with pytest.raises(UserError, match="which this program did not write"):
        upload([folder], tracking_uri())


def test_the_status_of_a_continued_run_begins_where_it_was(folder: Path, tiny_spec: RunSpec) -> None:
    first = Recorder(tiny_spec, {}, folder)
    first.begin(None)
    log(first, 0, 1, 2)
    Recorder(tiny_spec, {}, folder)
    status = read_status(folder)
    assert (status["status"], status["step"]) == (schema.RUNNING, 2)


def test_a_run_that_cannot_be_sent_stops_no_other(workspace: Path, tiny_spec: RunSpec) -> None:
    folders = [workspace / "runs" / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
        recorder = Recorder(tiny_spec, {}, folder)
        log(recorder, 0)
        recorder.finish(FINISHED)
    path = folders[0] / FOLDER / "0001.jsonl"
    path.write_text(path.read_text().replace('"record": "', '"record": "-', 1))
    with pytest.raises(UserError, match="run a could not be uploaded"):
        upload(folders, tracking_uri())
    assert not unsent(folders[1], tracking_uri())


def test_the_last_attempt_s_words_stand(folder: Path, tiny_spec: RunSpec) -> None:
    for version in ("v1", "v2"):
        log(Recorder(tiny_spec, {schema.TAG_CODE_VERSION: version}, folder), 0)
    record_end(folder, schema.PARTIAL, "interrupted: killed")
    assert mlflow_run(folder).data.tags[schema.TAG_CODE_VERSION] == "v2"


def test_a_tag_says_that_all_files_have_come(folder: Path, tiny_spec: RunSpec) -> None:
    first = Recorder(tiny_spec, {}, folder)
    first.interrupt("cancelled")
    assert mlflow_run(folder).data.tags[schema.TAG_FILES] == "complete"
    second = Recorder(tiny_spec, {}, folder)
    assert schema.TAG_FILES not in mlflow_run(folder).data.tags
    second.finish(FINISHED)
    assert mlflow_run(folder).data.tags[schema.TAG_FILES] == "complete"


def test_the_end_that_others_write_is_sent(folder: Path, tiny_spec: RunSpec) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    log(recorder, 0, 1)
    sent(folder)
    record_end(folder, schema.PARTIAL, "interrupted: killed")
    assert mlflow_run(folder).info.status == "KILLED"
    again = Recorder(tiny_spec, {}, folder)
    assert mlflow_run(folder).info.status == "RUNNING"
    log(again, 2)
    again.finish(FINISHED)
    assert steps(folder) == [0, 1, 2]
    assert len(all_runs()) == 1


def test_a_result_that_is_deleted_before_its_files_have_come_blocks_nothing(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    log(recorder, 0, 1)
    recorder.finish(FINISHED)
    with monkeypatch.context() as patch, pytest.raises(MlflowException, match="away"):

        def away(*_: object) -> None:
            raise MlflowException("the store of files is away")

        patch.setattr("cppo_lab.tracking.upload._Artifacts.send", away)
        sent(folder)
    [run] = all_runs()
    assert run.info.status == "FINISHED"
    assert unsent(folder, tracking_uri())
    open_client(tracking_uri()).delete_run(run.info.run_id)
    sent(folder)
    assert not unsent(folder, tracking_uri())
    [again] = all_runs(ViewType.ACTIVE_ONLY)
    assert again.data.tags[schema.TAG_FILES] == "complete"


def test_an_experiment_that_is_deleted_does_not_hold_the_others_up(folder: Path, tiny_spec: RunSpec) -> None:
    client = open_client(tracking_uri())
    client.delete_experiment(client.create_experiment("cppo-verl"))
    verl = compose([*TINY[1:], "core=verl", "model=tiny_qwen3"]).run
    folders = [folder.with_name(verl.run_id), folder]
    for spec, path in zip((verl, tiny_spec), folders, strict=True):
        path.mkdir(exist_ok=True)
        recorder = Recorder(spec, {}, path)
        recorder.begin(None)
        recorder.finish(FINISHED)
    with pytest.raises(UserError, match="cppo-verl"):
        upload(folders, tracking_uri())
    assert [run.info.status for run in all_runs()] == ["FINISHED"]


def test_a_step_of_a_damaged_line_that_is_trained_again_is_recorded_once(
    folder: Path, tiny_spec: RunSpec
) -> None:
    first = Recorder(tiny_spec, {}, folder)
    first.begin(None)
    log(first, 0, 1, 2, 3, 4)
    first.interrupt("by a test")
    before = points(folder, REWARD)
    [path] = (folder / FOLDER).glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"step": 2', b'#step": 2'))
    second = Recorder(tiny_spec, {}, folder)
    second.begin(1)
    log(second, 2, 3)
    assert points(folder, REWARD) == before  # while it trains
    log(second, 4, 5)
    second.finish(FINISHED)
    for _ in range(2):
        assert points(folder, REWARD)[:5] == before
        assert steps(folder) == steps(folder, LOSS) == [0, 1, 2, 3, 4, 5]
        (folder / FOLDER / "shipped.json").unlink()  # it may be lost
    assert len(all_runs()) == 1


@pytest.mark.parametrize("lost", [(), ("shipped.json",)])
@pytest.mark.parametrize("attempts", [0, 1, 2])
def test_a_restored_folder_doubles_no_step(
    folder: Path, tiny_spec: RunSpec, attempts: int, lost: tuple[str, ...]
) -> None:
    """Of a copy made after so many further attempts; the store has the steps that were trained since."""
    copy = folder.with_name("copy")
    first = Recorder(tiny_spec, {}, folder)
    first.begin(None)
    log(first, 0)
    for number in (1, 2, 3):
        if number == attempts + 1:
            sent(folder)
            shutil.copytree(folder, copy)
        attempt = Recorder(tiny_spec, {}, folder)
        attempt.begin(0)
        log(attempt, number)
    before = points(folder, REWARD)
    shutil.rmtree(folder)
    copy.rename(folder)
    for name in lost:
        (folder / FOLDER / name).unlink()
    again = Recorder(tiny_spec, {}, folder)
    again.begin(0)
    for step in range(1, 6):
        log(again, step)
        sent(folder)
    again.finish(FINISHED)
    assert points(folder, REWARD)[:4] == before
    assert steps(folder) == steps(folder, LOSS) == [0, 1, 2, 3, 4, 5]


def test_a_copied_folder_that_is_trained_in_both_places_doubles_no_step(
    folder: Path, tiny_spec: RunSpec
) -> None:
    first = Recorder(tiny_spec, {}, folder)
    first.begin(None)
    log(first, 0)
    first.interrupt("by a test")
    folders = [folder, folder.parent.with_name("copy") / folder.name]
    shutil.copytree(*folders)
    recorders = [Recorder(tiny_spec, {}, place) for place in folders]
    for recorder in recorders:
        recorder.begin(0)
    for turn, last in ((0, 2), (1, 4), (0, 5), (1, 5)):  # one is ahead, then the other
        log(recorders[turn], *range(1, last + 1))
        sent(folders[turn])
    for turn in (1, 0):
        recorders[turn].finish(FINISHED)
        assert steps(folders[turn]) == steps(folders[turn], LOSS) == [0, 1, 2, 3, 4, 5]
    assert len(all_runs()) == 1


def test_points_that_the_store_has_lost_are_sent_again_at_the_end(folder: Path, tiny_spec: RunSpec) -> None:
    """As when its database is put back to an older copy while the run trains. Some are no numbers, one is twice."""
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    log(recorder, 0)
    sent(folder)
    database = sqlite_file(tracking_uri())
    assert database is not None
    backup(database, folder / "old.db")
    recorder.log(1, {REWARD: math.nan, LOSS: math.inf})
    log(recorder, 2, 3)
    sent(folder)
    backup(folder / "old.db", database)
    client, run = open_client(tracking_uri()), mlflow_run(folder)
    # By somebody else: the number of points alone would hide one that is lost.
    client.log_metric(run.info.run_id, REWARD, 0.5, step=0)
    log(recorder, 4)
    recorder.finish(FINISHED)
    assert mlflow_run(folder).data.tags[schema.TAG_FILES] == "complete"
    assert sorted(steps(folder)) == [0, 0, 1, 2, 3, 4]
    assert points(folder, LOSS)[1][1] > 1e308
    assert [step for step, _ in kept_history(folder)] == steps(folder, LOSS) == [0, 1, 2, 3, 4]


def test_a_run_whose_points_the_store_does_not_keep_is_not_complete(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    log(recorder, 0, 1, 2)
    recorder.finish(FINISHED)
    client = open_client(tracking_uri())
    real = client.log_batch

    def forgetful(mlflow_id: str, metrics: Any = (), **named: Any) -> None:
        real(mlflow_id, metrics=[point for point in metrics if point.step != 1], **named)

    monkeypatch.setattr(client, "log_batch", forgetful)
    with pytest.raises(MlflowException, match="it accepted 6 points and lacks 2 of them"):
        ship(folder, tracking_uri(), client)
    [run] = all_runs()
    assert schema.TAG_FILES not in run.data.tags
    assert unsent(folder, tracking_uri())
    assert steps(folder) == steps(folder, LOSS) == [0, 1, 2]  # once it does
    assert mlflow_run(folder).data.tags[schema.TAG_FILES] == "complete"
    assert not unsent(folder, tracking_uri())


def backup(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(source)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)


def test_an_end_that_a_full_disk_took_late_leaves_the_history_of_the_store(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    log(recorder, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(recorder.spool, "_write", full)
        log(recorder, 2)
        recorder.finish(FINISHED)
    client = open_client(tracking_uri())
    ship(folder, tracking_uri(), client, recorder.spool.unwritten)
    before = kept_history(folder)
    assert len(before) == 3
    assert record_end(folder, schema.DONE, "")  # once there is room
    assert kept_history(folder) == before
    assert steps(folder) == [0, 1, 2]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def kept_history(folder: Path) -> list[tuple[int, float]]:
    """(step, value) of the reward in the artifact that the store has."""
    run = mlflow_run(folder)
    path = Path(open_client(tracking_uri()).download_artifacts(run.info.run_id, history.HISTORY))
    packed = history.unpack(path.read_bytes(), "it")
    places = dict(packed.points())
    return list(zip(packed.step[places[REWARD]].tolist(), packed.value[places[REWARD]].tolist(), strict=True))
