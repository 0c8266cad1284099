"""Hypotheses of a sweep file: what is refused, what is registered and when, and what the report makes of it."""

import json
import re
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.runs import attempt
from cppo_lab.runs.machine import code_version
from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import RunSpec
from cppo_lab.sweep import parents
from cppo_lab.sweep.file import Sweep, differences, load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.parents import find_registrations, parse_registrations
from tests.plausible import train

HEAD = """
title: Two rules
question: Which one?
models: [mini_base]
variants: {cppo: {rule: cppo}, dppo: {rule: dppo}}
axes: {seed: [0, 1, 2]}
"""
FIRST = "claim: CPPO is above DPPO\n    better: [cppo]\n    than: [dppo]\n    test_seeds: [1, 2]\n"
STATED = f"{HEAD}hypotheses:\n  above:\n    {FIRST}    smallest: 2.0\n    selection_seeds: [0]\n"
LAUNCH = ["launch", "two.yaml", "launcher=inline"]


def loaded(text: str) -> Sweep:
    Path("two.yaml").write_text(text)
    found = load_sweep("two.yaml")
    assert isinstance(found, Sweep)
    return found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FIRST.replace("[dppo]", "[grpo]"), r"variant 'grpo' is not in variants \(valid: cppo, dppo\)"),
        (FIRST.replace("[dppo]", "[cppo]"), "'cppo' is in `better` and in `than`"),
        (FIRST + "    selection_seeds: [2]\n", "seed 2 is in test_seeds and in selection_seeds"),
        (FIRST + "    after: other\n", r"after='other' is no hypothesis \(valid: above\)"),
        (FIRST + "    after: above\n", "leads back to it"),
        (FIRST.replace("[1, 2]", "[]"), "test_seeds"),
        (FIRST + "    outcome: luck\n", "outcome"),
        (FIRST + "    smallest: 0\n", "smallest"),
        (FIRST + "    margin: 1.0\n", "margin"),
        (FIRST.replace("[1, 2]", "[1, 2, 1]"), "test_seeds: 1 stands there twice"),
        (FIRST.replace("[cppo]", "[cppo, cppo]"), "better: 'cppo' stands there twice"),
        (FIRST + "    smallest: 101\n", "at most 100"),
        (FIRST + "    models: trend\n", "models=trend needs three models or more"),
        (FIRST + "    models: trend\n    within: 1.0\n", "models=trend is for scores, without `within`"),
        (FIRST + "    models: trend\n    outcome: error\n", "outcome=error_slope is the trend of an error"),
    ],
)
def test_what_is_wrong_is_named(workspace: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        loaded(f"{HEAD}hypotheses:\n  above:\n    {text}")


def test_a_variant_is_named_with_its_axis_values(workspace: Path) -> None:
    text = STATED.replace("seed: [0, 1, 2]", "rule.delta: [0.1], seed: [0, 1, 2]")
    with pytest.raises(UserError, match=r"hypotheses\.above: .*'cppo' is 'cppo delta=0\.1': name that"):
        make_plan(loaded(text), [])
    named = text.replace("[cppo]", "[cppo delta=0.1]").replace("[dppo]", "[dppo delta=0.1]")
    assert len(make_plan(loaded(named), []).runs) == 6
    with pytest.raises(
        UserError, match=r"no run is of variant 'cppo delta=1e-1' \(variants: 'cppo delta=0\.1'"
    ):
        make_plan(loaded(named.replace("[cppo delta=0.1]", "[cppo delta=1e-1]")), [])
    # An axis of the command line makes other runs, which do not test the hypothesis.
    assert len(make_plan(loaded(STATED), ["rule.delta=0.1,0.2"]).runs) == 12


def test_the_digest_is_of_what_is_stated_and_of_nothing_else(workspace: Path) -> None:
    first = loaded(STATED).statement()
    assert loaded(STATED.replace("Two rules", "Another title")).statement() == first
    assert json.loads(first[0])["hypotheses"]["above"]["test_seeds"] == [1, 2]
    for old, new in (
        ("smallest: 2.0", "smallest: 1.0"),
        ("{rule: dppo}", "{rule: dppo, rule.delta: 0.1}"),
        ("[mini_base]", "[mini_strong]"),
        ("seed: [0, 1, 2]", "seed: [0, 1, 2, 3]"),
        ("selection_seeds: [0]", "selection_seeds: [4]"),
        ("axes: {seed: [0, 1, 2]}", "axes: {seed: [0, 1, 2]}\npairing: none"),
        ("axes: {seed: [0, 1, 2]}", "axes: {seed: [0, 1, 2]}\nexclude: [{variant: dppo, seed: 2}]"),
    ):
        assert loaded(STATED.replace(old, new)).statement()[1] != first[1]


# The digest before overrides and pairing were part of it: stores have such registrations.
OLDER = "02b633dd9704"


@pytest.mark.parametrize(
    ("sweep", "registered"),
    [
        ("exact", "dd5a7f33df64"),
        ("exact_paper_dose", "050c588ca04e"),
        ("exact_order", "2a8d1d8d5d92"),
        ("position_order", "e75f28cd6c86"),
        ("horizon", "f2d783ff30a6"),
    ],
)
def test_shipped_hypotheses_are_those_that_were_registered_before_the_runs_of_the_documents(
    workspace: Path, sweep: str, registered: str
) -> None:
    found = load_sweep(sweep)
    assert isinstance(found, Sweep) and found.statement()[1] == registered


def test_overrides_that_change_the_runs_change_the_digest(workspace: Path) -> None:
    sweep = loaded(STATED)
    plain = sweep.statement()[1]
    assert plain == OLDER

    def digest(*overrides: str) -> str:
        plan = make_plan(sweep, overrides)
        return plan.statement(plan.sweeps[0])[1]

    for chosen in (
        (), ("seed=0",), ("seed=1,2",), ("variant=cppo",), ("model=mini_base",), ("launcher=inline",),
        ("core=mini",), ("paths.models=elsewhere",),
    ):  # fmt: skip
        assert digest(*chosen) == plain, chosen
    changed = [
        digest(*texts)
        for texts in (
            ("training.t_stop=40",), ("seed=0,1,2,3",), ("model=mini_long",), ("rule.delta=0.1,0.2",),
            ("recipe=authors",), ("training.t_stop=40", "batch.prompts=8"),
        )
    ]  # fmt: skip
    assert len({plain, *changed}) == 1 + len(changed)
    assert digest("training.t_stop=40", "batch.prompts=8") == digest("batch.prompts=8", "training.t_stop=40")
    assert digest("seed=3,2,1,0") == digest("seed=0,1,2,3")


def stated_times() -> list[tuple[str, int]]:
    found = find_registrations(open_client(tracking_uri()), schema.experiment_name("mini"), "two")
    return [(one.digest, one.time_ms) for one in found]


def verdict_words(workspace: Path, *overrides: str) -> str:
    """What the page says of the first claim, between its heading and its numbers."""
    assert main(["report", "two.yaml", "--partial", *overrides]) == 0
    page = (workspace / "reports" / "build" / "two" / "index.html").read_text()
    found = re.search(r'<ol class="verdicts">(.*?)<dl', page, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "load_core", lambda name: train)


def test_registered_before_the_runs_and_judged_by_the_test_seeds_alone(workspace: Path, fast: None) -> None:
    digest = loaded(STATED).statement()[1]
    assert main([*LAUNCH, "seed=0"]) == 0
    [(registered, since)] = stated_times()
    assert registered == digest
    assert main(LAUNCH) == 0
    assert stated_times() == [(digest, since)]  # once
    client = MlflowClient(tracking_uri())
    experiment = client.get_experiment_by_name(schema.experiment_name("mini"))
    assert experiment is not None
    [parent] = [
        run
        for run in client.search_runs([experiment.experiment_id])
        if schema.TAG_SWEEP_PARENT in run.data.tags
    ]
    text = client.download_artifacts(parent.info.run_id, f"hypotheses/{digest}.json")
    assert json.loads(Path(text).read_text())["hypotheses"]["above"]["claim"] == "CPPO is above DPPO"
    words = verdict_words(workspace)
    assert "CPPO is above DPPO" in words
    assert f"({digest}), before any of the 4 runs that test it; unchanged." in words
    record = json.loads((workspace / "reports" / "build" / "two" / "report.json").read_text())
    first = record["verdicts"][0]
    assert (first["claim"], first["pairs"]) == ("hypothesis above", 2)  # not three: seed 0 chose the settings
    loaded(STATED.replace("smallest: 2.0", "smallest: 1.0"))  # after the fact
    changed = "have changed since (now "
    assert changed in (words := verdict_words(workspace))
    assert "hypotheses.above.smallest: 2.0 -&gt; 1.0. Exploratory." in words
    assert main(LAUNCH) == 0  # registers what it has become, and says that the runs were there before
    assert len(stated_times()) == 2
    words = verdict_words(workspace)
    assert "when 4 of the 4 runs that test it had begun. Exploratory." in words
    assert f"Other versions registered for this sweep: {digest} on " in words


@pytest.mark.parametrize(
    ("models", "recorded", "deviates"),
    [
        ("[mini_base]", "seed", False),
        ("[mini_base]", "none", True),
        ("[mini_base]", None, False),  # a version that did not record it paired by warm starts
        ("{exact: [exact_early]}", "seed", False),
        ("{exact: [exact_early]}", None, True),  # and took the runs of the exact core as independent
    ],
)
def test_another_comparison_than_the_registered_one_is_a_deviation(
    workspace: Path, fast: None, models: str, recorded: str | None, deviates: bool
) -> None:
    loaded(STATED.replace("[mini_base]", models))
    assert main(LAUNCH) == 0
    client, core = MlflowClient(tracking_uri()), "exact" if "exact" in models else "mini"
    [registered] = find_registrations(client, schema.experiment_name(core), "two")
    assert registered.pairing == "seed"
    entry = [registered.digest, registered.time_ms, registered.settings, registered.code, recorded]
    client.set_tag(registered.parent, schema.TAG_HYPOTHESES, json.dumps([entry if recorded else entry[:4]]))
    words = verdict_words(workspace)
    assert ("unpaired runs" in words) is deviates
    said = "Deviation from the registered analysis, which takes the runs of one seed as independent"
    assert (said in words) is deviates
    table = (workspace / "reports" / "build" / "two" / "verdicts.md").read_text()
    assert (said in table) is deviates


def test_a_report_on_some_of_the_runs_confirms_nothing(workspace: Path, fast: None) -> None:
    loaded(STATED)
    assert main(LAUNCH) == 0
    record = workspace / "reports" / "build" / "two" / "report.json"
    for overrides, missing in (((), 0), (("seed=0,1",), 2), (("seed=1", "variant=cppo,dppo"), 2)):
        words = verdict_words(workspace, *overrides)
        said = f"Of the 4 runs that test it, {missing} have no result in this report: exploratory."
        assert (said in words) == bool(missing)
        assert ("not part of this report" in words) == bool(missing)
        first = json.loads(record.read_text())["verdicts"][0]
        assert (first["exploratory"], first["provisional"]) == (bool(missing), bool(missing))
        page = (record.parent / "index.html").read_text()
        assert ("; exploratory: 1 undecided." in page) == bool(missing)


def test_runs_that_were_deleted_or_replaced_have_been_seen(workspace: Path, fast: None) -> None:
    loaded(HEAD)
    assert main(LAUNCH) == 0
    client = MlflowClient(tracking_uri())
    experiment = client.get_experiment_by_name(schema.experiment_name("mini"))
    assert experiment is not None
    for run in client.search_runs([experiment.experiment_id], f"tags.`{schema.TAG_RUN_ID}` LIKE '%'"):
        client.delete_run(run.info.run_id)
    shutil.rmtree("runs")  # else they are on disk, and not trained again
    loaded(STATED)
    assert main(LAUNCH) == 0
    assert "when 4 of the 4 runs that test it had begun. Exploratory." in verdict_words(workspace)


def test_test_seeds_that_are_not_declared_are_missing(workspace: Path, fast: None) -> None:
    loaded(STATED.replace("test_seeds: [1, 2]", "test_seeds: [1, 2, 7]"))
    assert main(LAUNCH) == 0
    words = verdict_words(workspace)
    assert "Of the 6 runs that test it, 2 have no result in this report: exploratory." in words


def test_settings_of_the_runs_outside_the_file_are_registered_too(workspace: Path, fast: None) -> None:
    sweep = loaded(STATED)
    assert main(LAUNCH) == 0
    [settings] = {
        make_plan(sweep, texts).declared["two"].settings for texts in ([], ["seed=0"], ["variant=dppo"])
    }
    client = MlflowClient(tracking_uri())
    [one] = find_registrations(client, schema.experiment_name("mini"), "two")
    assert (one.settings, one.code) == (settings, code_version())
    assert "analysed with" not in verdict_words(workspace)
    unchanged = "before any of the 4 runs that test it; unchanged."
    for entry, words in (
        ([one.digest, one.time_ms, "of another conf"], "settings of its runs outside the sweep file"),
        ([one.digest, one.time_ms], unchanged),  # an older version's
        (
            [one.digest, one.time_ms, settings, "0.1+abc"],
            f"{unchanged} Registered with version 0.1+abc, analysed with {code_version()}.",
        ),
    ):
        client.set_tag(one.parent, schema.TAG_HYPOTHESES, json.dumps([entry]))
        assert words in verdict_words(workspace)


def test_what_differs_between_two_statements_is_listed() -> None:
    old = json.dumps({"a": {"b": 1, "c": [1, 2]}, "d": "x"})
    assert differences(old, old) == ()
    new = json.dumps({"a": {"b": 2, "c": [1]}, "e": None})
    assert differences(old, new) == (
        "a.b: 1 -> 2",
        "a.c: [1, 2] -> [1]",
        "d: x -> absent",
        "e: absent -> null",
    )
    many = json.dumps({f"key{i}": i for i in range(10)})
    assert differences("not JSON", many)[-1] == "6 more"


def test_without_a_registration_the_report_says_so(workspace: Path, fast: None) -> None:
    loaded(HEAD)
    assert main(LAUNCH) == 0
    assert stated_times() == []
    loaded(STATED)
    assert "Not registered: `cppo launch` registers hypotheses" in verdict_words(workspace)


def test_hypotheses_that_were_removed_from_the_file_are_not_forgotten(workspace: Path, fast: None) -> None:
    digest = loaded(STATED).statement()[1]
    assert main(LAUNCH) == 0
    loaded(HEAD)
    Path("all.yaml").write_text("title: All\nquestion: What?\nsweeps: [./two.yaml]\n")
    for name, options in (("two", []), ("all", ["--partial"])):
        assert main(["report", f"{name}.yaml", *options]) == 0
        page = (workspace / "reports" / "build" / name / "index.html").read_text()
        assert f"Hypotheses of two were registered ({digest} on " in page
    loaded(STATED)
    assert main(["report", "two.yaml"]) == 0
    assert "were registered" not in (workspace / "reports" / "build" / "two" / "index.html").read_text()


def test_the_report_of_a_study_shows_the_hypotheses_of_its_sweeps(workspace: Path, fast: None) -> None:
    loaded(STATED)
    Path("all.yaml").write_text("title: All\nquestion: What?\nsweeps: [./two.yaml]\n")
    assert main(["launch", "all.yaml", "launcher=inline"]) == 0
    assert main(["report", "all.yaml", "--partial"]) == 0
    folder = workspace / "reports" / "build" / "all"
    page = (folder / "index.html").read_text()
    assert "before any of the 4 runs that test it; unchanged." in page
    verdicts = json.loads((folder / "report.json").read_text())["verdicts"]
    assert [one["claim"] for one in verdicts] == ["hypothesis two above"]


LEADS = {
    "mini_base": (20, 0.04),
    "mini_large_base": (40, 0.0701),
    "mini_long": (80, 0.10),
}  # response length in tokens, CPPO's lead


def train_with_leads(spec: RunSpec, recorder: object, resources: object) -> schema.Outcome:
    """In place of a core: seeds differ by little, and CPPO's lead on a model is as above."""
    assert isinstance(recorder, Recorder)
    recorder.begin(None)
    length, lead = LEADS[spec.model.name]
    score = (
        0.5 + 0.001 * spec.seed * (1 if spec.rule.name == "cppo" else -1) + lead * (spec.rule.name == "cppo")
    )
    for step in range(spec.training.t_stop + 1):
        metrics = (
            {schema.validation_metric(schema.MEAN, spec.validation.samples): score} if step % 5 == 0 else {}
        )
        recorder.log(step, metrics | ({"train/response_length": float(length)} if step else {}))
    return schema.Outcome(schema.DONE, spec.training.t_stop)


def test_a_trend_is_judged_over_the_response_lengths_of_the_models(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "load_core", lambda name: train_with_leads)
    trend = STATED.replace("[mini_base]", f"[{', '.join(LEADS)}]").replace(
        "smallest: 2.0", "smallest: 2.0\n    models: trend"
    )
    loaded(trend)
    assert main([*LAUNCH, "training.t_stop=20"]) == 0
    assert main(["report", "two.yaml", "training.t_stop=20"]) == 0
    record = json.loads((workspace / "reports" / "build" / "two" / "report.json").read_text())
    [found] = [one for one in record["verdicts"] if one["claim"] == "hypothesis above"]
    assert (found["outcome"], found["pairs"]) == ("supported", 3)
    assert found["estimate"] == pytest.approx(0.03)  # 6 points over two doublings, from 20 to 80 tokens
    page = (workspace / "reports" / "build" / "two" / "index.html").read_text()
    assert "points for each doubling of the length" in page
    assert "before any of the 12 runs that test it; unchanged." in page


def test_nothing_starts_if_the_store_does_not_take_them(
    workspace: Path, fast: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*arguments: object) -> None:
        raise ConnectionError("the store is away")

    loaded(STATED)
    monkeypatch.setattr(parents, "register", away)
    assert main(LAUNCH) == 2
    assert "its hypotheses could not be registered (ConnectionError)" in capsys.readouterr().err
    assert not list((workspace / "runs").glob("*/status.json"))


@pytest.mark.parametrize(
    "text", ["", "x", "[1]", '[["a"]]', '[["a", "b"]]', '[["a", 1, "b", 2]]', '{"a": 1}', "null", "[[1, 2]]"]
)
def test_a_tag_of_somebody_else_counts_as_none(text: str) -> None:
    assert parse_registrations(text) == ()
