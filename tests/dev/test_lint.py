"""What `dev.lint` reads: the package as it is installed, with messages that name the tree's files."""

import subprocess
import tomllib

import pytest

from cppo_lab import PARTS
from dev import lint


def test_all_is_read_where_it_is_installed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tomllib.loads((lint.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["package-dir"] == {f"cppo_lab.{name}": name for name in PARTS}
    monkeypatch.setattr(lint, "BUILT", tmp_path_factory.mktemp("built"))
    assert lint.build() == 0
    for name in PARTS:
        built, ours = (
            {path.relative_to(folder) for path in folder.rglob("*.py")}
            for folder in (lint.BUILT / "cppo_lab" / name, lint.ROOT / name)
        )
        assert built == ours


def test_messages_name_files_of_the_tree() -> None:
    said = "build/lint/cppo_lab/analysis/inputs.py:1: x\nbuild/lint/cppo_lab/run.py:2: y\ndev/lint.py:3: z\n"
    assert lint.in_the_tree(said) == "analysis/inputs.py:1: x\ncppo_lab/run.py:2: y\ndev/lint.py:3: z\n"


@pytest.mark.parametrize("killed", ["lint-imports", "-p", "-m"])
def test_a_check_that_a_signal_ended_is_no_success(monkeypatch: pytest.MonkeyPatch, killed: str) -> None:
    def run(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        """As if this program, or mypy with such names, had been killed."""
        kind = command[3] if "mypy" in command else command[0].rpartition("/")[2]
        return subprocess.CompletedProcess(command, -9 if kind == killed else 0, "", "")

    monkeypatch.setattr(lint, "build", lambda: 0)
    monkeypatch.setattr(subprocess, "run", run)
    assert lint.main([]) == 1
