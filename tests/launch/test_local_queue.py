"""How many jobs the local launcher has going at a time, and in what environment."""

import os
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.launch import local
from cppo_lab.launch.base import Event, Launcher, LauncherSpec
from cppo_lab.launch.environment import AGREED
from cppo_lab.launch.inline import launch_inline
from cppo_lab.launch.local import launch_local


@dataclass(frozen=True)
class Paper:
    """A job that takes nothing."""

    folder: Path
    name: str
    fresh_process: bool = False
    nodes: int = 1
    gpus: int = 0
    resources: None = None

    def run(self) -> None:
        """Nothing is done."""

    def give_up(self, why: str) -> None:
        """Nothing is noted."""


class Process:
    """Has ended when it is asked for the third time."""

    def __init__(self) -> None:
        self.asked = 0

    def done(self) -> bool:
        self.asked += 1
        return self.asked > 2


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_as_many_as_there_are_workers_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(local, "_submit", lambda job: Process())
    monkeypatch.setattr(local, "POLL_SECONDS", 0.0)
    jobs = [Paper(tmp_path / str(number), str(number)) for number in range(5)]
    going: set[str] = set()
    most, ended = 0, []

    def report(event: Event[Any]) -> None:
        nonlocal most
        if event.kind == "started":
            going.add(event.job.name)
        elif event.kind == "ended":
            going.remove(event.job.name)
            ended.append(event.job.name)
        most = max(most, len(going))

    launch_local(jobs, LauncherSpec(name="local", workers=workers, threads=1), report)
    assert most == min(workers, len(jobs))
    assert sorted(ended) == [job.name for job in jobs]


SHELL = {
    "SUBMITIT_PREEMPT_SIGNAL": "HUP",
    "PYTHONSAFEPATH": "",
    "SUBMITIT_LOG_LEVEL": "no level",
    "_TEST_CLUSTER_": "x",
    "SLURM_JOB_ID": "7",
}


@dataclass(frozen=True)
class Telling(Paper):
    """Writes down what it finds in its environment."""

    def run(self) -> None:
        """The variables that the shell has."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "environment").write_text(repr({name: os.environ.get(name) for name in SHELL}))


@pytest.mark.parametrize("launch", [launch_local, launch_inline])
def test_no_variable_of_the_shell_changes_what_launcher_and_job_agree_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Launcher
) -> None:
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # the job is one of this file
    job = Telling(tmp_path, "a", fresh_process=True)
    launch([job], LauncherSpec(name="local", workers=1, threads=1), lambda event: None)
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # multiprocessing leaves it running
    job_finds = dict.fromkeys(SHELL) | AGREED | {"SLURM_JOB_ID": "7"}  # it is part of that job
    assert (tmp_path / "environment").read_text() == repr(job_finds)
    assert {name: os.environ[name] for name in SHELL} == SHELL
