"""`cppo list`, `cppo new`, and what the shell completes: asked as argcomplete's scripts do, and in a real bash."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from cppo_lab.cli.names import TEMPLATE
from cppo_lab.runs.folder import read_config
from cppo_lab.sweep.compose import values
from cppo_lab.sweep.file import load_sweep, shipped_sweeps
from cppo_lab.sweep.groups import CONF, shipped
from cppo_lab.sweep.source import key_words
from tests.conftest import ROOT, Command, python
from tests.runs.test_spool import room_for
from tests.waiting import CEILING_SECONDS

RUN = "0123456789ab"
MINE = (
    "title: Mine\nquestion: What?\nmodels: [mini_base]\nvariants: {low: {rule: cppo}, high: {rule: cppo}}\n"
    "axes: {rule.w_min: [0.6, 0.8], seed: [0, 1]}\n"
)


FILES = {
    "mine.yaml": MINE,
    "sweeps/theirs.yaml": "title: Theirs\nmodels: [mini_base]\n",
    "notes.yaml": "title: no sweep\n",
    "broken.yaml": "{[",
    "odd.yaml": "variants: 5\nsweeps: 5\n",
}


@pytest.fixture
def files(workspace: Path) -> None:
    for folder in (f"runs/{RUN}", "runs/preflights", "sweeps"):
        (workspace / folder).mkdir(parents=True)
    for name, text in FILES.items():
        (workspace / name).write_text(text)
    os.mkfifo(workspace / "pipe.yaml")
    (workspace / "circle.yaml").symlink_to("circle.yaml")


def test_sweeps_have_a_line_each(files: None, cppo: Command) -> None:
    lines = cppo("list").out.splitlines()
    assert [line.split()[0] for line in lines] == [*shipped_sweeps(), "mine.yaml", "sweeps/theirs.yaml"]
    [mine] = [line for line in lines if line.startswith("mine.yaml")]
    assert mine.endswith("  Mine. What?")
    assert cppo("list sweeps").out.splitlines() == cppo("plan").out.splitlines() == lines
    for row in cppo("list sweeps --json").answer["sweeps"]:
        if "/" not in row["name"]:
            declared = load_sweep(row["name"])
            assert (row["title"], row["question"]) == (declared.title, declared.question)


@pytest.mark.parametrize("what, group", [("models", "model"), ("rules", "rule")])
def test_models_and_rules_have_a_meaning(what: str, group: str, cppo: Command) -> None:
    lines = cppo(f"list {what}").out.splitlines()
    assert [line.split()[0] for line in lines] == shipped()[group]
    assert all(len(line.split()) > 1 for line in lines)


@pytest.mark.parametrize(
    "overrides, key, default",
    [
        ("", "rule.name", "cppo"),
        ("core=exact model=exact_early", "core", "exact"),
        ("core=verl model=qwen3_8b_base", "rollout.max_response_length", 8192),
        ("launcher=slurm", "launcher.grace_seconds", 120),
    ],
)
def test_keys_have_a_meaning_and_their_default(
    overrides: str, key: str, default: object, cppo: Command
) -> None:
    rows = {row["key"]: row for row in cppo(f"list keys {overrides} --json").answer["keys"]}
    assert rows[key]["default"] == default and rows.keys() == values(overrides.split()).keys()
    assert [key for key, row in rows.items() if not row["meaning"]] == []
    meaning = "by how many rollout batches mu is older than the policy in training"
    assert rows["rollout.staleness"]["meaning"] == meaning


def test_constants_of_every_rule_have_a_meaning() -> None:
    files = [yaml.safe_load(path.read_text()) for path in (CONF / "rule").glob("*.yaml")]
    assert len(files) == len(shipped()["rule"])
    constants = {f"rule.{key}" for file in files for key in file.get("rule", file).keys() - {"defaults"}}
    assert constants - key_words().keys() == {"rule.options"}


def test_a_new_sweep_runs_as_it_is_and_replaces_nothing(cppo: Command) -> None:
    assert "cppo launch first.yaml" in cppo("new first").out
    cppo("launch first.yaml launcher=inline training.t_stop=5")
    runs = sorted(Path("runs").glob("*/config.json"))
    assert len(runs) == 8
    assert {(read_config(path) or {})["core"] for path in runs} == {"exact"}
    before = Path("first.yaml").read_text()
    for name in ("first", "first.yaml"):
        assert "first.yaml exists" in cppo(f"new {name}", code=2).err
    assert Path("first.yaml").read_text() == before


def test_every_example_in_a_new_sweep_is_valid(cppo: Command) -> None:
    text = re.sub(r"(?m)^( *)# ( *[a-z_]+:.*)$", r"\1\2", TEMPLATE.read_text())
    assert "hypotheses" in yaml.safe_load(text)
    Path("all.yaml").write_text(text)
    assert "cppo_low" in cppo("plan all.yaml").out


# Every line in a process of its own, which begins as `main` is called. An import of a heavy library is an error.
COMPLETE = """
import json, os, sys
from cppo_lab.cli import main
sys.modules.update(dict.fromkeys("torch mlflow hydra omegaconf pydantic pandas numpy submitit sqlalchemy".split()))
for number, line in enumerate(json.loads(sys.argv[1])):
    if not os.fork():
        os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
        os.environ["_ARGCOMPLETE_STDOUT_FILENAME"] = f"{sys.argv[2]}/{number}"
        main([])
    assert os.wait()[1] == 0, line
