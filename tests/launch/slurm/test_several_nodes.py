"""A job on several nodes: the first machine trains, the others are lent, and the first alone says how it ends."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cppo_lab import schema
from cppo_lab.launch.slurm.job import OUTSIDE, SlurmTask
from cppo_lab.launch.training import TrainingJob
from cppo_lab.search.worker import Worker
from cppo_lab.sweep.compose import compose
from tests.jobs import job
from tests.search.made_search import made_tuning


def training_job(runs: Path, layout: str = "layout=cpu_two_nodes", **values: Any) -> TrainingJob:
    """A job on several nodes, which uploads nothing."""
    composed = compose(["core=verl", "model=tiny_qwen3", layout])
    made = job(composed.run, runs, "sqlite:///nowhere.db", layout=composed.layout, **values)
    return dataclasses.replace(made, uploads=False)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The attempts that were trained, and the devices and allocations of machines that were lent."""
    seen = SimpleNamespace(trained=[], lent=[])
    monkeypatch.setattr(
        "cppo_lab.launch.training.train", lambda attempts, *_, **__: seen.trained.extend(attempts)
    )
    monkeypatch.setattr(
        "cppo_lab.launch.training.lend_machine",
        lambda core, starts, devices: seen.lent.extend((devices, start.allocation) for start in starts),
    )
    for name, value in {
        "SUBMITIT_EXECUTOR": "slurm",
        "SLURM_JOB_ID": "41",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "gpu[07-08]",
        "SLURM_RESTART_COUNT": "3",
        "CUDA_VISIBLE_DEVICES": "4,5",
    }.items():
        monkeypatch.setenv(name, value)
    return seen


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_machine_trains_and_the_others_are_lent(
    tmp_path: Path, seen: SimpleNamespace, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", str(rank))
    job = training_job(tmp_path)
    SlurmTask(job, requeues=3, grace_seconds=180)()
    assert [attempt.grace_seconds for attempt in seen.trained] == [180] * (1 - rank)
    trained = [(attempt.visible_devices, attempt.allocation) for attempt in seen.trained]
    assert (len(trained), len(seen.lent)) == (1 - rank, rank)
    [(devices, allocation)] = trained + seen.lent
    assert (devices, allocation.machines, allocation.rank) == ("4,5", ("gpu07", "gpu08"), rank)
    assert allocation.meeting == job.folder / "attempts" / "nodes-41.3"  # another one in each life
    assert allocation.ended() == (rank == 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_machine_alone_says_that_the_job_went_back_too_often(
    tmp_path: Path, seen: SimpleNamespace, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gave_up: list[str] = []
    monkeypatch.setattr("cppo_lab.launch.training.TrainingJob.give_up", lambda self, why: gave_up.append(why))
    monkeypatch.setenv("SLURM_PROCID", str(rank))
    task = SlurmTask(training_job(tmp_path), requeues=2)
    if rank == 0:
        with pytest.raises(SystemExit, match="requeued 2 times, the most allowed"):
            task()
    else:
        task()
    assert len(gave_up) == 1 - rank
    assert not seen.trained and not seen.lent  # no machine has begun anything


def test_a_worker_of_a_search_trains_with_the_devices_of_its_job(
    workspace: Path, seen: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with those of the machine that submitted it."""
    devices: list[str | None] = []
    monkeypatch.setattr(
        "cppo_lab.search.worker.Worker.run",
        lambda self: devices.extend(a.visible_devices for a in self.training.attempts),
    )
    tuning = made_tuning()
    SlurmTask(Worker(tuning, job(tuning.base.run, workspace / "runs", "sqlite:///nowhere.db")), requeues=3)()
    assert devices == ["4,5"]


def test_in_a_container_a_run_has_the_version_of_the_code_in_the_image(
    tmp_path: Path, seen: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.launch.slurm.job.code_version", lambda: "0.2.0+image")
    tags = {schema.TAG_CODE_VERSION: "0.2.0+login", "kept": "x"}
    task = SlurmTask(training_job(tmp_path, tags=tags), requeues=3)
    task()
    monkeypatch.setenv(OUTSIDE, str(tmp_path / "outside"))
    task()
    image = {schema.TAG_CODE_VERSION: "0.2.0+image", "kept": "x"}
    assert [attempt.tags for attempt in seen.trained] == [tags, image]
