"""A rule of another package: its module, its YAML beside the sweep file, an entry point or an import path."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab import rules
from cppo_lab.errors import UserError
from cppo_lab.spec import RuleSpec
from cppo_lab.sweep import launch
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.testing import check_rule
from tests.conftest import ROOT, Command, user_error
from tests.cores.test_core_records import cppo as with_their_package
from tests.cores.test_core_records import package

MODULE = Path(__file__).parent / "acme_rules.py"

RECORD = """
from cppo_lab.rules import DIVERGENCE, Row, Rule, Stroke

ONE_SIDED = Rule(
    name="one_sided",
    function="acme_rules:one_sided",
    title="One-sided DPPO",
    needs=frozenset({DIVERGENCE}),
    row=Row("divergence"),
    stroke=Stroke("#123456"),
)
"""
YAML = "name: one_sided\ndelta: ${trust_region.delta}\noptions:\n  slack: 0.0\n"
SWEEP = """
title: Theirs
question: Does one side do?
models: [mini_small_base]
axes: {seed: [0]}
variants:
  dppo: {rule: dppo}
  theirs: {rule: one_sided}
"""
# A model of a few weights, for two steps.
SMALL = (
    "model.warm_start.steps=2",
    "model.warm_start.target_accuracy=null",
    *("batch.prompts=4", "batch.responses=2", "batch.minibatch_prompts=2"),
    *("training.t_stop=2", "validation.every=1", "validation.samples=1", "launcher=inline"),
)


ENTRY = 'one_sided = "acme_records:ONE_SIDED"'


def sweep_file(folder: Path, text: str = SWEEP, rule: str = YAML) -> Path:
    (folder / "rule").mkdir()
    (folder / "rule" / "one_sided.yaml").write_text(rule)
    (folder / "theirs.yaml").write_text(text)
    return folder / "theirs.yaml"


def planned(file: Path, *overrides: str) -> dict[str, str]:
    """The ids of the sweep's runs by variant. Imports nothing of theirs."""
    return {run.variant: run.run_id for run in make_plan(load_sweep(str(file)), overrides).runs}


def refused(folder: Path) -> str:
    """What is said of the sweep."""
    with pytest.raises(UserError) as caught:
        planned(folder / "theirs.yaml")
    return str(caught.value)


@pytest.mark.usefixtures("undrawn")
def test_an_entry_point_trains_on_the_embedded_core(workspace: Path, cppo: Command) -> None:
    theirs = package(workspace / "site", "[cppo_lab.rules]\n" + ENTRY.replace('"', ""), MODULE, RECORD)
    sweep_file(workspace)
    code, out, err = with_their_package(workspace, "launch", "./theirs.yaml", *SMALL, path=theirs)
    assert code == 0, out + err
    # Without their package the runs are still found, under the same ids.
    assert "2 done" in cppo("plan ./theirs.yaml", *SMALL).out
    cppo("report ./theirs.yaml", *SMALL)


def test_a_rule_without_an_entry_point_has_its_import_path_from_the_command_line_or_the_environment(
    tmp_path: Path,
) -> None:
    """Trained by the path alone: tests/test_working_folder.py."""
    file, path = str(sweep_file(tmp_path)), "tests.rules.acme_rules:one_sided"
    with user_error("no installed one has an entry point 'one_sided'"):
        launch._require_code(make_plan(load_sweep(file)).runs)
    runs = make_plan(load_sweep(file), [f"rule.path={path}"]).runs
    launch._require_code(runs)
    _, planned, _ = with_their_package(tmp_path, "plan", "./theirs.yaml", CPPO_RULES=path)
    assert all(run.run_id in planned for run in runs)


def test_the_id_says_which_rule_it_is(tmp_path: Path) -> None:
    file = sweep_file(tmp_path)
    paths = [f"rule.path={place}:one_sided" for place in ("acme_rules", "other.place")]
    plans = [planned(file, *words) for words in ([], ["rule.options.slack=0.1"], *([path] for path in paths))]
    assert len({plan["theirs"] for plan in plans} | {plans[0]["dppo"]}) == 5
    assert plans[2]["dppo"] == plans[0]["dppo"]


@pytest.mark.parametrize(
    "text, rule, said",
    [
        (SWEEP.replace("[0]}", "[0], rule.path: ['os:system', 'a:b']}"), YAML, "axes.rule.path"),
        (SWEEP, YAML + "path: os:system\n", "rule.path='os:system'"),
    ],
)
def test_a_file_alone_imports_nothing(tmp_path: Path, text: str, rule: str, said: str) -> None:
    sweep_file(tmp_path, text, rule)
    found = refused(tmp_path)
    assert said in found
    assert "rule.path=package.module:function" in found and "CPPO_RULES" in found and "entry point" in found


@pytest.mark.parametrize(
    "rule, said",
    [
        ("name: one_sided\ndelta: ${oc.env:HOME}\n", "${oc.env:HOME}"),
        ("name: one_sided\ndelta: ${paths.data}\n", "${paths.data}"),
        ("rule: {name: one_sided}\nlauncher: {name: slurm}\n", "unknown key 'launcher'"),
        ("rule: {name: one_sided}\ndefaults: [{override /tracking: mlflow}]\n", "override /divergence"),
        ("delta: 0.1\n", "add name: one_sided"),
        ("name: [1]\n", "must be the rule's name"),
    ],
)
def test_a_rule_file_holds_constants(tmp_path: Path, rule: str, said: str) -> None:
    sweep_file(tmp_path, rule=rule)
    assert said in refused(tmp_path)


