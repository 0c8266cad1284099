"""`cppo list`, `cppo new`, and what the shell completes: asked as argcomplete's scripts do, and in a real bash."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cppo_lab.cli import main
from cppo_lab.cli.names import TEMPLATE
from cppo_lab.runs.folder import read_config
from cppo_lab.sweep.compose import values
from cppo_lab.sweep.file import load_sweep, shipped_sweeps
from cppo_lab.sweep.groups import shipped
from cppo_lab.sweep.words import key_words
from tests.conftest import ROOT
from tests.waiting import CEILING_SECONDS

RUN = "0123456789ab"
MINE = (
    "title: Mine\nquestion: What?\nmodels: [mini_base]\nvariants: {low: {rule: cppo}, high: {rule: cppo}}\n"
    "axes: {rule.w_min: [0.6, 0.8], seed: [0, 1]}\n"
)


@pytest.fixture
def files(workspace: Path) -> Path:
    (workspace / "runs" / RUN).mkdir(parents=True)
    (workspace / "runs" / "preflights").mkdir()
    (workspace / "mine.yaml").write_text(MINE)
    (workspace / "sweeps").mkdir()
    (workspace / "sweeps" / "theirs.yaml").write_text("title: Theirs\nmodels: [mini_base]\n")
    (workspace / "notes.yaml").write_text("title: no sweep\n")
    (workspace / "broken.yaml").write_text("{[")
    return workspace


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["list", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_sweeps_have_a_line_each(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys)
    assert [line.split()[0] for line in lines] == [*shipped_sweeps(), "mine.yaml", "sweeps/theirs.yaml"]
    [mine] = [line for line in lines if line.startswith("mine.yaml")]
    assert mine.endswith("  Mine. What?")
    assert listed(capsys, "sweeps") == lines
    assert main(["plan"]) == 0
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize("option", [["--json"], ["--csv"], ["--power"], ["--state", "done"]])
def test_options_of_plan_need_a_sweep(
    option: list[str], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *option]) == 2
    assert "name a sweep" in capsys.readouterr().err


def test_names_say_what_the_files_do(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "sweeps", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out)["sweeps"]:
        declared = load_sweep(row["name"])
        assert (row["title"], row["question"]) == (declared.title, declared.question)


@pytest.mark.parametrize(("what", "group"), [("models", "model"), ("rules", "rule")])
def test_models_and_rules_have_a_meaning(
    what: str, group: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = listed(capsys, what)
    assert [line.split()[0] for line in lines] == shipped()[group]
    assert all(len(line.split()) > 1 for line in lines)


@pytest.mark.parametrize(
    "overrides",
    [[], ["core=exact", "model=exact_early"], ["core=verl", "model=qwen3_8b_base"], ["launcher=slurm"]],
)
def test_keys_have_a_meaning_and_their_default(
    overrides: list[str], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "keys", *overrides, "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)["keys"]}
    assert {key: row["default"] for key, row in rows.items()} == values(overrides)
    assert [key for key, row in rows.items() if not row["meaning"]] == []


def test_constants_of_every_rule_have_a_meaning() -> None:
    keys = {
        key
        for rule in shipped()["rule"]
        for key in values([f"rule={rule}"])
        if not key.startswith("rule.options")
    }
    assert sorted(keys - key_words().keys()) == []


def test_a_line_of_a_key(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [line] = [line for line in listed(capsys, "keys") if line.startswith("rollout.staleness ")]
    assert line.split(maxsplit=2)[1:] == [
        "0",
        "by how many rollout batches mu is older than the policy in training",
    ]


def test_overrides_belong_to_keys(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models", "core=exact"]) == 2
    assert "takes no overrides" in capsys.readouterr().err


def test_a_new_sweep_runs_as_it_is(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "first"]) == 0
    assert "cppo launch first.yaml" in capsys.readouterr().out
    assert main(["launch", "first.yaml", "launcher=inline", "training.t_stop=5"]) == 0
    runs = sorted((workspace / "runs").glob("*/config.json"))
    assert len(runs) == 8
    assert {(read_config(path) or {})["core"] for path in runs} == {"exact"}


def test_every_example_in_a_new_sweep_is_valid(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = re.sub(r"(?m)^( *)# ( *[a-z_]+:.*)$", r"\1\2", TEMPLATE.read_text())
    assert "hypotheses" in yaml.safe_load(text)
    Path("all.yaml").write_text(text)
    assert main(["plan", "all.yaml"]) == 0
    assert "cppo_low" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("taken", "taken.yaml exists"),
        ("taken.yaml", "taken.yaml exists"),
        ("main", "'main' is a sweep that comes with the product"),
        ("../x", "'../x' is no name of a sweep"),
        ("a b", "'a b' is no name of a sweep"),
        ("", "'' is no name of a sweep"),
    ],
)
def test_new_overwrites_nothing(
    name: str, says: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken.yaml").write_text("mine")
    assert main(["new", name]) == 2
    assert says in capsys.readouterr().err
    assert [path.name for path in workspace.iterdir()] == ["taken.yaml"]
    assert Path("taken.yaml").read_text() == "mine"


def completed(line: str, out: Path, check: str = "") -> list[str]:
    """What argcomplete's script would be told about this command line."""
    code = f"from cppo_lab.cli import main\n{check}\nmain([])"
    environment = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1"}
    environment |= {
        "_ARGCOMPLETE_STDOUT_FILENAME": str(out),
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
    }
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, **environment}, timeout=CEILING_SECONDS
    )
    return sorted(filter(None, out.read_text().split("\v")))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cppo la", ["launch"]),
        ("cppo data ", ["check", "prepare"]),
        ("cppo launch quick", ["quickstart", "quickstart_exact"]),
        ("cppo plan mi", ["mine.yaml"]),
        ("cppo report sweeps/", ["sweeps/theirs.yaml"]),
        ("cppo plan main --pow", ["--power"]),
        ("cppo report main --palette c", ["colorblind"]),
        ("cppo list m", ["models"]),
        ("cppo completion f", ["fish"]),
        ("cppo logs ", [RUN]),
        ("cppo show 01", [RUN]),
        (f"cppo diff {RUN} 0", [RUN]),
        ("cppo cancel --run 0", [RUN]),
        ("cppo export 0", [RUN]),
        ("cppo show 0123 --in main", ["main"]),
        ("cppo replay 0123 --rule cppo_k", ["cppo_kl"]),
        ("cppo doctor --core m", ["mini"]),
        ("cppo launch mine.yaml variant=", ["variant=high", "variant=low"]),
        ("cppo launch --replace mine.yaml variant=low,", ["variant=low,high"]),
        ("cppo plan quickstart variant=gr", ["variant=grpo"]),
        ("cppo plan study variant=cppo_soft", ["variant=cppo_soft"]),
        ("cppo plan broken.yaml var", []),
    ],
)
def test_completion(line: str, words: list[str], files: Path, tmp_path: Path) -> None:
    assert completed(line, tmp_path / "out") == words


def test_completion_loads_nothing_heavy(files: Path, tmp_path: Path) -> None:
    heavy = ("torch", "mlflow", "hydra", "omegaconf", "pydantic", "pandas", "numpy", "submitit", "sqlalchemy")
    check = f"import sys\nsys.modules.update(dict.fromkeys({heavy}))  # an import of one is an error"
    assert completed("cppo launch main variant=dp", tmp_path / "out", check) == ["variant=dppo"]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("cppo la", "launch"),
        ("cppo plan single", "single_mechanism"),
        ("cppo plan quickstart variant=gr", "grpo"),
    ],
)
def test_in_a_real_bash(line: str, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bash splits words at `=`, so that only what is behind it is put in."""
    program = tmp_path / "cppo"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cppo_lab.cli "$@"\n')
    program.chmod(0o755)
    assert main(["completion", "bash"]) == 0
    words = line.replace("=", " = ").split()
    script = (
        f"PATH={tmp_path}:$PATH\n{capsys.readouterr().out}\nCOMP_LINE='{line}' COMP_POINT={len(line)} COMP_TYPE=9\n"
        f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}\n"
        '_python_argcomplete cppo\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.split() == [wanted]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_can_be_read_by_their_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_ARGCOMPLETE" in script
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([program, "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
