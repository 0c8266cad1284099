"""`--json` of every command: one object under one heading, with the keys that docs/commands.md lists."""

import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cppo_lab.answers.tokens import tokens_name, write
from cppo_lab.cli import main
from cppo_lab.cli.command import MEANINGS, Exit, build_parser, document
from cppo_lab.plugins import OK, Check
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from tests import plausible
from tests.answers import made
from tests.conftest import ROOT, Command, leave_undrawn, working_in
from tests.jobs import planned

SWEEP = "quickstart variant=grpo seed=0"
# What is typed for each command. {run} and {other} are ids of finished runs.
CASES = {
    "list": "list",
    "new": "new first",
    "plan": f"plan {SWEEP}",
    "show": "show {run}",
    "diff": "diff {run} {other}",
    "pull": f"pull {SWEEP}",
    "launch": f"launch {SWEEP} launcher=inline",
    "retry": f"retry {SWEEP} --failed --dry-run",
    "preflight": "preflight quickstart core=verl --show",
    "status": f"status {SWEEP}",
    "watch": f"watch {SWEEP}",
    "dash": f"dash {SWEEP}",
    "logs": "logs {run}",
    "cancel": f"cancel {SWEEP} --dry-run",
    "sync": "sync",
    "note": "note {run} checked",
    "clean": f"clean {SWEEP}",
    "archive": f"archive {SWEEP} --out packed.zip",
    "evaluate": "evaluate {run} --benchmark chain_spelled",
    "tune": "tune tune_cppo --dry-run",
    "report": f"report {SWEEP} --partial --no-log --out page",
    "compare": "compare made/page made/page",
    "reference import": "reference import",
    "export model": "export {run} --out model",
    "export metrics": f"export metrics {SWEEP} --format csv --out tables",
    "samples": "samples {run}",
    "replay": "replay {run}",
    "ui": "ui",
    "data prepare": "data prepare --out data",
    "data check": "data check made/data",
    "doctor": "doctor",
    "completion": "completion bash",
}


# The rows of the tables in docs/commands.md: the heading, the keys of each command, those of runs, and the exit codes.
LINES = (ROOT / "docs" / "commands.md").read_text().splitlines()
ROWS = {match[1]: match[2] for line in LINES if (match := re.fullmatch(r"\| `([a-z_ ]+)` \| (.*) \|", line))}
KEYS = {name: re.findall(r"(?:^|; )`(\w+\??)`: ", text) for name, text in ROWS.items()}
HEADING = ["schema", "command", "exit_code", "error"]
RUN_KEYS = ["run_id", "variants", "rule", "model", "seed", "state", "reason", "step"]


def test_every_command_is_here_and_in_the_document() -> None:
    """A new subcommand needs a case above and its keys in docs/commands.md; --json it has by itself."""
    commands = build_parser().leaves
    assert commands.keys() == CASES.keys() == {name for name, keys in KEYS.items() if keys}
    assert [name for name, keys in KEYS.items() if not keys] == [*HEADING, *RUN_KEYS]
    assert {f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()} <= {*LINES}
    for name, parser in commands.items():
        assert any("--json" in action.option_strings for action in parser._actions), name


def train(spec: RunSpec, recorder: Recorder, resources: Any) -> Outcome:
    """Plausible, with answers and tokens; it prints, as trainers do."""
    print("a trainer prints this")
    subprocess.run([sys.executable, "-c", "print('and its child this')"], check=True)
    ended = plausible.train(spec, recorder, resources)
    recorder.file(tokens_name(10), write(made.tokens()))
    return ended


@pytest.fixture(scope="module")
def trained(shared_path: Path) -> Path:
    """A folder with two finished runs, a report and data."""
    with working_in(shared_path) as patch:
        patch.setattr("cppo_lab.runs.attempt.load_core", lambda name: train)
        leave_undrawn(patch)
        assert main(["launch", "quickstart", "variant=grpo", "launcher=inline"]) == 0
        for name in ("report", "data prepare"):
            assert main(CASES[name].replace("--out ", "--out made/").split()) == 0
    return shared_path


