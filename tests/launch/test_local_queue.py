"""How many jobs the local launcher has going at a time, with processes that only count."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.launch import local
from cppo_lab.launch.base import Event, LauncherSpec
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
