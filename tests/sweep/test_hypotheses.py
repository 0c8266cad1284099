"""Hypotheses of a sweep file: what is refused, what is registered and when, and what the report makes of it."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.runs.machine import code_version
from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.file import Sweep, differences, load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.sweep.results import load
from cppo_lab.tracking.page import Registration, find_registrations
from tests.conftest import Command, user_error
from tests.recorded import mlflow_client, mlflow_runs

pytestmark = pytest.mark.usefixtures("undrawn", "workspace")

HEAD = """
title: Two rules
question: Which one?
models: [mini_base]
variants: {cppo: {rule: cppo}, dppo: {rule: dppo}}
axes: {seed: [0, 1, 2]}
"""
FIRST = "claim: CPPO is above DPPO\n    better: [cppo]\n    than: [dppo]\n    test_seeds: [1, 2]\n"
STATED = f"{HEAD}hypotheses:\n  above:\n    {FIRST}    smallest: 2.0\n    selection_seeds: [0]\n"
LAUNCH = "launch two.yaml launcher=inline"
Words = Callable[..., str]


def loaded(text: str) -> Sweep:
    Path("two.yaml").write_text(text)
    return load_sweep("two.yaml")


def with_test_seeds(count: int) -> str:
    """The hypothesis with so many seeds that test it."""
    seeds = [*range(count + 1)]
    return STATED.replace("[0, 1, 2]", f"{seeds}").replace("[1, 2]", f"{seeds[1:]}")


def test_a_variant_is_named_with_its_axis_values() -> None:
    text = STATED.replace("seed: [0, 1, 2]", "rule.delta: [0.1], seed: [0, 1, 2]")
    named = text.replace("[cppo]", "[cppo delta=0.1]").replace("[dppo]", "[dppo delta=0.1]")
    assert len(make_plan(loaded(named), []).runs) == 6
    # An axis of the command line makes other runs, which do not test the hypothesis.
    assert len(make_plan(loaded(STATED), ["rule.delta=0.1,0.2"]).runs) == 12
    with user_error(r"no run is of variant 'cppo delta=1e-1' \(variants: 'cppo delta=0\.1'"):
        make_plan(loaded(named.replace("[cppo delta=0.1]", "[cppo delta=1e-1]")), [])


def test_seeds_that_are_not_asked_for_are_checked_as_the_others() -> None:
    for seed, said in (("x", "'x'"), ("true", "True")):
        with user_error(rf"sweep two\.yaml: axes\.seed={said}: must be a whole number"):
            make_plan(loaded(STATED.replace("[0, 1, 2]", f"[0, 1, 2, {seed}]")), ["seed=0"])


def test_the_digest_is_of_what_is_stated_and_of_nothing_else() -> None:
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
    "sweep, registered",
    {
        "exact": "dd5a7f33df64",
        "exact_paper_dose": "050c588ca04e",
        "exact_order": "2a8d1d8d5d92",
        "position_order": "e75f28cd6c86",
        "horizon": "f2d783ff30a6",
    }.items(),
)
def test_shipped_hypotheses_are_those_that_were_registered_before_the_runs_of_the_documents(
    sweep: str, registered: str
) -> None:
    assert load_sweep(sweep).statement()[1] == registered


def test_overrides_that_change_the_runs_change_the_digest() -> None:
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
    assert digest("training.t_stop=40", "training.t_stop=50") == digest("training.t_stop=50")


EXPERIMENT = schema.experiment_name("mini")


def registrations() -> tuple[Registration, ...]:
    return tuple(find_registrations(mlflow_client(), EXPERIMENT, "two"))


def register(entry: list[object]) -> None:
    """What the store has of the registration is replaced."""
    mlflow_client().set_tag(registrations()[0].parent, schema.TAG_HYPOTHESES, json.dumps([entry]))


PAGES = Path("reports") / "build"


def judged(name: str = "two") -> list[dict[str, Any]]:
    verdicts: list[dict[str, Any]] = json.loads((PAGES / name / "report.json").read_text())["verdicts"]
    return verdicts


def verdict() -> str:
    """What the page says of the first claim, between its heading and its numbers."""
    return re.search(r'<ol class="verdicts">(.*?)<dl', (PAGES / "two/index.html").read_text(), re.DOTALL)[1]


@pytest.fixture
def words(cppo: Command, no_training: None) -> Words:
    """The same of a new report. Training takes no time."""

    def reported(overrides: str = "") -> str:
        cppo(f"report two.yaml --partial --no-log {overrides}")
        return verdict()

    return reported


def test_registered_before_the_runs_and_judged_by_the_test_seeds_alone(cppo: Command, words: Words) -> None:
    digest = loaded(STATED).statement()[1]
    cppo(f"{LAUNCH} seed=0")
    [registered] = registrations()
    assert registered.digest == digest
    cppo(LAUNCH)
    assert [version.time_ms for version in registrations()] == [registered.time_ms]  # once
    text = mlflow_client().download_artifacts(registered.parent, f"hypotheses/{digest}.json")
    assert Path(text).read_text() == f"{loaded(STATED).statement()[0]}\n"
    said = words()
    assert "CPPO is above DPPO" in said
    assert f"({digest}), before any of the 4 runs that test it; unchanged." in said
    first = judged()[0]
    assert (first["claim"], first["pairs"]) == ("hypothesis above", 2)  # not three: seed 0 chose the settings
    loaded(STATED.replace("2.0", "1.0"))  # after the fact
    said = words()
    assert "have changed since (now " in said
    assert "hypotheses.above.smallest: 2.0 -&gt; 1.0. Exploratory." in said
    cppo(LAUNCH)  # registers what it has become, and says that the runs were there before
    assert len(registrations()) == 2
    said = words()
    assert "when 4 of the 4 runs that test it had begun. Exploratory." in said
    assert f"Other versions registered for this sweep: {digest} on " in said


@pytest.mark.parametrize(
    "core, recordings",
    [
        # A version that did not record it paired by warm starts, and took the runs of the exact core as independent.
        ("mini", {"seed": False, "none": True, None: False}),
        ("exact", {"seed": False, None: True}),
    ],
)
def test_another_comparison_than_the_registered_one_is_a_deviation(
    cppo: Command,
    words: Words,
    monkeypatch: pytest.MonkeyPatch,
    core: str,
    recordings: dict[str | None, bool],
) -> None:
    monkeypatch.setitem(globals(), "EXPERIMENT", schema.experiment_name(core))
    loaded(STATED.replace("[mini_base]", "[mini_base]" if core == "mini" else "{exact: [exact_early]}"))
    fewer = "training.t_stop=10" if core == "exact" else ""  # whose steps are trained
    cppo(f"{LAUNCH} {fewer}")
    [registered] = registrations()
    assert registered.pairing == "seed"
    said = "Deviation from the registered analysis, which takes the runs of one seed as independent"
    for recorded, deviates in recordings.items():
        entry = [registered.digest, registered.time_ms, registered.settings, registered.code, recorded]
        register(entry if recorded else entry[:4])
        page = words(fewer)
        assert ("unpaired runs" in page) is deviates
        assert (said in page) is (said in (PAGES / "two/verdicts.md").read_text()) is deviates


def test_the_registered_comparison_is_that_of_all_runs_whichever_are_launched(
    cppo: Command, no_training: None
) -> None:
    fixed = ["model.warm_start.seed=0"]  # the same weights for all seeds: their runs are no pairs
    assert not make_plan(loaded(STATED), fixed).is_paired("two")
    assert not make_plan(loaded(STATED), [*fixed, "seed=0"]).is_paired("two")
    cppo(f"{LAUNCH} seed=0 {fixed[0]}")
    assert [registered.pairing for registered in registrations()] == ["none"]


def test_a_report_on_some_of_the_runs_confirms_nothing(cppo: Command, words: Words) -> None:
    loaded(STATED)
    cppo(LAUNCH)
    for overrides, missing in (("", 0), ("seed=0,1", 2), ("seed=1 variant=cppo,dppo", 2)):
        page = words(overrides)
        said = f"Of the 4 runs that test it, {missing} have no result in this report: exploratory."
        assert (said in page) == ("not part of this report" in page) == bool(missing)
        assert judged()[0]["exploratory"] == judged()[0]["provisional"] == bool(missing)
        whole = (PAGES / "two/index.html").read_text()
        # The other claim is not registered.
        assert ("2 claims: exploratory: 2 undecided." in whole) == bool(missing)
    # Of runs that are not chosen the store says the seed, where anybody may change it.
    mlflow_client().set_tag(mlflow_runs()[-1].info.run_id, schema.TAG_SEED, "²")
    load("two.yaml", seed=0)


def test_runs_that_were_deleted_or_replaced_have_been_seen(cppo: Command, words: Words) -> None:
    loaded(HEAD)
    cppo(LAUNCH)
    assert registrations() == ()
    loaded(STATED)
    assert "Not registered: `cppo launch` registers hypotheses" in words()
    for run in mlflow_runs():
        mlflow_client().delete_run(run.info.run_id)
    shutil.rmtree("runs")  # else they are on disk, and not trained again
    cppo(LAUNCH)
    assert "when 4 of the 4 runs that test it had begun. Exploratory." in words()


LOOKED = "unchanged. Looked at 2 times before the end, first at 1 of 3 seeds."


def test_a_look_before_the_end_is_kept_once_for_each_state_and_named(cppo: Command, words: Words) -> None:
    loaded(with_test_seeds(3))

    def looks() -> list[tuple[tuple[int, int], ...]]:
        return [registered.looks for registered in registrations()]

    cppo(f"{LAUNCH} seed=0")
    cppo(f"{LAUNCH} seed=1 variant=cppo")
    cppo("report two.yaml --partial --no-log")
    assert looks() == [()]  # no test seed has both sides yet
    cppo(f"{LAUNCH} seed=1")
    cppo("plan two.yaml")
    cppo("report two.yaml", code=2)  # gaps, and no result
    assert looks() == [()]
    cppo("report two.yaml --partial --no-log")
    assert looks() == [((1, 3),)]
    load("two.yaml")
    assert "Looked at 1 time before the end, first at 1 of 3 seeds." in verdict()
    cppo(f"{LAUNCH} seed=2")
    load("two.yaml", seed=2)  # two of the three seeds are there, whatever is chosen
    assert looks() == [((1, 3), (2, 3))]
    cppo("report two.yaml seed=2 --no-log")
    cppo(LAUNCH)
    said = words()
    assert looks() == [((1, 3), (2, 3))]
    assert LOOKED in said and not judged()[0]["exploratory"]
    # A version of another statement was not looked at.
    loaded(with_test_seeds(3).replace("2.0", "1.0"))
    cppo(LAUNCH)
    cppo("report two.yaml seed=1,2")
    assert looks() == [((1, 3), (2, 3)), ()]


ONCE = f"  once:\n    {FIRST.replace('[1, 2]', '[1]')}"  # complete where the sequential one is not


@pytest.mark.parametrize("beside", ["", ONCE, None], ids=["sequential", "beside another", "judged once"])
def test_looks_that_are_planned_or_cannot_be_kept_are_not(
    cppo: Command, no_training: None, monkeypatch: pytest.MonkeyPatch, beside: str | None
) -> None:
    text = with_test_seeds(5)
    loaded(text if beside is None else text.replace("smallest: 2.0", "sequential: true") + beside)
    cppo(f"{LAUNCH} seed=1")

    def look(is_kept: bool = True) -> None:
        err = cppo("report two.yaml --partial --no-log").err
        assert ("this look at unfinished tests was not recorded" in err) != is_kept
        assert [registered.looks for registered in registrations()] == [()]
        assert not is_kept or "Looked" not in verdict()

    if beside is None:
        with monkeypatch.context() as patched:
            away = Mock(side_effect=MlflowException("read-only"))
            patched.setattr("cppo_lab.tracking.page.note_look", away)
            look(is_kept=False)
        loaded(text.replace("2.0", "1.0"))  # of which nothing is registered
    look()


def test_settings_of_the_runs_outside_the_file_are_registered_too(cppo: Command, words: Words) -> None:
    sweep = loaded(STATED)
    cppo(LAUNCH)
    [settings] = {
        make_plan(sweep, texts).parts["two"].declared.settings for texts in ([], ["seed=0"], ["variant=dppo"])
    }
    [version] = registrations()
    assert (version.settings, version.code) == (settings, code_version())
    assert "analysed with" not in words()
    unchanged = "before any of the 4 runs that test it; unchanged."
    for more, said in (
        (["of another conf"], "settings of its runs outside the sweep file"),
        ([], unchanged),  # an older version's
        ([settings, "0.1+a"], f"{unchanged} Registered with version 0.1+a, analysed with {code_version()}."),
    ):
        register([version.digest, version.time_ms, *more])
        assert said in words()


def test_what_differs_between_two_statements_is_listed() -> None:
    old = '{"a": {"b": 1, "c": [1, 2]}, "d": "x"}'
    assert differences(old, old) == ()
    new = '{"a": {"b": 2, "c": [1]}, "e": null}'
    changes = ("a.b: 1 -> 2", "a.c: [1, 2] -> [1]", "d: x -> absent", "e: absent -> null")
    assert differences(old, new) == changes
    many = json.dumps({f"key{i}": i for i in range(10)})
    assert differences("not JSON", many)[-1] == "6 more"


def test_hypotheses_of_a_study_and_those_that_were_removed_from_the_file(cppo: Command, words: Words) -> None:
    digest = loaded(STATED).statement()[1]
    Path("all.yaml").write_text("title: All\nquestion: What?\nsweeps: [./two.yaml]\n")
    cppo("launch all.yaml launcher=inline")

    def page(name: str) -> str:
        cppo(f"report {name}.yaml --partial --no-log")
        return (PAGES / name / "index.html").read_text()

    assert "before any of the 4 runs that test it; unchanged." in page("all")
    assert [verdict["claim"] for verdict in judged("all")] == ["hypothesis two above"]
    loaded(HEAD)
    for name in ("two", "all"):
        assert f"Hypotheses of two were registered ({digest} on " in page(name)
    loaded(STATED)
    assert "were registered" not in page("two")


LEADS = {  # response length in tokens, CPPO's lead
    "mini_base": (20, 0.04),
    "mini_large_base": (40, 0.0701),
    "mini_long": (80, 0.10),
}


def train_with_leads(spec: RunSpec, recorder: Recorder, resources: object) -> schema.Outcome:
    """In place of a core: seeds differ by little, and CPPO's lead on a model is as above."""
    recorder.begin(None)
    length, lead = LEADS[spec.model.name]
    leads = spec.rule.name == "cppo"
    score = 0.5 + 0.001 * spec.seed * (1 if leads else -1) + lead * leads
    name = schema.validation_metric(schema.MEAN, spec.validation.samples)
    for step in range(spec.training.t_stop + 1):
        validated = {} if step % 5 else {name: score}
        recorder.log(step, validated | ({"train/response_length": float(length)} if step else {}))
    return schema.Outcome(schema.DONE, spec.training.t_stop)


