"""The parents of sweeps: one each, whoever makes them; their descriptions, reports, and what nests below them. And the
saved view of an experiment. In a browser: tests/browser/test_mlflow_page.py.
"""

import base64
import json
import math
import re
import zlib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from unittest.mock import DEFAULT, Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.reports.figures.drawing import PAPER
from cppo_lab.reports.names import in_order
from cppo_lab.sweep import launch as sweep_launch
from cppo_lab.sweep.launch import launch
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking import page
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.page import (
    MOST,
    ReportLog,
    SweepText,
    ensure_parent,
    keep_report,
    parse_registrations,
    sweep_note,
    update_parent,
    variant_means,
    verdict_markdown,
)
from cppo_lab.tracking.read import newest_of_each, newest_runs, stored_run
from tests.conftest import user_error
from tests.jobs import planned
from tests.recorded import mlflow_client, mlflow_runs

TEXT = SweepText("quickstart", "A title", "A question? <b>", ("Table 1",))
MEAN = schema.validation_metric(schema.MEAN)


@pytest.fixture(autouse=True)
def uri(workspace: Path, no_training: None) -> str:
    """A store."""
    return tracking_uri()


@pytest.fixture
def client(uri: str) -> MlflowClient:
    return MlflowClient(uri)


@pytest.fixture
def number(client: MlflowClient) -> str:
    """Of an experiment without runs."""
    return str(client.create_experiment("cppo-mini"))


def launch_sweep(name: str, *overrides: str) -> Plan:
    plan = planned([name, "launcher=inline", *overrides])
    launch(plan, tracking_uri())
    return plan


def launch_quickstart(seed: int = 0) -> None:
    launch_sweep("quickstart", "variant=cppo", f"seed={seed}")


def parent_of(sweep: str = "quickstart") -> Run:
    [parent] = [
        run
        for run in mlflow_runs(tag=schema.TAG_SWEEP_PARENT)
        if run.data.tags[schema.TAG_SWEEP_PARENT] == sweep
    ]
    return parent


def note_of(sweep: str = "quickstart") -> str:
    return str(parent_of(sweep).data.tags[schema.TAG_NOTE])


def test_a_launch_nests_its_runs_and_describes_the_sweep_and_a_wider_one_adds() -> None:
    before: dict[str, dict[str, str]] = {}
    for _ in range(2):  # the second changes nothing
        launch_quickstart()
        tags = {run.info.run_id: run.data.tags for run in mlflow_runs(tag="mlflow.runName")}
        assert before in ({}, tags)
        before = tags
    launch_quickstart(seed=1)  # the description keeps the runs of the first launch
    parent, children = parent_of(), mlflow_runs()
    assert (parent.info.status, parent.info.run_name) == ("FINISHED", "sweep quickstart")
    assert [run.data.tags[schema.TAG_PARENT] for run in children] == [parent.info.run_id] * 2
    assert {run.data.tags[schema.TAG_COLOUR] for run in children} == {"#0052D9"}
    assert note_of().startswith("## Quickstart\n") and "runs: 2 (2 done)" in note_of()
    experiment = mlflow_client().get_experiment_by_name("cppo-mini")
    assert experiment.tags[schema.TAG_NOTE] == core_of("mini").note
    [model] = {run.data.tags[schema.TAG_MODEL] for run in children}
    mean = fmean(value for run in children for name, value in run.data.metrics.items() if "/mean/" in name)
    assert parent.data.metrics == {f"variant_mean/{model}/cppo": pytest.approx(mean)}


def test_a_run_of_two_sweeps_stays_with_the_first_and_an_orphan_finds_a_parent() -> None:
    launch_quickstart()
    Path("other.yaml").write_text(
        "title: Other\nquestion: Why?\nmodels: [mini_quick]\nvariants:\n  ours: {rule: cppo}\naxes:\n  seed: [0]\n"
    )
    launch_sweep("./other.yaml")
    [child], first = mlflow_runs(), parent_of().info.run_id
    assert child.data.tags[schema.TAG_PARENT] == first
    assert child.data.tags[schema.sweep_tag("other")] == "ours"
    mlflow_client().delete_run(first)
    launch_quickstart()
    [child] = mlflow_runs()
    assert child.data.tags[schema.TAG_PARENT] == parent_of().info.run_id != first


