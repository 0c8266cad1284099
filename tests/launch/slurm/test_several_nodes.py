"""A job over several nodes, as far as it goes without Slurm."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cppo_lab import attempt as execute
from cppo_lab.attempt import Attempt
from cppo_lab.launch.slurm.job import SlurmTask
from cppo_lab.sweep.compose import compose


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    composed = compose(["core=verl", "model=tiny_qwen3", "layout=cpu_two_nodes"])
    return Attempt(composed.run, tmp_path, "sqlite:///nowhere.db", layout=composed.layout)


@dataclass
class Seen:
    trained: list[Any] = field(default_factory=list)
    lent: list[Any] = field(default_factory=list)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    monkeypatch.setattr(execute, "execute", found.trained.append)
    monkeypatch.setattr(execute, "join_as_worker_node", found.lent.append)
    for name, value in {
        "SUBMITIT_EXECUTOR": "slurm",
        "SLURM_JOB_ID": "41",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "gpu[07-08]",
        "CUDA_VISIBLE_DEVICES": "4,5",
    }.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_machine_trains_and_the_others_are_lent(
    attempt: Attempt, seen: Seen, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", str(rank))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    SlurmTask(attempt, requeues=3)()
    assert (len(seen.trained), len(seen.lent)) == ((1, 0) if rank == 0 else (0, 1))
    (here,) = seen.trained + seen.lent
    assert here.visible_devices == "4,5"
    assert (here.allocation.machines, here.allocation.rank) == (("gpu07", "gpu08"), rank)
    assert here.allocation.meeting == attempt.folder / "attempts" / "nodes-41.3"  # another one in each life
    assert here.allocation.ended() == (rank == 0)


def test_a_job_on_one_node_has_no_allocation(
    attempt: Attempt, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = compose(["core=verl", "model=tiny_qwen3"]).layout
    SlurmTask(Attempt(attempt.spec, attempt.runs, attempt.uri, layout=layout), requeues=3)()
    assert seen.trained[0].allocation is None
