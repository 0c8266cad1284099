"""The parents of sweeps: one each, whoever makes them; their descriptions, and what nests below them."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from cppo_lab import attempt, schema
from cppo_lab.core_records import core_names
from cppo_lab.reports.figures.palette import PALETTES, PAPER
from cppo_lab.reports.names import in_order
from cppo_lab.store.address import tracking_uri
from cppo_lab.sweep import parents as sweep_parents
from cppo_lab.sweep.declare import Sweep, load_sweep
from cppo_lab.sweep.launch import launch
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking import parents
from cppo_lab.tracking.experiment_note import MARK, describe_experiment, experiment_note
from cppo_lab.tracking.markdown import code, escaped
from cppo_lab.tracking.parents import variant_means
from cppo_lab.tracking.sweep_note import MOST, NotedRun, SweepText, sweep_note, verdict_of, with_verdict
from cppo_lab.tracking.views import OVERVIEW, TAG_PREFIX, _saved_state, means_key, save_views
from tests.plausible import train
from tests.waiting import CEILING_SECONDS

TEXT = SweepText("s", "A title", "A question?", ("Table 1",))


@pytest.fixture
def uri(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store, and training that takes no time."""
    monkeypatch.setattr(attempt, "load_core", lambda name: train)
    return tracking_uri()


def launch_quickstart(uri: str, *overrides: str) -> None:
    launch(make_plan(load_sweep("quickstart"), ["launcher=inline", "variant=cppo", *overrides]), uri)


def experiment_id(uri: str, name: str = "cppo-mini") -> str:
    return str(MlflowClient(uri).get_experiment_by_name(name).experiment_id)


def all_runs(uri: str) -> list:  # type: ignore[type-arg]
    return list(MlflowClient(uri).search_runs([experiment_id(uri)]))


def noted(variant: str, seed: int = 0, state: str = "done", model: str = "m", **params: str) -> NotedRun:
    keys = {key.replace("__", "."): value for key, value in params.items()}
    return NotedRun(
        f"{variant}{seed}",
        variant,
        state,
        variant,
        model,
        str(seed),
        "10",
        "f" * 32,
        0.5,
        {"seed": str(seed), **keys},
    )


def test_a_launch_nests_its_runs_and_describes_the_sweep(uri: str) -> None:
    launch_quickstart(uri)
    parent, *others = [one for one in all_runs(uri) if schema.TAG_SWEEP_PARENT in one.data.tags]
    assert not others
    assert (parent.info.status, parent.info.run_name) == ("FINISHED", "sweep quickstart")
    children = [one for one in all_runs(uri) if schema.TAG_RUN_ID in one.data.tags]
    assert [one.data.tags[schema.TAG_PARENT] for one in children] == [parent.info.run_id] * 2
    assert {one.data.tags[schema.TAG_COLOUR] for one in children} == {"#0052D9"}
    note = parent.data.tags[schema.TAG_NOTE]
    assert note.startswith("## Quickstart\n")
    assert "runs: 2 (2 done)" in note
    assert all(one.info.run_id in note for one in children)
    assert (
        experiment_note("mini") == MlflowClient(uri).get_experiment(experiment_id(uri)).tags[schema.TAG_NOTE]
    )


def test_a_second_launch_changes_nothing_and_a_wider_one_adds(uri: str) -> None:
    launch_quickstart(uri, "seed=0")
    before = {one.info.run_id: one.data.tags for one in all_runs(uri)}
    launch_quickstart(uri, "seed=0")
    assert {one.info.run_id: one.data.tags for one in all_runs(uri)} == before
    launch_quickstart(uri, "seed=1")  # the description keeps what this launch has not
    (note,) = [
        one.data.tags[schema.TAG_NOTE] for one in all_runs(uri) if schema.TAG_SWEEP_PARENT in one.data.tags
    ]
    assert "runs: 2 (2 done)" in note


