"""The parents of sweeps: one each, whoever makes them; their descriptions, reports, and what nests below them."""

import re
import threading
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.errors import UserError
from cppo_lab.reports.figures.palette import PALETTES, PAPER
from cppo_lab.reports.names import in_order
from cppo_lab.runs import attempt
from cppo_lab.sweep import parents as sweep_parents
from cppo_lab.sweep.declare import Sweep, load_sweep
from cppo_lab.sweep.launch import launch
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking import parents
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.parents import (
    MOST,
    NotedRun,
    ReportLog,
    SweepText,
    keep_report,
    sweep_note,
    variant_means,
    verdict_markdown,
)
from tests.plausible import train
from tests.waiting import CEILING_SECONDS

TEXT = SweepText("quickstart", "A title", "A question? <b>", ("Table 1",))


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
    assert MlflowClient(uri).get_experiment(experiment_id(uri)).tags[schema.TAG_NOTE] == core_of("mini").note


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
    times, real = [], sweep_parents.save_view

    def refused_once(*arguments: Any) -> None:
        times.append(1)
        if len(times) == 1:
            raise MlflowException("UNIQUE constraint failed")
        real(*arguments)

    monkeypatch.setattr(sweep_parents, "save_view", refused_once)
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


def test_a_note_says_what_is_compared_and_is_no_longer_than_mlflow_keeps() -> None:
    assert sweep_note(TEXT, ["done", "missing", "done"]) == (
        "## A title\n\n**A question? &#60;b&#62;**\n\nOf the paper: Table 1.\n\n"
        "- runs: 3 (2 done, 1 missing)\n"
        "- to see only these runs, filter by ``tags.`cppo.sweep.quickstart` LIKE '%'``\n"
    )
    long = SweepText("s", "T|" * 1000, "Q<" * 1000, ("F",))
    assert len(sweep_note(long, ["done"], "V" * 3000)) < MOST


def test_a_verdict_stays_when_the_note_is_written_anew(uri: str, tmp_path: Path) -> None:
    launch_quickstart(uri, "seed=0")
    for reason in ("It wins.", "It **loses**."):
        keep_report(uri, "cppo-mini", replace(log_of(tmp_path / "r"), verdicts=[("open", "CPPO", reason)]))
    launch_quickstart(uri, "seed=1")
    note = parent_of(uri).data.tags[schema.TAG_NOTE]
    assert note.startswith("## Quickstart\n")
    assert "runs: 2 (2 done)" in note
    assert "CPPO. It &#42;&#42;loses&#42;&#42;." in note
    assert note.count("### Verdict") == note.count("CPPO.") == 1


FILES = {"index.html": b"<p>", "figure_curves.png": b"png", "figure_curves.svg": b"<svg>"}
VERDICTS = (("undecided", "CPPO is best", "Open: +1.0 points | <b>"), ("supported", "The rest", "It holds."))


def log_of(folder: Path, **files: bytes) -> ReportLog:
    """A report, with other content of some of its files."""
    folder.mkdir(exist_ok=True)
    written = {**FILES, **{name.replace("__", "."): data for name, data in files.items()}}
    for name, data in written.items():
        (folder / name).write_bytes(data)
    digests = {name: sha256(data).hexdigest() for name, data in written.items()}
    return ReportLog(TEXT, folder, digests, VERDICTS, "core=mini: a miniature model", "figure_curves.png")


def parent_of(uri: str, sweep: str = "quickstart") -> Run:
    (parent,) = [run for run in all_runs(uri) if run.data.tags.get(schema.TAG_SWEEP_PARENT) == sweep]
    return parent


def test_page_figures_and_verdicts_are_with_the_sweep(uri: str, tmp_path: Path) -> None:
    launch_quickstart(uri, "seed=0")
    assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r")) == 3
    parent = parent_of(uri)
    listed = MlflowClient(uri).list_artifacts(parent.info.run_id, "report")
    assert {artifact.path for artifact in listed} == {f"report/{name}" for name in FILES}
    head, _, verdict = parent.data.tags[schema.TAG_NOTE].partition("\n### Verdict\n")
    assert head.startswith("## A title\n")
    assert "runs: 1 (1 done)" in head
    assert verdict == (
        "\nFrom the report (core=mini&#58; a miniature model); its page and figures are among the artifacts.\n"
        "- **undecided**: CPPO is best. Open&#58; +1.0 points &#124; &#60;b&#62;\n"
        "- **supported**: The rest. It holds.\n\n"
        f"![A title](get-artifact?path=report%2Ffigure_curves.png&run_uuid={parent.info.run_id})\n"
    )


def test_what_did_not_change_is_not_uploaded_again(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_quickstart(uri, "seed=0")
    keep_report(uri, "cppo-mini", log_of(tmp_path / "r"))
    before = parent_of(uri).data.tags
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "set_tag", None)  # nothing is written either
        patched.setattr(MlflowClient, "log_artifact", None)
        assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r")) == 0
    assert parent_of(uri).data.tags == before
    assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r", index__html=b"<p>new")) == 1
    assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r"), again=True) == 3
    for text in ("[]", "{", "null", '{"index.html": 3}'):  # tags that say nothing
        MlflowClient(uri).set_tag(parent_of(uri).info.run_id, schema.TAG_REPORT, text)
        assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r")) == 3


def test_an_interrupted_upload_is_made_up_for(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    launch_quickstart(uri, "seed=0")
    with monkeypatch.context() as patched:
        patched.setattr("mlflow.MlflowClient.log_artifact", interrupted)
        with pytest.raises(KeyboardInterrupt):
            keep_report(uri, "cppo-mini", log_of(tmp_path / "r"))
    assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r")) == 3


def test_a_study_has_a_run_of_its_own(uri: str, tmp_path: Path) -> None:
    launch_quickstart(uri, "seed=0")
    study = replace(log_of(tmp_path / "r"), sweep=SweepText("study", "All", "Why <i>?"), whole_study=True)
    keep_report(uri, "cppo-mini", study)
    note = parent_of(uri, "study").data.tags[schema.TAG_NOTE]
    assert note.startswith("## All\n\n**Why &#60;i&#62;?**\n\n### Verdict\n")
    assert "The rest. It holds." in note


def test_many_claims_do_not_outgrow_the_description(tmp_path: Path) -> None:
    many = tuple(("undecided", f"Claim {number}", "word " * 40) for number in range(50))
    text = verdict_markdown(replace(log_of(tmp_path / "r"), verdicts=many), "f" * 32)
    assert len(text) < 1900
    assert "more, on the page" in text
    assert text.endswith(f"run_uuid={'f' * 32})")


@pytest.mark.parametrize(
    ("store", "experiment", "said"),
    [
        ("http://mia:secret@127.0.0.1:9", "cppo-mini", r"127\.0\.0\.1:9"),
        ("", "nothing", "'nothing' is not in"),
    ],
)
def test_a_store_that_does_not_take_a_report_is_named_without_its_password(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, experiment: str, said: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match=said) as error:
        keep_report(store or uri, experiment, log_of(tmp_path / "r"))
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


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
    return NotedRun(variant, model, schema.DONE, score)


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
