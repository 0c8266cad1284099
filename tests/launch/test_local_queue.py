"""How many jobs the local launcher has going at a time, and in what environment."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.launch import local
from cppo_lab.launch.base import Event, LauncherSpec
from cppo_lab.launch.environment import AGREED
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


@dataclass(frozen=True)
class Telling(Paper):
    """Writes down what it finds in its environment."""

    def run(self) -> None:
        """The variables that launcher and job agree on."""
        found = {name: os.environ.get(name) for name in AGREED}
        (self.folder / "environment").write_text(repr(found))


def test_no_variable_of_the_shell_changes_what_launcher_and_job_agree_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = {"SUBMITIT_PREEMPT_SIGNAL": "HUP", "PYTHONSAFEPATH": ""}
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # the job is one of this file
    launch_local(
        [Telling(tmp_path, "a")], LauncherSpec(name="local", workers=1, threads=1), lambda event: None
    )
    assert (tmp_path / "environment").read_text() == repr(
        {"PYTHONSAFEPATH": "1", "SUBMITIT_PREEMPT_SIGNAL": "USR2"}
    )
    assert {name: os.environ[name] for name in shell} == shell