def test_a_run_of_two_sweeps_stays_with_the_first_and_an_orphan_finds_a_parent(
    uri: str, workspace: Path
) -> None:
    launch_quickstart(uri, "seed=0")
    (child,) = [one for one in all_runs(uri) if schema.TAG_RUN_ID in one.data.tags]
    first = child.data.tags[schema.TAG_PARENT]
    (workspace / "other.yaml").write_text(
        "title: Other\nquestion: Why?\nmodels: [mini_quick]\nvariants:\n  ours: {rule: cppo}\naxes:\n  seed: [0]\n"
    )
    other = make_plan(load_sweep("./other.yaml"), ["launcher=inline"])
    launch(other, uri)
    client = MlflowClient(uri)
    tags = client.get_run(child.info.run_id).data.tags
    assert (tags[schema.TAG_PARENT], tags[schema.sweep_tag("other")]) == (first, "ours")
    client.delete_tag(child.info.run_id, schema.TAG_PARENT)
    launch(other, uri)
    parent = client.get_run(client.get_run(child.info.run_id).data.tags[schema.TAG_PARENT])
    assert parent.data.tags[schema.TAG_SWEEP_PARENT] == "other"


def test_launchers_at_once_come_to_one_parent(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over a server, which knows no lock: all look, then all create."""
    launch_quickstart(uri, "seed=0")
    client, number = MlflowClient(uri), experiment_id(uri)
    together, real = threading.Barrier(3), parents._parents

    def slow(*arguments: object) -> list:  # type: ignore[type-arg]
        found = real(*arguments)  # type: ignore[arg-type]
        if not found:
            together.wait(CEILING_SECONDS)
        return found

    monkeypatch.setattr(parents, "_parents", slow)
    threads = [
        threading.Thread(target=parents._ensure_parent, args=(client, number, "raced")) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    kept = parents.ensure_parent(client, uri, number, "raced")
    assert [one.info.run_id for one in real(client, number, "raced")] == [kept]


def test_a_parent_that_another_launcher_removes_at_once_is_no_fault(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_quickstart(uri, "seed=0")
    client, number = MlflowClient(uri), experiment_id(uri)
    real = client.set_terminated

    def late(mlflow_id: str, status: str) -> None:
        monkeypatch.undo()
        older = client.create_run(number, tags={schema.TAG_SWEEP_PARENT: "raced"}, start_time=1)
        assert parents._ensure_parent(client, number, "raced") == older.info.run_id
        real(mlflow_id, status)

    monkeypatch.setattr(client, "set_terminated", late)
    [kept] = {parents._ensure_parent(client, number, "raced") for _ in range(2)}
    assert [one.info.run_id for one in parents._parents(client, number, "raced")] == [kept]


def test_a_tag_that_another_launcher_adds_at_once_is_no_fault(
    uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times, real = [], sweep_parents.save_views

    def refused_once(*arguments: Any) -> None:
        times.append(1)
        if len(times) == 1:
            raise MlflowException("UNIQUE constraint failed")
        real(*arguments)

    monkeypatch.setattr(sweep_parents, "save_views", refused_once)
    launch_quickstart(uri, "seed=0")
    assert len(times) > 1
    assert "did not accept" not in capsys.readouterr().err


def test_the_oldest_parent_takes_the_runs_of_the_others(uri: str) -> None:
    launch_quickstart(uri, "seed=0")
    client, number = MlflowClient(uri), experiment_id(uri)
    tags = {schema.TAG_SWEEP_PARENT: "two"}
    young = client.create_run(number, tags=tags).info.run_id
    old = client.create_run(number, tags=tags, start_time=1).info.run_id
    child = client.create_run(number, tags={schema.TAG_PARENT: young}).info.run_id
    assert parents.ensure_parent(client, uri, number, "two") == old
    assert client.get_run(child).data.tags[schema.TAG_PARENT] == old
    assert client.get_run(young).info.lifecycle_stage == "deleted"


def test_a_store_that_is_away_for_the_parents_costs_a_line(
    uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*arguments: object) -> None:
        raise MlflowException("no answer")

    monkeypatch.setattr(sweep_parents, "ensure_parent", away)
    launch_quickstart(uri, "seed=0")
    assert "did not accept the parents of the sweeps: no answer" in capsys.readouterr().err
    (only,) = all_runs(uri)
    assert only.data.tags[schema.TAG_STATUS] == schema.DONE


def test_the_note_says_what_is_compared() -> None:
    runs = [
        noted("a", 0, rule__name="a", rule__x="1", same="1"),
        noted("a", 1, rule__name="a", rule__x="1", same="1"),
        noted("b", 0, "missing", rule__name="b", same="1"),
    ]
    note = sweep_note(TEXT, runs, "7")
    assert "runs: 3 (2 done, 1 missing)" in note
    assert "| a &emsp;| `a` &emsp;| `rule.x=1` |" in note
    assert "| b &emsp;| `b` &emsp;| - |" in note
    assert "same" not in note
    assert f"[50.0 %](#/experiments/7/runs/{'f' * 32}?workflowType=machine_learning)" in note
    assert "Of the paper&#58;" not in note
    assert "Table 1" in note


@pytest.mark.parametrize(("count", "whole"), [(1, True), (9, True), (400, False)])
def test_no_note_is_longer_than_mlflow_keeps(count: int, whole: bool) -> None:
    runs = [noted(f"variant {i}", seed, rule__x=str(i)) for i in range(count) for seed in range(3)]
    text = SweepText("s", "T|" * 100, "Q" * 1000)
    note = with_verdict(sweep_note(text, runs, "7"), "V" * 3000)
    assert len(note) <= MOST
    assert sweep_note(text, runs, "7", verdict_of(note)) == note
    assert ("more rows are omitted" not in note) == whole


def test_a_verdict_stays_when_the_note_is_written_anew(uri: str) -> None:
    launch_quickstart(uri, "seed=0")
    client = MlflowClient(uri)
    parent = parents.ensure_parent(client, uri, experiment_id(uri), "quickstart")
    for verdict in ("CPPO wins.", "CPPO **loses**."):
        old = client.get_run(parent).data.tags[schema.TAG_NOTE]
        client.set_tag(parent, schema.TAG_NOTE, with_verdict(old, verdict))
    launch_quickstart(uri, "seed=1")
    note = client.get_run(parent).data.tags[schema.TAG_NOTE]
    assert note.endswith("### Verdict\n\nCPPO **loses**.\n")
    assert note.count("Verdict") == 1


def test_a_report_is_kept_with_the_parent(uri: str, workspace: Path) -> None:
    launch_quickstart(uri, "seed=0")
    client = MlflowClient(uri)
    parent = parents.ensure_parent(client, uri, experiment_id(uri), "quickstart")
    (workspace / "figure.png").write_bytes(b"png")
    parents.log_report(client, parent, [workspace / "figure.png"])
    assert [one.path for one in client.list_artifacts(parent, "report")] == ["report/figure.png"]
    shown = parents.figure(parent, "figure.png", "a [b]")
    assert shown == f"![a &#91;b&#93;](get-artifact?path=report%2Ffigure.png&run_uuid={parent})"


def test_a_users_description_of_the_experiment_stays(uri: str) -> None:
    client = MlflowClient(uri)
    number = client.create_experiment("cppo-mini")
    describe_experiment(client, number, "mini")
    client.set_experiment_tag(number, schema.TAG_NOTE, f"an older one\n\n{MARK}")
    describe_experiment(client, number, "mini")
    assert client.get_experiment(number).tags[schema.TAG_NOTE] == experiment_note("mini")
    client.set_experiment_tag(number, schema.TAG_NOTE, "mine")
    describe_experiment(client, number, "mini")
    assert client.get_experiment(number).tags[schema.TAG_NOTE] == "mine"


@pytest.mark.parametrize("core", core_names())
def test_the_experiments_note_has_every_metric(core: str) -> None:
    note = experiment_note(core)
    assert len(note) < 5000
    assert all(f"`{metric.name.partition('/')[2]}`" in note for metric in schema.METRICS)


def test_views_are_written_once(uri: str) -> None:
    launch_quickstart(uri, "seed=0")
    client, number = MlflowClient(uri), experiment_id(uri)
    before = client.get_experiment(number).tags
    assert TAG_PREFIX + OVERVIEW in before
    assert set(save_views(client, number)) == {
        "Training runs",
        "Sweep quickstart",
        "Sweep quickstart, mean of each variant",
    }
    assert client.get_experiment(number).tags == before
    assert all(len(value) <= 5000 for value in before.values())
    state = _saved_state(before[TAG_PREFIX + means_key("quickstart")])
    assert state is not None
    assert state["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": schema.sweep_tag("quickstart")}]
    sections = [section["name"] for section in state["compareRunSections"]]
    assert (sections[0], sections[-1]) == ("Validation", "System metrics")


def test_means_of_several_models_are_apart(uri: str) -> None:
    launch_quickstart(uri, "seed=0", "model=mini_quick,mini_base")
    tags = MlflowClient(uri).get_experiment(experiment_id(uri)).tags
    state = _saved_state(tags[TAG_PREFIX + means_key("quickstart")])
    assert state is not None
    keys = [key["groupByData"] for key in state["groupBy"]["groupByKeys"]]
    assert keys == [schema.sweep_tag("quickstart"), schema.TAG_MODEL]


OWN_SWEEP = """\
title: T
question: Q?
models: {mini: [mini_small_base]}
variants:
  tight: {rule: cppo, rule.delta: 0.02}
  cppo_kl: {rule: cppo_kl}
  cppo: {rule: cppo}
  loose: {rule: cppo, rule.delta: 0.3}
"""


AXES = "axes: {rule.w_min: [0.7, 0.9]}\n"


@pytest.mark.parametrize(("more", "overrides"), [("", ()), ("", ("variant=loose,cppo_kl",)), (AXES, ())])
def test_colours_are_those_of_the_report(uri: str, more: str, overrides: tuple[str, ...]) -> None:
    Path("own.yaml").write_text(OWN_SWEEP + more, encoding="utf-8")
    sweep = load_sweep("./own.yaml")
    assert isinstance(sweep, Sweep)
    plan = make_plan(sweep, ["launcher=inline", *overrides])
    launch(plan, uri)
    tag = schema.sweep_tag("own")
    found = {
        run.data.tags[tag]: run.data.tags[schema.TAG_COLOUR] for run in all_runs(uri) if tag in run.data.tags
    }
    planned = dict.fromkeys(run.variant for run in plan.runs)
    declared = planned if planned.keys() - sweep.variants.keys() else sweep.variants
    report = PALETTES[PAPER].strokes(in_order(declared))
    assert found == {name: report[name].colour for name in planned}
    assert len(set(found.values())) == len(planned)


def test_the_parent_carries_the_means_of_the_variants(uri: str) -> None:
    launch_quickstart(uri, "seed=0,1")
    client, number = MlflowClient(uri), experiment_id(uri)
    scores: dict[str, list[float]] = {}
    parents = []
    for run in client.search_runs([number]):
        if schema.TAG_SWEEP_PARENT in run.data.tags:
            parents.append(run)
            continue
        mean = next(value for name, value in run.data.metrics.items() if f"/{schema.MEAN}/" in name)
        scores.setdefault(f"{run.data.tags[schema.TAG_MODEL]}/{run.data.tags[schema.TAG_RULE]}", []).append(
            mean
        )
    (parent,) = parents
    assert parent.data.metrics == {
        f"variant_mean/{name}": pytest.approx(sum(values) / len(values)) for name, values in scores.items()
    }


def scored(variant: str, score: float, model: str = "mini_base") -> NotedRun:
    return NotedRun("0" * 12, variant, schema.DONE, "cppo", model, "0", "4", score=score)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("λ=0.9", "β=0.9"),
        ("a=1", "a:1"),
        ("a/b", "a_b"),
        ("λ", "_"),
        (".", ".."),
        ("a.", "a"),
        ("n" * 100, "n" * 101),
        ("n" * 200 + "a", "n" * 200 + "b"),
        ("策略一", "策略二"),
        ("é", "e\u0301"),
    ],
)
def test_two_variants_or_models_have_two_metrics(one: str, other: str) -> None:
    means = variant_means([scored(one, 0.046875), scored(other, 0.015625)])
    assert list(means.values()) == [0.046875, 0.015625]
    means |= variant_means([scored("cppo", 0.5, model=one), scored("cppo", 0.25, model=other)])
    assert list(means.values()) == [0.046875, 0.015625, 0.5, 0.25]
    for name in means:
        assert re.fullmatch(r"variant_mean(/[\w\-. ]{1,100}){2}", name, re.ASCII)
        assert not {"", ".", ".."} & set(name.split("/"))


def test_a_name_that_mlflow_takes_stays_as_it_is() -> None:
    for name in ("cppo w_min 0.8", "_", "n" * 100, "-a.b"):
        assert list(variant_means([scored(name, 0.5)])) == [f"variant_mean/mini_base/{name}"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 1.0 - (x)", "plain 1.0 - (x)"),
        ("<img src=x>", "&#60;img src=x&#62;"),
        ("[a](javascript:b)", "&#91;a&#93;(javascript&#58;b)"),
        ("a|b\n# c", "a&#124;b &#35; c"),
        ("&lt;", "&#38;lt;"),
    ],
)
def test_other_peoples_words_are_no_markup(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_code_keeps_to_its_cell() -> None:
    assert code("a=1") == "`a=1`"
    assert code("a`b|c") == "a&#96;b&#124;c"
