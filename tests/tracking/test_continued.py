"""A run that is killed and continued is one MLflow run, with each point once and at its time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cppo_lab import schema
from cppo_lab.spec import RunSpec
from cppo_lab.store import tracking_uri
from cppo_lab.tracking import recorder as recorder_module
from cppo_lab.tracking.client import attempts, folder_tag, open_client
from cppo_lab.tracking.recorder import Recorder
from cppo_lab.tracking.run_folder import read_status
from cppo_lab.tracking.spool import Spool
from tests.conftest import FINISHED

REWARD, LOSS = "train/reward", "train/loss"


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


@pytest.fixture
def folder(workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a run, whose points are sent at once and measured at times that can be told apart."""
    monkeypatch.setattr(recorder_module, "SHIP_SECONDS", 0.0)
    times = iter(range(1_000, 10_000_000))
    monkeypatch.setattr(recorder_module.time, "time", lambda: next(times))
    path = workspace / "runs" / tiny_spec.run_id
    path.mkdir(parents=True)
    return path


def attempt(spec: RunSpec, folder: Path, continues: str | None = None, **tags: str) -> Recorder:
    return Recorder(spec, tags, tracking_uri(), folder, continues)


def points(recorder: Recorder, metric: str = REWARD) -> list[tuple[int, float, int]]:
    return [
        (p.step, p.value, p.timestamp) for p in recorder.client.get_metric_history(recorder.mlflow_id, metric)
    ]


def log(recorder: Recorder, *numbers: int) -> None:
    for number in numbers:
        recorder.log(number, {REWARD: number / 10, LOSS: -number})


def test_it_goes_on_in_the_same_mlflow_run(folder: Path, tiny_spec: RunSpec) -> None:
    first = attempt(tiny_spec, folder)
    first.begin(None)
    log(first, 0, 1, 2, 3)
    before = points(first)
    first.fail("Killed: ", "traceback")
    second = attempt(tiny_spec, folder, first.mlflow_id)
    second.begin(2)
    log(second, 0, 1, 2)  # the trainer's record, as a core hands it over when it continues
    log(second, 3, 4)  # trained again: step 3 stands as it was measured first
    second.finish(FINISHED)
    assert second.mlflow_id == first.mlflow_id
    assert points(second)[:4] == before
    assert [step for step, _, _ in points(second)] == [0, 1, 2, 3, 4]
    assert [step for step, _, _ in points(second, LOSS)] == [0, 1, 2, 3, 4]
    times = [time for _, _, time in points(second)]
    assert times == sorted(set(times))


def test_tags_reason_and_name_after_reopening(folder: Path, tiny_spec: RunSpec) -> None:
    first = attempt(tiny_spec, folder, **{schema.sweep_tag("main"): "cppo", schema.TAG_CODE_VERSION: "old"})
    first.begin(None)
    log(first, 0)
    first.fail("ValueError: bad", "traceback")
    second = attempt(tiny_spec, folder, first.mlflow_id, **{schema.TAG_CODE_VERSION: "new"})
    run = second.client.get_run(second.mlflow_id)
    assert run.info.status == "RUNNING"
    assert run.info.run_name == f"{tiny_spec.rule.name} {tiny_spec.model.name} s{tiny_spec.seed}"
    assert run.data.tags[schema.TAG_STATUS] == schema.RUNNING
    assert schema.TAG_REASON not in run.data.tags
    assert run.data.tags[schema.TAG_CODE_VERSION] == "new"
    assert run.data.tags[schema.sweep_tag("main")] == "cppo"
    assert run.data.tags[schema.TAG_FOLDER] == folder_tag(folder)
    second.begin(0)
    second.finish(FINISHED)
    [found] = attempts(open_client(tracking_uri()), "cppo-mini", [tiny_spec.run_id])[tiny_spec.run_id]
    assert (found.status, found.outcome, found.reason) == ("FINISHED", schema.DONE, "")