def test_the_oldest_parent_takes_the_runs_of_the_others(client: MlflowClient, number: str) -> None:
    tags = {schema.TAG_SWEEP_PARENT: "s"}
    young, old = (client.create_run(number, tags=tags, start_time=time).info.run_id for time in (None, 1))
    child = client.create_run(number, tags={schema.TAG_PARENT: young}).info.run_id
    assert ensure_parent(client, number, "s") == old
    assert client.get_run(child).data.tags[schema.TAG_PARENT] == old
    assert client.get_run(young).info.lifecycle_stage == "deleted"


def test_a_parent_that_another_launcher_removes_at_once_is_no_fault(
    client: MlflowClient, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "exclusive", nullcontext)  # as for a server
    real = client.set_terminated

    def late(mlflow_id: str, status: str) -> None:
        client.set_terminated = real
        older = client.create_run(number, tags={schema.TAG_SWEEP_PARENT: "s"}, start_time=1)
        assert ensure_parent(client, number, "s") == older.info.run_id
        real(mlflow_id, status)

    client.set_terminated = late
    [oldest] = {ensure_parent(client, number, "s") for _ in range(2)}
    assert parent_of("s").info.run_id == oldest


@pytest.mark.parametrize(
    "name, times, says",
    [
        ("save_view", 1, ""),  # a tag that another launcher adds at once
        ("ensure_parent", 99, "did not accept the parents of the sweeps: no answer"),
    ],
)
def test_a_store_that_is_away_for_the_parents_costs_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, times: int, says: str
) -> None:
    answers = [MlflowException("no answer")] * times + [DEFAULT] * 9
    monkeypatch.setattr(
        sweep_launch, name, refused := Mock(wraps=getattr(sweep_launch, name), side_effect=answers)
    )
    launch_quickstart()
    printed = capsys.readouterr().err
    assert refused.called and (says in printed if says else "did not accept" not in printed)
    assert [run.data.tags[schema.TAG_STATUS] for run in mlflow_runs()] == [schema.DONE]


def test_the_newest_result_is_shown_or_the_newest_attempt(client: MlflowClient, number: str) -> None:
    shown = {  # of attempts in these states, oldest first
        (schema.DONE, schema.DONE): "1",
        (schema.DONE, schema.COLLAPSED): "1",
        (schema.DONE, schema.RUNNING): "0",  # until the new one is there
        (schema.DONE, schema.DONE, schema.FAILED): "1",
        (schema.FAILED, schema.RUNNING): "1",
    }
    for states in shown:
        for time, state in enumerate(states):
            tags = {
                schema.TAG_RUN_ID: str(states),
                schema.TAG_STATUS: state,
                schema.sweep_tag("s"): str(time),
            }
            client.create_run(number, start_time=time + 1, tags=tags)
    newest = newest_of_each(map(stored_run, newest_runs(client, "cppo-mini", tag=schema.sweep_tag("s"))))
    assert {run.run_id: run.tags[schema.sweep_tag("s")] for run in newest} == {
        str(states): number for states, number in shown.items()
    }


def test_of_a_planned_run_the_planner_knows_the_state(client: MlflowClient, number: str) -> None:
    tags = {schema.sweep_tag("s"): "v", schema.TAG_RUN_ID: "r", schema.TAG_STATUS: schema.DONE}
    run = client.create_run(number, tags=tags | {schema.TAG_MODEL: "m"}).info.run_id
    client.log_metric(run, MEAN, math.inf)  # for which a database holds the largest number
    parent = ensure_parent(client, number, "s")
    ended = {}, "1 (1 done)", 1
    for waiting, count, means in (
        ({"r": "queued", "s": "missing"}, "2 (1 queued, 1 missing)", 0),
        ended,
        ended,
    ):
        update_parent(client, parent, SweepText("s", "T", ""), waiting)
        assert f"- runs: {count}\n" in note_of("s")
        means_of = client.get_metric_history(parent, "variant_mean/m/v")
        assert [mean.value > 1e308 for mean in means_of] == [True] * means


