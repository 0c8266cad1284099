"""What works without the packages that train, and how the others are asked for."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from cppo_lab import installed
from cppo_lab.cli import main
from cppo_lab.runs import attempt as execute
from tests.plausible import train

WITHOUT = """\
import importlib.abc, json, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from cppo_lab.cli import main
for words in json.loads(sys.argv[1]):
    print("exit code", main(words), flush=True)
"""
TRAINERS = {"torch", "submitit", "psutil", "optuna", "verl", "ray", "transformers"}
SWEEP = ["quickstart", "variant=grpo", "seed=0"]


def without(names: set[str], *commands: list[str]) -> tuple[list[int], str]:
    """The exit codes of commands in one process that cannot import `names`, and its standard error."""
    code = WITHOUT.format(names=names)
    words = [sys.executable, "-c", code, json.dumps(commands)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    codes = [int(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("exit code ")]
    return codes, done.stderr


def test_looking_at_runs_needs_no_trainer(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "load_core", lambda name: train)
    assert main(["launch", *SWEEP, "launcher=inline"]) == 0
    report = ["report", *SWEEP, "--out", "page", "--partial", "--no-log"]
    codes, said = without(
        TRAINERS, ["plan", *SWEEP], ["status", *SWEEP], ["launch", *SWEEP, "--dry-run"], report
    )
    assert codes == [0, 0, 0, 0], said
    assert (workspace / "page" / "index.html").is_file()


def test_what_is_missing_is_named_with_a_command_that_works_here(workspace: Path) -> None:
    commands = [["launch", *SWEEP, f"launcher={launcher}"] for launcher in ("local", "inline")]
    for name, command in zip(("submitit", "torch"), commands, strict=True):
        codes, said = without({name}, command)
        assert codes == [5]
        last = said.splitlines()[-1]
        assert last.startswith(f"cppo: error: package {name!r} is not installed: pip install ")
        assert "cppo-lab[" not in last
    assert list(workspace.iterdir()) == []


class Distribution:
    """As importlib.metadata has it, installed from `url`."""

    requires = ("pydantic>=2", 'torch<3,>=2.4; extra == "train"', 'cppo-lab[train]; extra == "all"')

    def __init__(self, url: str, editable: bool = False) -> None:
        self.text = json.dumps({"url": url, "dir_info": {"editable": editable}}) if url else None

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.text


@pytest.mark.parametrize("editable", [True, False])
def test_an_extra_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editable: bool) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    monkeypatch.setattr(installed, "distribution", lambda name: Distribution(folder.as_uri(), editable))
    option = "-e " if editable else ""
    assert installed.install_extra("train") == f"pip install {option}'{folder}[train]'"
    assert installed.remedy("torch") == installed.install_extra("train")
    assert installed.remedy("pydantic") == "pip install 'pydantic>=2'"


@pytest.mark.parametrize(
    "url", ["", "file:///gone/cppo_lab-0.1.0-py3-none-any.whl", "https://example.org/x.whl"]
)
def test_an_extra_from_elsewhere_is_its_packages(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "distribution", lambda name: Distribution(url))
    assert installed.install_extra("train") == "pip install 'torch<3,>=2.4'"
    assert installed.remedy("torch") == "pip install 'torch<3,>=2.4'"
    assert installed.remedy("stranger") == "pip install stranger"


def test_a_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> object:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installed, "distribution", none)
    assert installed.remedy("torch") == "pip install torch"