def test_a_rule_of_the_product_is_not_replaced(tmp_path: Path) -> None:
    sweep_file(tmp_path)
    (tmp_path / "rule" / "dppo.yaml").write_text("name: dppo\ndelta: 0.3\n")
    assert "rule 'dppo' comes with the product" in refused(tmp_path)
    with pytest.raises(ValueError, match="comes with the product"):
        RuleSpec(name="cppo", path="acme_rules:one_sided")
    with pytest.raises(ValueError, match=r"must be package\.module:function"):
        RuleSpec(name="one_sided", path="one_sided")


def test_other_constants_of_a_rule_of_the_product(tmp_path: Path) -> None:
    """A file beside the sweep may also be a setting of `cppo`: the run is that of the constants."""
    (tmp_path / "rule").mkdir()
    (tmp_path / "rule" / "gentle_dppo.yaml").write_text("name: dppo\ndelta: 0.31\n")
    (tmp_path / "mine.yaml").write_text(SWEEP.replace("rule: one_sided", "rule: gentle_dppo"))
    (tmp_path / "same.yaml").write_text(SWEEP.replace("rule: one_sided", "rule: dppo, rule.delta: 0.31"))
    assert planned(tmp_path / "mine.yaml") == planned(tmp_path / "same.yaml")


@pytest.mark.parametrize(
    "name, path, said",
    [
        ("one_sided", "acme_is_not_there:one_sided", "cannot be imported"),
        ("digits", "string:digits", "is a str: name a function"),
        ("mine", f"{__name__}:DPPO", "is the rule 'dppo', not 'mine'"),
        ("cppo", "a.b:c", "is built in; give a rule of your own another name"),
    ],
)
def test_a_rule_that_is_none(name: str, path: str, said: str) -> None:
    with user_error(said):
        rules.rule_of(name, path)


DPPO = rules.RULES["dppo"]


def of_release_0_1(logp, rollout_logp, advantages, valid, divergence=None, *, delta):
    raise AssertionError("is not called")


def positional_constant(tokens, delta):
    raise AssertionError("is not called")


@pytest.mark.parametrize("name", ["of_release_0_1", "positional_constant"])
def test_a_signature_of_another_release_is_refused_with_what_changed(name: str) -> None:
    rule = rules.rule_of(name, f"tests.rules.test_foreign_rules:{name}")
    taken = "logp, rollout_logp" if "0_1" in name else "tokens, delta"
    said = (
        r".* since cppo-lab 0\.2\.0 a rule takes one record.*fn\(tokens, \*, delta, \.\.\.\).*docs/rules\.md"
    )
    with user_error(rf"^rule {name!r} takes \({taken}{said}[^\n]*$"):
        rule.check({"delta": 0.1}, "tv")


WHOLE = rules.Rule(name="WHOLE", function=lambda tokens, *, delta: None, needs=frozenset({rules.MINIBATCH}))
BY_ENTROPY = rules.Rule(
    name="BY_ENTROPY", function=lambda tokens, *, delta: None, needs=frozenset({rules.ENTROPY})
)


@pytest.mark.parametrize(
    "rule, overrides, said",
    [
        ("WHOLE", ("core=verl", "model=tiny_qwen3"), "decides over a whole minibatch"),
        ("BY_ENTROPY", ("core=verl", "model=tiny_qwen3", "divergence=binary_tv"), "needs the entropy of mu"),
        ("BY_ENTROPY", ("rollout.correction=decoupled",), "its limit is by the entropy of mu"),
        ("WHOLE", (), ""),
        ("BY_ENTROPY", ("core=verl", "model=tiny_qwen3"), ""),
    ],
)
def test_what_a_rule_needs_is_known_before_anything_is_started(
    rule: str, overrides: tuple[str, ...], said: str
) -> None:
    run = compose(overrides).run
    theirs = RuleSpec(name=rule, path=f"{__name__}:{rule}", delta=0.1)
    todo = [SimpleNamespace(spec=run.model_copy(update={"rule": theirs}))]
    with user_error(said) if said else nullcontext():
        launch._require_code(todo)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rules.VARIABLE, "a.b:one, c:two")
    assert rules.from_environment("two") == "c:two"
    assert rules.from_environment("three") is None
    monkeypatch.setenv(rules.VARIABLE, "two")
    with user_error("CPPO_RULES"):
        rules.from_environment("two")
    monkeypatch.setenv(rules.VARIABLE, "nowhere.at_all:gone")
    assert rules.known("gone") is rules.known("never_heard_of") is None


def test_what_a_rule_cannot_need() -> None:
    with pytest.raises(ValueError, match=r"needs \['x'\]: choose from"):
        rules.Rule(name="mine", function="a.b:c", needs=["x"])
    with pytest.raises(ValueError, match="has the stroke '#123456': give a"):
        rules.Rule(name="mine", function="a.b:c", stroke="#123456")
    with pytest.raises(ValueError, match="stroke of colour 'red-ish'"):
        rules.Stroke("red-ish")


def test_their_rule_passes_the_conformance_tests() -> None:
    rule = rules.Rule(
        name="one_sided", function="tests.rules.acme_rules:one_sided", needs=frozenset({rules.DIVERGENCE})
    )
    check_rule(rule, {"delta": 0.1, "slack": 0.01})


def test_the_document_shows_this_rule() -> None:
    """The code in docs/extending.md is what these tests train."""
    text = (ROOT / "docs" / "extending.md").read_text()
    function = MODULE.read_text()
    assert function[function.index("    positive(") :].strip() in text
    for part in (YAML, *RECORD.strip().splitlines(), ENTRY):
        assert all(line.strip() in text for line in part.splitlines()), part
