"""The records of the launchers and the files in conf/ are the same."""

from cppo_lab import PARTS_FOLDER
from cppo_lab.launch.base import LauncherSpec
from cppo_lab.launch.launchers import LAUNCHERS, launcher_kind, load_launcher
from cppo_lab.launch.slurm.submit import SlurmSpec
from tests.conftest import user_error


def test_records_names_and_files_agree() -> None:
    """Only Slurm has settings of its own."""
    assert set(LAUNCHERS) == {path.stem for path in (PARTS_FOLDER / "conf" / "launcher").glob("*.yaml")}
    assert all(callable(load_launcher(name)) for name in LAUNCHERS)
    kinds = {name: launcher_kind(name) for name in LAUNCHERS}
    assert kinds == {"inline": LauncherSpec, "local": LauncherSpec, "slurm": SlurmSpec}
    assert launcher_kind(None) is LauncherSpec  # no name: its own validation says so


def test_a_launcher_that_there_is_not() -> None:
    with user_error(r"slum.*inline, local, slurm"):
        load_launcher("slum")