def test_a_run_without_a_checkpoint_begins_anew(folder: Path, tiny_spec: RunSpec) -> None:
    first = attempt(tiny_spec, folder)
    first.begin(None)
    log(first, 0, 1)
    second = attempt(tiny_spec, folder, first.mlflow_id)  # killed: it could not say so itself
    second.begin(None)
    assert second.mlflow_id != first.mlflow_id
    old = first.client.get_run(first.mlflow_id)
    assert old.info.status == "KILLED"
    assert old.data.tags[schema.TAG_STATUS] == schema.PARTIAL
    assert "there was no checkpoint to continue from" in old.data.tags[schema.TAG_REASON]
    log(second, 0)
    second.finish(FINISHED)
    assert [step for step, _, _ in points(second)] == [0]
    assert [step for step, _, _ in points(first)] == [0, 1]  # what it measured stands
    newest, older = attempts(second.client, "cppo-mini", [tiny_spec.run_id])[tiny_spec.run_id]
    assert (newest.mlflow_id, older.mlflow_id) == (second.mlflow_id, first.mlflow_id)


def test_an_attempt_that_recorded_nothing_is_gone_on_with(folder: Path, tiny_spec: RunSpec) -> None:
    first = attempt(tiny_spec, folder)
    first.begin(None)
    second = attempt(tiny_spec, folder, first.mlflow_id)
    second.begin(None)
    assert second.mlflow_id == first.mlflow_id


def dying(real: Callable[..., Any], left: Iterator[int], after: bool) -> Callable[..., Any]:
    """`real` until `left` is used up; then it kills, `after` its work or before."""

    def call(*args: Any, **kwargs: Any) -> Any:
        alive = next(left, None) is not None
        if alive or after:
            result = real(*args, **kwargs)
        if not alive:
            raise Killed
        return result

    return call


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_write_it_continues_with_each_point_once(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Killed at every write to the spool or to the store in turn.

    The spool may hold points that the store has not: they are sent again. The store never has one that the spool has
    not, since a row is flushed to the spool before any of its points is sent.
    """
    for survived in range(7):
        place = folder / str(survived)
        place.mkdir()
        first = attempt(tiny_spec, place)
        first.begin(None)
        with monkeypatch.context() as patch:
            left = iter(range(survived))
            patch.setattr(Spool, "add", dying(Spool.add, left, after))
            patch.setattr(first.client, "log_batch", dying(first.client.log_batch, left, after))
            with pytest.raises(Killed):
                log(first, 0, 1, 2, 3, 4)
        stored = points(first)
        spooled = [row.step for row in Spool(place, keep=True).earlier]
        assert {step for step, _, _ in stored} <= set(spooled)
        second = attempt(tiny_spec, place, first.mlflow_id)
        second.begin(0)
        log(second, *range(5))
        second.finish(FINISHED)
        assert [(step, value) for step, value, _ in points(second)] == [(n, n / 10) for n in range(5)]
        assert [(step, value) for step, value, _ in points(second, LOSS)] == [(n, -n) for n in range(5)]
        assert set(stored) <= set(points(second))  # sent twice, they are the same points


def test_a_row_that_was_torn_is_measured_again(folder: Path, tiny_spec: RunSpec) -> None:
    first = attempt(tiny_spec, folder)
    first.begin(None)
    log(first, 0, 1)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "time_ms"')
    second = attempt(tiny_spec, folder, first.mlflow_id)
    second.begin(1)
    log(second, 2)
    second.finish(FINISHED)
    assert [(step, value) for step, value, _ in points(second)] == [(0, 0.0), (1, 0.1), (2, 0.2)]


def test_what_a_dead_attempt_could_not_send_is_sent_with_its_times(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "SHIP_SECONDS", 1e9)
    first = attempt(tiny_spec, folder)
    first.begin(None)
    log(first, 0, 1, 2)
    assert points(first) == []
    times = [row.time_ms for row in Spool(folder, keep=True).earlier]
    second = attempt(tiny_spec, folder, first.mlflow_id)
    second.begin(2)
    second.finish(FINISHED)
    assert [time for _, _, time in points(second)] == times


def test_the_status_of_a_continued_run_begins_where_it_was(folder: Path, tiny_spec: RunSpec) -> None:
    first = attempt(tiny_spec, folder)
    first.begin(None)
    log(first, 0, 1, 2)
    attempt(tiny_spec, folder, first.mlflow_id)
    status = read_status(folder)
    assert (status["status"], status["step"]) == (schema.RUNNING, 2)