def test_a_note_says_what_is_compared_and_is_no_longer_than_mlflow_keeps(tmp_path: Path) -> None:
    assert sweep_note(TEXT, ["done", "missing", "done"]) == (
        "## A title\n\n**A question? &#60;b&#62;**\n\nOf the paper: Table 1.\n\n"
        "- runs: 3 (2 done, 1 missing)\n"
        "- to see only these runs, filter by ``tags.`cppo.sweep.quickstart` LIKE '%'``\n"
    )
    long = SweepText("s", "T|" * 1000, "Q<" * 1000, ("F",))
    assert len(sweep_note(long, ["done"], "V" * MOST)) < MOST
    many = [("undecided", f"Claim {number}", "word " * 40) for number in range(50)]
    text = verdict_markdown(replace(log_of(tmp_path), verdicts=many), "f" * 32)
    assert len(text) < 1900 and "more, on the page" in text and text.endswith(f"run_uuid={'f' * 32})")


FILES = {"index.html": b"<p>", "figure_curves.png": b"png", "figure_curves.svg": b"<svg>"}
VERDICTS = (("undecided", "CPPO is best", "Open: +1.0 points | <b>"), ("supported", "The rest", "It holds."))


def log_of(folder: Path) -> ReportLog:
    """A report."""
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return ReportLog(TEXT, folder, [*FILES], VERDICTS, "core=mini: a miniature model", "figure_curves.png")


def test_page_figures_and_verdicts_are_with_the_sweep(uri: str, tmp_path: Path) -> None:
    launch_quickstart()
    keep_report(uri, "cppo-mini", log_of(tmp_path))
    parent = parent_of().info.run_id
    listed = MlflowClient(uri).list_artifacts(parent, "report")
    assert {artifact.path for artifact in listed} == {f"report/{name}" for name in FILES}
    head, _, verdict = note_of().partition("\n### Verdict\n")
    assert head.startswith("## A title\n") and "runs: 1 (1 done)" in head
    assert verdict == (
        "\nFrom the report (core=mini&#58; a miniature model); its page and figures are among the artifacts.\n"
        "- **undecided**: CPPO is best. Open&#58; +1.0 points &#124; &#60;b&#62;\n"
        "- **supported**: The rest. It holds.\n\n"
        f"![A title](get-artifact?path=report%2Ffigure_curves.png&run_uuid={parent})\n"
    )
    keep_report(uri, "cppo-mini", replace(log_of(tmp_path), verdicts=[("open", "CPPO", "It **loses**.")]))
    launch_quickstart(seed=1)  # a verdict stays when the note is rewritten
    note = note_of()
    assert note.startswith("## Quickstart\n") and "runs: 2 (2 done)" in note
    assert "CPPO. It &#42;&#42;loses&#42;&#42;." in note
    assert note.count("### Verdict") == note.count("CPPO.") == 1


def test_a_report_of_a_study_has_a_run_of_its_own(number: str, uri: str, tmp_path: Path) -> None:
    sweep = SweepText("study", "All", "Why <i>?")
    keep_report(uri, "cppo-mini", replace(log_of(tmp_path), sweep=sweep, whole_study=True))
    note = note_of("study")
    assert (
        note.startswith("## All\n\n**Why &#60;i&#62;?**\n\n### Verdict\n") and "The rest. It holds." in note
    )


