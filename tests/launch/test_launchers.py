"""The records of the launchers and the files in conf/ are the same; in what environment jobs of this machine are."""

import json
import os
import re
import subprocess
import sys
from multiprocessing import resource_tracker
from pathlib import Path
from unittest.mock import patch

import pytest

from cppo_lab import PARTS_FOLDER
from cppo_lab.launch.base import JOB_VARIABLES, Launcher, LauncherSpec
from cppo_lab.launch.launchers import LAUNCHERS, launch_inline, launcher_kind, load_launcher
from cppo_lab.launch.local import launch_local
from cppo_lab.launch.slurm.submit import SlurmSpec
from tests.conftest import ROOT, user_error
from tests.launch.slurm.jobs import Noted, Telling

SPEC = LauncherSpec(name="local", workers=1, threads=1)


def test_records_names_and_files_agree() -> None:
    """Only Slurm has settings of its own."""
    assert set(LAUNCHERS) == {path.stem for path in (PARTS_FOLDER / "conf" / "launcher").glob("*.yaml")}
    assert all(callable(load_launcher(name)) for name in LAUNCHERS)
    kinds = {name: launcher_kind(name) for name in (*LAUNCHERS, None)}  # no name: its own validation says so
    assert kinds == dict.fromkeys(("inline", "local", None), LauncherSpec) | {"slurm": SlurmSpec}
    with user_error(r"slum.*inline, local, slurm"):
        load_launcher("slum")


@pytest.mark.parametrize("name", ["50%test", "90%accuracy", "100%A", "5%jobs"])
def test_a_folder_in_whose_name_submitit_would_write_numbers_is_refused(tmp_path: Path, name: str) -> None:
    """It would put logs and results into a folder beside it, and see no job end well."""
    job = Noted(tmp_path / name / "runs", "a")
    number = re.search("%.", name)[0]
    with user_error(f"launcher=local: the folder '.*{name}/runs' has {number} in its name"):
        launch_local([job], SPEC, lambda event: None)
    assert not any(tmp_path.iterdir())


SHELL = {
    "SUBMITIT_PREEMPT_SIGNAL": "HUP",
    "PYTHONSAFEPATH": "",
    "SUBMITIT_LOG_LEVEL": "no level",
    "_TEST_CLUSTER_": "x",
    "SLURM_JOB_ID": "7",
}


# The job is one of the tests'.
@patch.dict(os.environ, SHELL | {"PYTHONPATH": str(ROOT)})
@pytest.mark.parametrize("launch", [launch_local, launch_inline])
def test_no_variable_of_the_shell_changes_what_launcher_and_job_agree_on(
    tmp_path: Path, launch: Launcher
) -> None:
    job = Telling(tmp_path, "a", fresh_process=True)
    launch([job], SPEC, lambda event: None)
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # multiprocessing leaves it running
    job_finds = dict.fromkeys(SHELL) | JOB_VARIABLES | {"SLURM_JOB_ID": "7"}  # it is part of that job
    found = json.loads((job.folder / "environment").read_text())
    assert {name: found.get(name) for name in SHELL} == job_finds
    assert {name: os.environ[name] for name in SHELL} == SHELL


def test_no_variable_of_submitit_keeps_a_launcher_from_loading() -> None:
    code = "from cppo_lab.launch.launchers import load_launcher as load; [load(name) for name in ('local', 'slurm')]"
    subprocess.run([sys.executable, "-c", code], env=os.environ | SHELL, check=True)


class Setting(Noted):
    """A job that sets the variables of its process."""

    def run(self) -> None:
        """As `prepare_process` does."""
        os.environ.update(OMP_NUM_THREADS="7", CUDA_VISIBLE_DEVICES="")
        os.chdir("/")
        sys.exit(0)


def test_a_job_in_this_process_leaves_it_its_variables_and_folder_and_does_not_end_it(tmp_path: Path) -> None:
    before, events = (dict(os.environ), Path.cwd()), []
    launch_inline([Setting(tmp_path, "a")] * 2, SPEC, lambda event: events.append(event.kind))
    assert (dict(os.environ), Path.cwd()) == before
    assert events == ["started", "ended"] * 2