def test_a_trend_is_judged_over_the_response_lengths_of_the_models(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", lambda name: train_with_leads)
    trend = STATED.replace("smallest: 2.0", "smallest: 2.0\n    models: trend")
    loaded(trend.replace("[mini_base]", f"[{', '.join(LEADS)}]"))
    cppo(f"{LAUNCH} training.t_stop=20 seed=1,2")
    cppo("report two.yaml training.t_stop=20 seed=1,2")
    [verdict] = [verdict for verdict in judged() if verdict["claim"] == "hypothesis above"]
    assert (verdict["outcome"], verdict["pairs"]) == ("supported", 3)
    assert verdict["estimate"] == pytest.approx(0.03)  # 6 points over two doublings, from 20 to 80 tokens
    page = (PAGES / "two/index.html").read_text()
    assert "points for each doubling of the length" in page
    assert "before any of the 12 runs that test it; unchanged." in page


def test_nothing_starts_if_the_store_does_not_take_them(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(STATED)
    monkeypatch.setattr(
        "cppo_lab.sweep.launch.register", Mock(side_effect=ConnectionError("the store is away"))
    )
    assert "its hypotheses could not be registered (the store is away)" in cppo(LAUNCH, code=2).err
    assert not list(Path("runs").glob("*/status.json"))