@pytest.mark.parametrize(
    "store, experiment, said",
    [
        ("http://mia:secret@127.0.0.1:9", "cppo-mini", r"127\.0\.0\.1:9"),
        ("", "nothing", "'nothing' is not in"),
    ],
)
def test_a_store_that_does_not_take_a_report_is_named_without_its_password(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, experiment: str, said: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with user_error(said) as error:
        keep_report(store or uri, experiment, log_of(tmp_path))
    assert "secret" not in str(error.value)


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


@pytest.mark.parametrize("more, overrides", [("", ()), ("", ("variant=loose,cppo_kl",)), (AXES, ())])
def test_colours_are_those_of_the_report(more: str, overrides: tuple[str, ...]) -> None:
    Path("own.yaml").write_text(OWN_SWEEP + more)
    plan = planned(["./own.yaml", *overrides])
    colours = {run.variant: plan.parts["own"].colours[run.variant] for run in plan.runs}
    report = PAPER.strokes(in_order(colours if more else ("tight", "cppo_kl", "cppo", "loose")))
    assert colours == {name: report[name].colour for name in colours}
    assert len(set(colours.values())) == len(colours)


@pytest.mark.parametrize(
    "names",
    [
        *(("λ=0.9", "β=0.9"), ("a=1", "a:1"), ("a/b", "a_b"), ("λ", "_"), (".", ".."), ("a.", "a")),
        *(("n" * 100, "n" * 101), ("n" * 200 + "a", "n" * 200 + "b"), ("策略一", "策略二"), ("é", "e\u0301")),
    ],
)
def test_two_variants_or_models_have_two_metrics(names: tuple[str, str]) -> None:
    """Their names are those that MLflow takes; one that it takes stays as it is."""
    pairs = [*((name, "m") for name in names), *(("cppo", name) for name in names), ("a w_min 0.8", "-a.b")]
    scores = [0.046875, 0.015625, 0.5, 0.25, 0.75]
    means = variant_means((*pair, score) for pair, score in zip(pairs, scores, strict=True))
    assert list(means.values()) == scores and "variant_mean/-a.b/a w_min 0.8" in means
    for name in means:
        assert re.fullmatch(r"variant_mean(/[\w\-. ]{1,100}){2}", name, re.ASCII)
        assert not {"", ".", ".."} & set(name.split("/"))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            "null",
            "5",
            "[5]",
            "[[]]",
            "[{}]",
            '[["a"]]',
            '[["a", "1"]]',
            "[[1, 1]]",
            '[["a", 1, 2]]',
        ),
        *('{"a": 1}', "[" * 100_000, '[["a", true]]', f'[["a", {10**30}]]'),
        *(f'[["a", 1, "b", "", "", {looks}]]' for looks in ("5", "[[1]]", '[["1", 2]]')),
    ],
)
def test_a_tag_of_registrations_is_read_or_counts_as_none(text: str) -> None:
    right = '[["b", 2, "", "", ""], ["a", 1]]'
    assert [registration.digest for registration in parse_registrations(right)] == ["a", "b"]
    assert not parse_registrations(text)


def charts(client: MlflowClient, experiment: str) -> list[str]:
    """The metrics that the view has charts of."""
    page.save_view(client, experiment)
    tags = client.get_experiment(experiment).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert len(tags[page.TAG_VIEW]) <= 5000  # of an experiment's tag, in every MLflow from 3.1 on
    text = json.loads(tags[page.TAG_VIEW])["state"].removeprefix("deflate;")
    state = json.loads(zlib.decompress(base64.b64decode(text)))
    assert state["orderByKey"] == f"metrics.`{MEAN}`"
    assert [section["name"] for section in state["compareRunSections"]] == ["Validation"]
    return [chart["metricKey"] for chart in state["compareRunCharts"]]


def test_the_view_has_validation_charts_and_is_written_once(client: MlflowClient, number: str) -> None:
    client.set_experiment_tag(number, page.TAG_VIEW, "{")  # one that cannot be read is written anew
    assert charts(client, number) == [MEAN]
    run = client.create_run(number).info.run_id
    for name in (*(f"val/{'long' * 40}_{number}/avg_at_16" for number in range(9)), MEAN, "train/reward"):
        client.log_metric(run, name, 0.5)
    first, *shown = charts(client, number)
    assert (first, len(shown), "train/reward" in shown) == (MEAN, 6, False)
    before = client.get_experiment(number).tags
    page.save_view(client, number)
    assert client.get_experiment(number).tags == before
    assert page.page(client.get_experiment(number)).endswith(
        "compareRunsMode=CHART&viewStateShareKey=cppo-runs"
    )