@pytest.fixture
def made_runs(workspace: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the two runs, in whose folder the commands are typed."""
    monkeypatch.chdir(trained)
    return [run.run_id for run in planned("quickstart variant=grpo").runs]


def keys_fit(name: str, answer: dict[str, Any]) -> bool:
    required = {key for key in KEYS[name] if not key.endswith("?")}
    allowed = {key.removesuffix("?") for key in KEYS[name]}
    assert list(answer)[:4] == HEADING
    return required <= answer.keys() - {*HEADING} <= allowed


def without_long_work(patch: pytest.MonkeyPatch) -> None:
    """What would take long or listen is replaced."""
    patch.setattr("cppo_lab.tracking.reference.import_reference", lambda uri, say: 0)
    patch.setattr("cppo_lab.tracking.reference.nest_reference", lambda uri, sweeps: None)
    patch.setattr("cppo_lab.runs.export.export", lambda runs, run_id, out, say: out)
    patch.setattr("cppo_lab.runs.export.evaluate", lambda subject, other, resources: (10, {"chain24": 0.5}))
    patch.setattr("cppo_lab.cli.reporting.watch_report", Mock(side_effect=KeyboardInterrupt))
    leave_undrawn(patch)
    patch.setattr("cppo_lab.cli.ui._links", lambda uri, address: [("no runs yet", address)])
    patch.setattr("cppo_lab.sweep.doctor.examine", lambda composed, uri, runs: [Check("torch", OK, "2.9")])


@pytest.mark.parametrize("name", CASES)
def test_a_command_answers_with_its_keys(
    name: str, cppo: Command, made_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_long_work(monkeypatch)
    if name == "ui":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    run, other = made_runs
    code = Exit.NO if name == "preflight" else Exit.DONE
    answer = cppo(f"{CASES[name].format(run=run, other=other)} --json", code=code).answer
    assert [answer[key] for key in HEADING] == [1, name, code, None]
    assert keys_fit(name, answer)
    if name in ("plan", "launch", "retry", "status", "watch"):
        [row] = answer["runs"]
        assert {*RUN_KEYS} <= row.keys()
        assert (row["run_id"], row["state"]) == (run, "done")


def test_a_file_is_no_benchmark_of_a_core_that_makes_its_problems(
    cppo: Command, made_runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "mine.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    monkeypatch.setattr("cppo_lab.runs.export.require_weights", lambda *_: None)  # these runs have none
    for benchmark, says in (
        (file, "data='files' has the keys of other cores: choose another option"),
        ("addition", "another task or vocabulary: choose one of its own"),
    ):
        assert says in cppo(f"evaluate {made_runs[0]} --benchmark {benchmark}", code=Exit.USAGE).err


@pytest.mark.parametrize(
    "line, key",
    [
        ("plan quickstart --effect 1 --power", "claims"),
        ("plan tune_cppo", "search"),
        ("sync --dry-run", "dry_run"),
    ],
)
def test_other_answers(line: str, key: str, cppo: Command) -> None:
    answer = cppo(f"{line} --json").answer
    assert key in answer and keys_fit(line.split()[0], answer)


def test_the_runs_of_a_sweep_are_evaluated_and_listed(
    cppo: Command, made_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_long_work(monkeypatch)
    said = cppo("evaluate quickstart variant=grpo --benchmark chain_spelled").out
    assert said.count("step 10: chain24 50.0 %\n") == 2


def test_what_is_printed_meanwhile_is_not_in_the_object(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", lambda name: train)
    launch = [*CASES["launch"].split(), "--json"]
    assert main([*launch, "--dry-run"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert (answer["dry_run"], len(answer["to_train"])) == (True, 1)
    assert list(workspace.iterdir()) == []
    assert main(launch) == 0
    output = capfd.readouterr()
    answer = json.loads(output.out)
    assert (answer["dry_run"], answer["to_train"]) == (False, [answer["runs"][0]["run_id"]])
    assert "a trainer prints this" in output.err and "and its child this" in output.err


@pytest.mark.parametrize(
    "line, code, says",
    [
        ("status --bogus", Exit.USAGE, "--bogus"),
        ("plan quickstart rule.delta=x", Exit.USAGE, "rule.delta"),
        ("report quickstart", Exit.STORE_AWAY, "does not exist"),
    ],
)
def test_a_mistake_is_an_object_too(line: str, code: Exit, says: str, cppo: Command) -> None:
    said = cppo(f"{line} --json", code=code)
    assert (said.answer["command"], said.answer["exit_code"]) == (line.split()[0], code)
    assert says in said.answer["error"]
    assert said.err.startswith(f"cppo: error: {said.answer['error']}\n")


def test_numbers_that_json_lacks_are_null() -> None:
    values = {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (1,)}}
    answer = json.loads(document(Namespace(name="plan", answer=values), 0))
    assert (answer["a"], answer["b"], answer["c"]) == (None, [None, 1.5], {"d": [1]})
