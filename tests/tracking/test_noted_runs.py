"""Which of several runs stays or is shown: parents of a sweep, attempts at a run, a result and its replacement."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cppo_lab import schema
from cppo_lab.tracking import parents
from cppo_lab.tracking.parents import SweepText, ensure_parent, noted_runs, update_parent
from cppo_lab.tracking.upload import retire

SWEEP = schema.sweep_tag("s")


def stored(variant: str, state: str) -> Any:
    """A run as the store has it."""
    tags = {SWEEP: variant, schema.TAG_RUN_ID: "r", schema.TAG_STATUS: state}
    return SimpleNamespace(data=SimpleNamespace(tags=tags, metrics={}))


@pytest.mark.parametrize(
    ("newest_first", "shown"),
    [
        ([("b", schema.DONE), ("a", schema.DONE)], "b"),
        ([("b", schema.COLLAPSED), ("a", schema.DONE)], "b"),
        ([("b", schema.RUNNING), ("a", schema.DONE)], "a"),  # until the new one is there
        ([("c", schema.FAILED), ("b", schema.DONE), ("a", schema.DONE)], "b"),
        ([("b", schema.RUNNING), ("a", schema.FAILED)], "b"),
    ],
)
def test_the_newest_result_is_shown_or_the_newest_attempt(
    monkeypatch: pytest.MonkeyPatch, newest_first: list[tuple[str, str]], shown: str
) -> None:
    runs = [stored(*one) for one in newest_first]
    monkeypatch.setattr(parents, "experiment_runs", lambda client, experiment, tag: iter(runs))
    noted = noted_runs(Mock(), "cppo-mini", "s")["r"]
    assert (noted.variant, noted.state) == (shown, dict(newest_first)[shown])


@pytest.mark.parametrize(
    ("planned", "count"), [({}, "1 (1 done)"), ({"r": "queued", "s": "missing"}, "2 (1 queued, 1 missing)")]
)
def test_of_a_planned_run_the_planner_knows_the_state(
    monkeypatch: pytest.MonkeyPatch, planned: dict[str, str], count: str
) -> None:
    run = stored("cppo", schema.DONE)
    run.data.metrics[schema.validation_metric(schema.MEAN)] = 0.5
    monkeypatch.setattr(parents, "experiment_runs", lambda client, experiment, tag: iter([run]))
    client = Mock()
    client.get_run.return_value.data = SimpleNamespace(tags={}, metrics={})
    update_parent(client, "p", SweepText("s", "T", "Q?"), planned)
    [note] = [call.args[2] for call in client.set_tag.call_args_list]
    assert f"- runs: {count}\n" in note
    assert client.log_batch.called == (not planned)  # the mean of its variant


@pytest.mark.parametrize(
    ("status", "gone"),
    [(schema.RUNNING, False), (schema.PARTIAL, False), (schema.DONE, True), (schema.COLLAPSED, True)],
)
def test_a_result_is_deleted_once_the_run_that_replaces_it_has_finished(status: str, gone: bool) -> None:
    tags = {schema.TAG_RUN_ID: "r", schema.TAG_REPLACES: "old", schema.TAG_STATUS: status}
    runs = {
        "new": SimpleNamespace(data=SimpleNamespace(tags=tags)),
        "old": SimpleNamespace(
            info=SimpleNamespace(lifecycle_stage="active"),
            data=SimpleNamespace(tags={schema.TAG_RUN_ID: "r"}),
        ),
    }
    client = Mock()
    client.get_run.side_effect = runs.__getitem__
    retire(client, "new")
    assert [call.args for call in client.delete_run.call_args_list] == [("old",)] * gone
    assert client.set_tag.called == client.delete_tag.called == gone


@pytest.mark.parametrize("order", [("young", "old"), ("old", "young")])
def test_of_several_parents_the_oldest_stays_and_takes_the_runs_of_the_others(order: tuple[str, str]) -> None:
    began = {"old": 1, "young": 2}
    found = [SimpleNamespace(info=SimpleNamespace(run_id=one, start_time=began[one])) for one in order]
    child = SimpleNamespace(info=SimpleNamespace(run_id="child"))
    children = {
        f"tags.`{schema.TAG_PARENT}` = 'young'": [child],
        f"tags.`{schema.TAG_SWEEP_PARENT}` = 's'": found,
    }
    client = Mock()
    client.search_runs.side_effect = lambda experiments, condition: children.get(condition, [])
    assert ensure_parent(client, "http://store", "1", "s") == "old"
    assert [call.args for call in client.set_tag.call_args_list] == [("child", schema.TAG_PARENT, "old")]
    assert [call.args for call in client.delete_run.call_args_list] == [("young",)]
    assert not client.create_run.called
