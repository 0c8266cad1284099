"""A job over several nodes, as far as it goes without Slurm."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cppo_lab import schema
from cppo_lab.launch.slurm import job as job_module
from cppo_lab.launch.slurm.container import OUTSIDE
from cppo_lab.launch.slurm.job import SlurmTask
from cppo_lab.runs import attempt as execute
from cppo_lab.runs.attempt import Attempt
from cppo_lab.sweep.compose import compose
from tests.jobs import job


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    composed = compose(["core=verl", "model=tiny_qwen3", "layout=cpu_two_nodes"])
    return job(composed.run, tmp_path, "sqlite:///nowhere.db", layout=composed.layout)


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
    SlurmTask(job(attempt.spec, attempt.runs, attempt.uri, layout=layout), requeues=3)()
    assert seen.trained[0].allocation is None


@pytest.mark.parametrize("rank", [0, 1])
def test_one_machine_alone_says_that_the_job_went_back_too_often(
    attempt: Attempt, seen: Seen, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gave_up: list[str] = []
    monkeypatch.setattr(Attempt, "give_up", lambda self, why: gave_up.append(why))
    monkeypatch.setenv("SLURM_PROCID", str(rank))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "4")
    task = SlurmTask(attempt, requeues=3)
    if rank == 0:
        with pytest.raises(SystemExit, match="requeued 3 times, the most allowed"):
            task()
    else:
        task()
    assert len(gave_up) == (1 if rank == 0 else 0)
    assert seen == Seen()  # no machine has begun anything


def test_in_a_container_a_run_has_the_version_of_the_code_in_the_image(
    attempt: Attempt, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "code_version", lambda: "0.2.0+image")
    tags = {schema.TAG_CODE_VERSION: "0.2.0+login", "kept": "x"}
    one = job(attempt.spec, attempt.runs, attempt.uri, tags)
    SlurmTask(one, requeues=3)()
    monkeypatch.setenv(OUTSIDE, str(attempt.runs / "outside"))
    SlurmTask(one, requeues=3)()
    assert [here.tags for here in seen.trained] == [
        tags,
        {schema.TAG_CODE_VERSION: "0.2.0+image", "kept": "x"},
    ]