"""


def completed(lines: Sequence[str], out: Path) -> list[str]:
    """The completions that argcomplete returns for each of these command lines."""
    settings = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    typed = json.dumps([f"cppo {line}" for line in lines])
    python("-c", COMPLETE, typed, out, env={**os.environ, **settings}, timeout=CEILING_SECONDS)
    texts = [(out / str(number)).read_text() for number in range(len(lines))]
    return [" ".join(sorted(filter(None, text.split("\v")))) for text in texts]


COMPLETIONS = {
    "la": "launch",
    "data ": "check prepare",
    "launch quick": "quickstart quickstart_exact",
    "plan mi": "mine.yaml",
    "report sweeps/": "sweeps/theirs.yaml",
    "plan main --pow": "--power",
    "report main --palette c": "colorblind",
    "list m": "models",
    "completion f": "fish",
    "logs ": RUN,
    "show 01": RUN,
    f"diff {RUN} 0": RUN,
    "cancel --run 0": RUN,
    "export 0": RUN,
    "show 0123 --in main": "main",
    "replay 0123 --rule cppo_k": "cppo_kl",
    "doctor --core m": "mini",
    "launch mine.yaml variant=": "variant=high variant=low",
    "launch --replace mine.yaml variant=low,": "variant=low,high",
    "plan quickstart variant=gr": "variant=grpo",
    "plan study variant=cppo_soft": "variant=cppo_soft",
    **dict.fromkeys((f"plan {name}.yaml var" for name in ("broken", "odd", "pipe", "circle")), ""),
}


def test_completion(files: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = completed([*COMPLETIONS], tmp_path_factory.mktemp("said"))
    assert dict(zip(COMPLETIONS, found, strict=True)) == COMPLETIONS


def test_completion_before_the_first_run(workspace: Path) -> None:
    assert completed(["show quickstart_e", "logs "], workspace) == ["quickstart_exact", ""]


def test_in_a_real_bash(tmp_path: Path, cppo: Command) -> None:
    """Bash splits words at `=`, so that only what is behind it is put in."""
    program = tmp_path / "cppo"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cppo_lab.cli "$@"\n')
    program.chmod(0o755)
    script = f"PATH={tmp_path}:$PATH\n{cppo('completion bash').out}\n"
    lines = {"cppo la": "launch", "cppo plan quickstart variant=gr": "grpo"}
    for line in lines:
        words = line.replace("=", " = ").split()
        script += (
            f"COMP_LINE='{line}' COMP_POINT={len(line)} COMP_TYPE=9 COMP_WORDS=({' '.join(words)})\n"
            f'COMP_CWORD={len(words) - 1}\n_python_argcomplete cppo\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
        )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == list(lines.values())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_can_be_read_by_their_shells(shell: str, cppo: Command) -> None:
    script = cppo(f"completion {shell}").out
    assert "_ARGCOMPLETE" in script
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([program, "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_limit_on_the_size_of_files_is_named(cppo: Command) -> None:
    with room_for(100):
        said = cppo("new first", code=2).err
    assert "File too large: raise the limit on the size of files (ulimit -f)" in said
    assert "wrote first.yaml" in cppo("new first").out  # nothing was left in its way
