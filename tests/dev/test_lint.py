"""What `dev.lint` reads: the package as it is installed, with messages that name the tree's files."""

import tomllib
from pathlib import Path

import pytest

from cppo_lab import PARTS
from dev import lint


def test_a_build_takes_the_folders_that_a_checkout_has_beside_the_package() -> None:
    settings = tomllib.loads((lint.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert settings["package-dir"] == {f"cppo_lab.{name}": name for name in PARTS}


def test_all_is_read_where_it_is_installed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lint, "BUILT", tmp_path_factory.mktemp("built"))
    assert lint.build() == 0
    for name in ("analysis", "reports"):
        ours = {path.relative_to(lint.ROOT / name) for path in (lint.ROOT / name).rglob("*.py")}
        built = lint.BUILT / "cppo_lab" / name
        assert {path.relative_to(built) for path in built.rglob("*.py")} == ours


def test_messages_name_files_of_the_tree() -> None:
    said = "build/lint/cppo_lab/analysis/points.py:1: x\nbuild/lint/cppo_lab/run.py:2: y\ndev/lint.py:3: z\n"
    assert lint.in_the_tree(said) == "analysis/points.py:1: x\ncppo_lab/run.py:2: y\ndev/lint.py:3: z\n"


def test_an_unknown_check_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        lint.main(["type"])
    assert "type: not one of imports, types, names" in capsys.readouterr().err


def test_two_public_classes_of_one_name_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lint, "BUILT", tmp_path)
    package = tmp_path / "cppo_lab" / "analysis"
    package.mkdir(parents=True)
    (package / "one.py").write_text("class Trainer: ...\nclass _Own: ...\n")
    (package / "two.py").write_text("class _Own: ...\ndef outer():\n    class Trainer: ...\n")
    assert lint.names() == 0
    (package / "two.py").write_text("import os\nclass Trainer: ...\n")
    capsys.readouterr()
    assert lint.names() == 1
    assert capsys.readouterr().out.count("another public class is named Trainer") == 2
