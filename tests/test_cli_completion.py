"""What the shell completes: read by `cppo _complete`, and in a real bash."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.cli.completion import BASH, SCRIPTS, complete
from cppo_lab.cli.parser import build_parser
from tests.conftest import ROOT

RUN = "0123456789ab"


def found(*words: str) -> list[str]:
    return complete(build_parser(), words)


@pytest.fixture
def files(workspace: Path) -> Path:
    (workspace / "runs" / RUN).mkdir(parents=True)
    (workspace / "runs" / "preflights").mkdir()
    (workspace / "mine.yaml").write_text(
        "title: Mine\nmodels: [mini_base]\nvariants: {low: {rule: cppo}, high: {rule: cppo}}\n"
        "axes: {rule.w_min: [0.6, 0.8], seed: [0, 1]}\n"
    )
    return workspace


def test_commands_options_and_sweeps(files: Path) -> None:
    assert found("la") == ["launch"]
    assert found("data", "") == ["prepare", "check", "--help"]
    assert "_complete" not in found("")
    assert found("launch", "quick") == ["quickstart", "quickstart_exact"]
    assert found("plan", "mi") == ["mine.yaml"]
    assert found("plan", "main", "--pow") == ["--power"]
    assert found("report", "main", "--palette", "c") == ["colorblind"]
    assert found("status", "main", "--state", "done,fail") == ["done,failed"]
    assert found("export", RUN, "--out", "") == []  # the shell offers files


def test_run_ids(files: Path) -> None:
    assert found("logs", "") == [RUN]
    assert found("show", "01") == [RUN]
    assert found("diff", RUN, "0") == [RUN]
    assert found("cancel", "--run", "0") == [RUN]


def test_rules_cores_and_reports(files: Path) -> None:
    assert "cppo_no_prefix_budget" in found("replay", RUN, "--rule", "cppo")
    assert found("doctor", "--core", "m") == ["mini"]
    assert found("compare", "") == []
    (files / "reports" / "build" / "quickstart").mkdir(parents=True)
    assert found("compare", "") == found("compare", "quickstart", "q") == ["quickstart"]


def test_a_command_without_arguments_has_its_options_alone(files: Path) -> None:
    assert found("ui", "x") == []
    assert found("ui", "--po") == ["--port"]
    assert found("report", "--every", "") == []


def test_keys_and_values_of_overrides(files: Path) -> None:
    assert "rule.w_min=" in found("launch", "mine.yaml", "rule.")
    assert "training.t_stop=" in found("launch", "main", "training.")
    assert found("launch", "mine.yaml", "variant=") == ["variant=low", "variant=high"]
    assert found("launch", "mine.yaml", "--replace", "variant=low,") == ["variant=low,high"]
    assert found("launch", "mine.yaml", "model=") == ["model=mini_base"]
    assert found("launch", "mine.yaml", "rule.w_min=0.") == ["rule.w_min=0.6", "rule.w_min=0.8"]
    assert {"launcher=inline", "launcher=slurm"} <= set(found("launch", "main", "launcher="))
    assert "variant=cppo" in found("plan", "study", "variant=")


def test_every_key_that_is_offered_is_known_to_the_configuration() -> None:
    """By the sections of conf/: an invented one would be `something.name`."""
    sections = {word.partition(".")[0] for word in found("plan", "main", "") if "." in word}
    assert {"rule", "training", "rollout", "launcher", "tracking"} <= sections
    assert "rule.training.aggregation=" not in found("plan", "main", "rule.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_as_it_is(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == SCRIPTS[shell]


def test_a_file_that_is_no_sweep_is_no_error(files: Path) -> None:
    (files / "broken.yaml").write_text("{[")
    assert found("plan", "broken.yaml", "seed") == ["seed="]


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys\nfrom cppo_lab.cli import main\nmain(['_complete', 'launch', 'main', 'rule.'])\n"
        "heavy = {'torch', 'mlflow', 'hydra', 'omegaconf', 'pydantic', 'pandas', 'numpy', 'submitit'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "heavy: []" in done.stdout


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("cppo la", "launch"),
        ("cppo plan single", "single_mechanism"),
        ("cppo plan quickstart variant=gr", "grpo"),
    ],
)
def test_in_a_real_bash(line: str, wanted: str, tmp_path: Path) -> None:
    """Bash splits words at `=`, so that only what is behind it is put in."""
    program = tmp_path / "cppo"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cppo_lab.cli "$@"\n')
    program.chmod(0o755)
    words = line.replace("=", " = ").split()
    script = (
        f"PATH={tmp_path}:$PATH\n{BASH}\nCOMP_LINE='{line}' COMP_POINT={len(line)}\n"
        f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}\ncompopt() {{ :; }}\n_cppo\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.split() == [wanted]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_can_be_read_by_their_shells(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([program, "-n"], input=SCRIPTS[shell], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
