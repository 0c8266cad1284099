"""Entry points of other packages: what is wrong with one is named, and harms no other."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from cppo_lab import plugins
from cppo_lab.core_records import core_names, core_of
from cppo_lab.launch.base import LauncherSpec
from cppo_lab.launch.launchers import LauncherRecord, launcher_of
from cppo_lab.plugins import CORE_GROUP, LAUNCHER_GROUP, entry_points, load
from cppo_lab.rules import ENTRY_POINT, GROUP, rule_of
from tests.conftest import user_error

GROUPS = (GROUP, CORE_GROUP, LAUNCHER_GROUP)


@pytest.fixture(autouse=True)
def _as_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of `package`; nothing of them is remembered."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for one in (entry_points, core_of):
        one.cache_clear()


def package(folder: Path, name: str, points: str) -> None:
    """The metadata of an installed package with these entry points in each group."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n{points}\n" for group in GROUPS))


def find(group: str, name: str) -> object:
    return {
        GROUP: lambda: rule_of(name, ENTRY_POINT),
        CORE_GROUP: lambda: core_of(name),
        LAUNCHER_GROUP: lambda: launcher_of(name),
    }[group]()


@pytest.mark.parametrize("group", GROUPS)
def test_a_name_of_two_packages_names_both(tmp_path: Path, group: str) -> None:
    package(tmp_path, "acme", "mine = acme_records:MINE\nother = acme_records:OTHER")
    package(tmp_path, "bolt", "mine = bolt_records:MINE\nother = acme_records:OTHER")
    listed = "acme_records:MINE of package acme|bolt_records:MINE of package bolt"
    with user_error(f"entry point 'mine' of {group!r} is both ({listed}) and ({listed}): uninstall one"):
        find(group, "mine")
    # The same object twice is one, and only its module is missing.
    with user_error(r"acme_records:OTHER.*cannot be imported"):
        find(group, "other")
    assert {"mine", "other"} <= set(core_names()), "the options can be listed"


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", ["my own", "a/b", "x" * 65])
def test_a_name_that_is_no_word_is_refused(tmp_path: Path, group: str, name: str) -> None:
    package(tmp_path, "acme", f"{name} = acme_records:MINE")
    with user_error(rf"{name!r} .*acme_records:MINE of package acme\).*: rename it in its package"):
        find(group, name)


@pytest.mark.parametrize("group", GROUPS)
def test_a_module_that_ends_the_process_is_an_error(tmp_path: Path, group: str) -> None:
    (tmp_path / "acme_records.py").write_text("import sys\nsys.exit(3)\n")
    package(tmp_path, "acme", "mine = acme_records:MINE")
    with user_error(r"acme_records:MINE.*calls sys.exit\(3\) as it is imported"):
        find(group, "mine")


@pytest.mark.parametrize("settings", ["cppo_lab.plugins:load", "cppo_lab.spec:RunSpec"])
def test_settings_of_another_kind_are_refused(settings: str) -> None:
    record = LauncherRecord("mine", "mine", "a:b", settings=settings)
    with user_error(r"settings of launcher 'mine' is <.*>: name a subclass of .*LauncherSpec"):
        record.settings_kind(LauncherSpec)


def test_what_is_interrupted_is_no_error_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cppo_lab.plugins.pkgutil.resolve_name", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        load("acme:MINE", "rule.path")


def test_a_folder_that_an_interrupted_installation_left_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "acme-1.0.dist-info").mkdir()
    line = plugins.Requirement("acme", ">=1", "core=verl").check().line
    assert line == "missing     acme: not installed, needed by core=verl: pip install 'acme>=1'"


def test_the_digest_of_code_is_that_of_its_module_or_of_all_of_its_package(tmp_path: Path) -> None:
    (tmp_path / "digested.py").write_text("raise ValueError('it is not imported')\n")
    (tmp_path / "digested_package" / "inner").mkdir(parents=True)
    for name in ("__init__", "rewards", "inner/helper"):
        (tmp_path / "digested_package" / f"{name}.py").write_text("x = 1\n")
    paths = ("digested:score", "digested_package.rewards:score")
    before = [plugins.code_digest(path, "it") for path in paths]
    (tmp_path / "digested_package" / "inner" / "helper.py").write_text("x = 2\n")
    assert [plugins.code_digest(path, "it") == old for path, old in zip(paths, before, strict=True)] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    "path",
    ["digested_nowhere:score", "digested_nowhere.inner:score", "json.nowhere:score", "math:sqrt", "os"],
)
def test_code_without_source_is_refused(path: str) -> None:
    with user_error(f"data.reward='{path}'"):
        plugins.code_digest(path, "data.reward")
