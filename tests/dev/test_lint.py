"""What `dev.lint` reads: the package as it is installed, with messages that name the tree's files."""

import tomllib
from pathlib import Path

import pytest

from cppo_lab import PARTS
from dev import lint, rooms
from dev.late_imports import needless


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
    assert "type: not one of imports, types, names, late" in capsys.readouterr().err


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


def test_a_late_import_that_saves_no_heavy_library_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    package = tmp_path / "cppo_lab"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "light.py").write_text("import json\n\ndef read():\n    import torch\n")
    (package / "slow.py").write_text(
        "import cppo_lab.light\ntry:\n    import torch.nn\nexcept ImportError: ...\n"
    )
    (package / "user.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from cppo_lab.slow import torch\n\n"
        "def use():\n    from cppo_lab import slow\n"
    )
    assert lint.late() == 0
    with (package / "user.py").open("a") as file:
        file.write("    if slow:\n        from cppo_lab.light import json\n")
    assert lint.late() == 1
    assert "cppo_lab/user.py:9: imports cppo_lab.light inside a function" in capsys.readouterr().out
    known = rooms.modules(tmp_path)
    # What the module has loaded already is saved by no late import.
    (package / "user.py").write_text("import torch\n\ndef use():\n    from cppo_lab import slow\n")
    assert needless(known) == [(package / "user.py", 4, "cppo_lab.slow")]
    (package / "user.py").write_text("def use():\n    import cppo_lab.slow\n")
    assert needless(known) == []


def test_a_package_counts_as_loaded_with_its_modules(tmp_path: Path) -> None:
    room = tmp_path / "cppo_lab" / "room"
    room.mkdir(parents=True)
    (room.parent / "__init__.py").touch()
    (room / "__init__.py").write_text("import pandas\n")
    (room / "light.py").touch()
    (room.parent / "user.py").write_text("def use():\n    from cppo_lab.room.light import thing\n")
    assert needless(rooms.modules(tmp_path)) == []


def test_a_command_may_import_its_own_files_late(tmp_path: Path) -> None:
    commands = tmp_path / "cppo_lab" / "cli"
    commands.mkdir(parents=True)
    (commands.parent / "__init__.py").touch()
    (commands / "__init__.py").write_text("from cppo_lab.cli import one, two\n")
    (commands / "one.py").write_text(
        "def run():\n    from cppo_lab.own import a\n    from cppo_lab.shared import b\n"
    )
    (commands / "two.py").write_text("from cppo_lab import shared\n")
    (commands.parent / "own.py").touch()
    (commands.parent / "shared.py").touch()
    assert needless(rooms.modules(tmp_path)) == [(commands / "one.py", 3, "cppo_lab.shared")]
