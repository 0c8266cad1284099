"""`--json` of every command: one object under one heading, with the keys that docs/commands.md lists."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.answers.recording import Recording, StepAnswers
from cppo_lab.cli import environment, exporting, main, reporting, ui
from cppo_lab.cli.answer import ANSWERS, HEADING, MEANINGS, RUN_KEYS, Exit
from cppo_lab.cli.parser import build_parser, leaves
from cppo_lab.runs import attempt as execute
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import AnswersSpec, RunSpec
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from tests import plausible
from tests.answers import made
from tests.conftest import ROOT

SWEEP = ["quickstart", "variant=grpo", "seed=0", "launcher=inline"]
# The words of each command. {run} and {other} are ids of finished runs; `add` runs only what follows it by name.
CASES: dict[str, tuple[list[str], Exit]] = {
    "list": (["list"], Exit.DONE),
    "new": (["new", "first"], Exit.DONE),
    "plan": (["plan", *SWEEP], Exit.DONE),
    "show": (["show", "{run}"], Exit.DONE),
    "diff": (["diff", "{run}", "{other}"], Exit.DONE),
    "pull": (["pull", *SWEEP], Exit.DONE),
    "launch": (["launch", *SWEEP], Exit.DONE),
    "retry": (["retry", *SWEEP, "--failed", "--dry-run"], Exit.DONE),
    "preflight": (["preflight", "quickstart", "core=verl", "--show"], Exit.NO),
    "status": (["status", *SWEEP], Exit.DONE),
    "watch": (["watch", *SWEEP], Exit.DONE),
    "logs": (["logs", "{run}"], Exit.DONE),
    "cancel": (["cancel", *SWEEP, "--dry-run"], Exit.DONE),
    "sync": (["sync"], Exit.DONE),
    "tune": (["tune", "tune_cppo", "--dry-run"], Exit.DONE),
    "report": (["report", *SWEEP, "--partial", "--no-log", "--out", "page"], Exit.DONE),
    "compare": (["compare", "page", "page"], Exit.DONE),
    "reference import": (["reference", "import"], Exit.DONE),
    "export model": (["export", "{run}", "--out", "model"], Exit.DONE),
    "export metrics": (["export", "metrics", *SWEEP[:3], "--format", "csv", "--out", "tables"], Exit.DONE),
    "samples": (["samples", "{run}"], Exit.DONE),
    "replay": (["replay", "{run}"], Exit.DONE),
    "ui": (["ui"], Exit.DONE),
    "data prepare": (["data", "prepare", "--out", "data"], Exit.DONE),
    "data check": (["data", "check", "data"], Exit.DONE),
    "doctor": (["doctor"], Exit.DONE),
    "completion": (["completion", "bash"], Exit.DONE),
}


def test_every_command_is_here_and_in_the_schema() -> None:
    """A new subcommand needs a case above and its keys in ANSWERS; --json it has by itself."""
    commands = leaves(build_parser())
    assert commands.keys() == CASES.keys() == ANSWERS.keys()
    for name, parser in commands.items():
        assert any("--json" in action.option_strings for action in parser._actions), name


def train(spec: RunSpec, recorder: Recorder, resources: Any) -> Outcome:
    """Plausible, with answers and tokens; it prints, as trainers do."""
    print("a trainer prints this")
    subprocess.run([sys.executable, "-c", "print('and its child this')"], check=True)
    kept = Recording(
        AnswersSpec(keep=True, problems=8, groups=2, megabytes=50.0), recorder.folder, 2, recorder.file
    )
    kept.begin(None)
    kept.add(StepAnswers(made.outcomes(validations=2), [made.sample(step=10)], made.tokens()))
    return plausible.train(spec, recorder, resources)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs and a report."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setattr(execute, "load_core", lambda name: train)
        assert main(["launch", "quickstart", "variant=grpo", "launcher=inline"]) == 0
    return folder


def answered(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """The exit code and the whole of standard output, which is one object."""
    capfd.readouterr()
    code = main([*words, "--json"])
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return code, found


def required(name: str) -> set[str]:
    return {key for key in ANSWERS[name] if not key.endswith("?")}


def allowed(name: str) -> set[str]:
    return {key.removesuffix("?") for key in ANSWERS[name]}


@pytest.mark.parametrize("name", CASES)
def test_a_command_answers_with_its_keys(
    name: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    prepare: dict[str, Callable[[], object]] = {
        "compare": lambda: (trained / "page").is_dir() or main(CASES["report"][0]),
        "data check": lambda: (trained / "data").is_dir() or main(CASES["data prepare"][0]),
        "reference import": lambda: _no_import(monkeypatch),
        "export model": lambda: _no_export(monkeypatch),
        "ui": lambda: _no_server(monkeypatch),
        "doctor": lambda: _fast_doctor(monkeypatch),
    }
    prepare.get(name, lambda: None)()
    run, other = (one.run_id for one in make_plan(load_sweep("quickstart"), ["variant=grpo"]).runs)
    words, code = CASES[name]
    found_code, found = answered([word.format(run=run, other=other) for word in words], capfd)
    assert (found["schema"], found["command"], found["exit_code"], found["error"]) == (1, name, code, None)
    assert found_code == code
    keys = found.keys() - HEADING.keys()
    assert required(name) <= keys <= allowed(name)
    if name in ("plan", "launch", "retry", "status", "watch"):
        [one] = found["runs"]
        assert RUN_KEYS.keys() <= one.keys()
        assert (one["run_id"], one["state"]) == (run, "done")


def _no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    from cppo_lab.tracking import reference

    monkeypatch.setattr(reference, "import_reference", lambda uri, say: 0)
    monkeypatch.setattr(reference, "nest_reference", lambda uri, sweeps: None)
    assert reporting.reference_import  # imports both by name when it is called


def _no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    from cppo_lab import export

    monkeypatch.setattr(export, "export", lambda runs, run_id, out, say: out)
    assert exporting.model


def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    monkeypatch.setattr(ui, "_links", lambda uri, address: [("no runs yet", address)])


def _fast_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    import cppo_lab.doctor
    from cppo_lab.doctor.check import OK, Check

    monkeypatch.setattr(cppo_lab.doctor, "examine", lambda composed, uri, runs: [Check("torch", OK, "2.9")])
    assert environment.doctor


@pytest.mark.parametrize("more", [["--power"], []])
def test_other_answers_of_plan(more: list[str], workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "quickstart", "--effect", "1", "--power"] if more else ["plan", "tune_cppo"]
    code, found = answered(words, capfd)
    assert code == 0
    assert required("plan") <= found.keys() - HEADING.keys() <= allowed("plan")
    assert ("claims" in found) == bool(more)
    assert ("search" in found) != bool(more)


def test_what_is_printed_meanwhile_is_not_in_the_object(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(execute, "load_core", lambda name: train)
    code, found = answered(["launch", *SWEEP, "--dry-run"], capfd)
    assert (code, found["dry_run"], len(found["to_train"])) == (0, True, 1)
    assert sorted(path.name for path in workspace.iterdir()) == []
    assert main(["launch", *SWEEP, "--json"]) == 0
    output = capfd.readouterr()
    found = json.loads(output.out)
    assert (found["dry_run"], found["to_train"]) == (False, [found["runs"][0]["run_id"]])
    assert "a trainer prints this" in output.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["plan", "quickstrat"], Exit.USAGE, "quickstrat"),
        (["status", "--bogus"], Exit.USAGE, "--bogus"),
        (["plan", "quickstart", "rule.delta=x"], Exit.USAGE, "rule.delta"),
        (["report", "quickstart"], Exit.STORE_AWAY, "does not exist"),
    ],
)
def test_a_mistake_is_an_object_too(
    words: list[str], code: Exit, says: str, workspace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) if "--bogus" in words else pytest.MonkeyPatch.context():
        assert main([*words, "--json"]) == code
    output = capfd.readouterr()
    found = json.loads(output.out)
    assert (found["command"], found["exit_code"]) == (words[0], code)
    assert says in found["error"]
    assert output.err.startswith(f"cppo: error: {found['error']}\n")


def test_numbers_that_json_lacks_are_null() -> None:
    from argparse import Namespace

    from cppo_lab.cli.answer import document

    options = Namespace(name="plan", answer={"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (1,)}})
    found = json.loads(document(options, 0))
    assert (found["a"], found["b"], found["c"]) == (None, [None, 1.5], {"d": [1]})


def test_the_document_has_every_key_and_exit_code() -> None:
    text = (ROOT.parent / "docs" / "commands.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    for name, keys in ANSWERS.items():
        shown = "; ".join(f"`{key}`: {meaning}" for key, meaning in keys.items())
        assert f"| `{name}` | {shown} |" in lines
    for code, meaning in MEANINGS.items():
        assert f"| {code.value} | {meaning} |" in lines
    for key, meaning in (HEADING | RUN_KEYS).items():
        assert f"| `{key}` | {meaning} |" in lines
