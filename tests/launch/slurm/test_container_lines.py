"""What a container adds to a batch script, as far as it goes without Slurm."""

import itertools
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.launch.slurm.job import OUTSIDE, ContainerSpec, Wrapping, lines_after, lines_before, wrapping
from cppo_lab.launch.slurm.submit import groups, parameters
from cppo_lab.search.space import resolve
from cppo_lab.search.worker import Worker
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.file import load_sweep
from tests.conftest import user_error
from tests.jobs import job
from tests.launch.slurm.containers import RUNTIMES
from tests.launch.slurm.jobs import Noted, slurm_spec
from tests.launch.stand_in import Slurm


@dataclass(frozen=True)
class Placed(Noted):
    """A job that says what folders it needs."""

    places: tuple[Path, ...] = ()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and a cache of the hub that is not there."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return folder


def spec(runtime: str = "pyxis", **more: Any) -> ContainerSpec:
    values = {"runtime": runtime, "image": "lab/image:1", "mounts": (), "environment": ()}
    return ContainerSpec.model_validate(values | more)


def wrapped(
    *places: Path, runtime: str = "pyxis", python: str | None = None, gpus: int = 0, **more: Any
) -> Wrapping:
    """Of a job of the working folder that needs some places."""
    return wrapping(Placed(Path.cwd(), "job", gpus=gpus, places=places), spec(runtime, **more), python)


def mounted(found: Wrapping) -> list[str]:
    """The mounts of either runtime."""
    for word in found.srun:
        if word.startswith("--container-mounts="):
            return word.partition("=")[2].split(",")
    return [word for option, word in itertools.pairwise(shlex.split(found.python)) if option == "--bind"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_place_is_mounted_once_under_every_name_that_leads_to_it(runtime: str, work: Path) -> None:
    top = work.parent
    for name in ("disk/runs", "disk/store", "home/of me"):
        (top / name).mkdir(parents=True)
    (work / "runs").symlink_to(top / "disk" / "runs")  # a link within a mount leads to a mount
    (top / "linked").symlink_to(top / "home")  # one outside is a name of its own
    places = (
        work / "runs",
        top / "disk" / "store",
        work / "inside",
        Path("relative"),
        Path("../disk/store/below"),
        top / "linked" / "of me",
    )
    assert sorted(mounted(wrapped(*places, runtime=runtime))) == sorted(
        [
            f"{work}:{work}",
            f"{top}/disk/runs:{top}/disk/runs",
            f"{top}/disk/store:{top}/disk/store",
            f"{top}/home/of me:{top}/home/of me",
            f"{top}/home/of me:{top}/linked/of me",
        ]
    )


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_mounts_of_the_user_come_last_and_take_the_place_of_ours(runtime: str, work: Path) -> None:
    data = work.parent / "data"
    mounts = ("/scratch:/scratch", f"{data}:{data}:ro")
    assert mounted(wrapped(data, runtime=runtime, mounts=mounts)) == [f"{work}:{work}", *mounts]


@pytest.mark.parametrize("name", ["a,b", "a:b", 'a"b', "a$b", "a`b", "a\tb", "end ", "/"])
def test_a_folder_that_cannot_be_mounted_is_refused(
    name: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the whole machine."""
    odd = work / name
    odd.mkdir(exist_ok=True)
    for places in ([odd], []):
        with user_error(r"cannot be mounted by its name .*rename it, or work in another"):
            wrapped(*places)
        monkeypatch.chdir(odd)


def test_the_command_in_the_image(work: Path) -> None:
    plain = "env PYTHONSAFEPATH=1 SUBMITIT_PREEMPT_SIGNAL=USR2 PYTHONNOUSERSITE=1"
    assert wrapped().python == f"{plain} python"
    given = wrapped(environment=("A=b c", "B"), python="/opt/x/python -X dev")
    assert given.python == f"{plain} 'A=b c' /opt/x/python -X dev"
    assert shlex.split(wrapped(gpus=8, runtime="apptainer", image="the lab.sif").python) == [
        *("apptainer", "exec", "--nv", "--bind", f"{work}:{work}", "--pwd", str(work), "the lab.sif"),
        *shlex.split(plain),
        "python",
    ]
    assert "--nv" not in wrapped(runtime="apptainer").python


def test_variables_by_name_are_not_among_the_arguments(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are shown to every user of the machine."""
    monkeypatch.setenv("TOKEN", "a secret")
    for runtime in RUNTIMES:
        found = wrapped(runtime=runtime, environment=("TOKEN", "PYTHONPATH"))
        assert "a secret" not in repr(found)
        assert found.setup[0] == "unset PYTHONHOME PYTHONUSERBASE VIRTUAL_ENV"  # named, so it goes in
    [pyxis] = [word for word in wrapped(environment=("TOKEN",)).srun if "env" in word]
    assert pyxis == "--container-env=CPPO_OUTSIDE,TOKEN"


def test_a_published_model_is_shown_and_found_in_the_hub_s_cache(work: Path) -> None:
    words = "core=verl model=qwen3_1_7b_base data=dapo_math layout=one_node paths.data=../prepared"
    composed, top = compose(words.split()), work.parent
    uri = f"sqlite:///{top}/store/x.db"
    attempt = job(composed.run, work / "runs", uri, layout=composed.layout, paths=composed.paths)
    there = [f"{place}:{place}" for place in (top / "prepared", top / "store", work)]
    assert sorted(mounted(wrapping(attempt, spec(), None))) == there
    (cache := top / "hub").mkdir()
    found = wrapping(attempt, spec(), None)
    assert sorted(mounted(found)) == [f"{cache}:{cache}", *there]
    assert f"HF_HUB_CACHE={cache}" in shlex.split(found.python)


def test_the_settings_reach_the_parameters(work: Path) -> None:
    changes = {"srun": ("--mpi=pmix",), "setup": ("module load x",), "python": "py"}
    values = parameters(Placed(work, "job", nodes=2), slurm_spec(container=spec().model_dump(), **changes))
    assert {"--kill-on-bad-exit=1", "--container-image=lab/image:1"} <= set(values["srun_args"])
    assert values["srun_args"][-1] == "--mpi=pmix"
    agreed = "export PYTHONSAFEPATH=1 SUBMITIT_PREEMPT_SIGNAL=USR2"
    assert (values["setup"][0], values["setup"][-1]) == ("module load x", agreed)
    assert parameters(Placed(work, "job"), slurm_spec())["setup"] == [agreed]
    assert values["python"].endswith(" py")
    jobs = [Placed(work, "one"), Placed(work, "two", gpus=1), Placed(work, "three")]
    apptainer = slurm_spec(container=spec("apptainer").model_dump())
    assert [[job.name for job in some] for _, some in groups(jobs, apptainer)] == [["one", "three"], ["two"]]


SCONTROL = """#!/bin/bash
echo "$*" >> "$(dirname "$0")/called"
eligible=PreemptEligibleTime=2026-11-22T00:00:00
[ "$1" = show ] && echo "JobId=7 JobState=RUNNING Reason=None $eligible PreemptTime=$PREEMPT"
exit 0
"""


@pytest.mark.parametrize(
    "asked, preempt, array, requeued",
    [
        ("requeue", "None", "", ["requeue 7"]),
        ("requeue", "None", "5", ["requeue 5_2"]),  # the last task of an array has the number of the array
        ("requeue if preempted", "2026-11-22T00:00:01", "", ["requeue 7"]),
        ("requeue if preempted", "None", "", []),
        ("", "2026-11-22T00:00:01", "", []),
    ],
)
def test_the_batch_script_does_what_was_asked_for_inside(
    asked: str, preempt: str, array: str, requeued: list[str], tmp_path: Path
) -> None:
    slurm, folder = Slurm(tmp_path), tmp_path / "a folder"
    slurm.command("scontrol", SCONTROL)
    folder.mkdir()
    inside = f'printf %s {shlex.quote(asked)} > "${OUTSIDE}"; ' if asked else ""
    # A shell that ends at the first failure, as a line of launcher.setup may want it.
    script = ["set -e", *lines_before(folder), f"bash -c {shlex.quote(inside + 'exit 41')}", *lines_after()]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "PREEMPT": preempt}
    if array:
        environment |= {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": "2"}
    assert subprocess.run(["bash", "-c", "\n".join(script)], env=environment).returncode == 41
    called = slurm.logged("called").splitlines()
    assert [line for line in called if line.startswith("requeue")] == requeued
    assert list(folder.iterdir()) == []


def test_a_search_shows_its_study_s_file_too(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = resolve(load_sweep("tune_cppo"))
    worker = Worker(tuning, job(tuning.base.run, work / "runs", f"sqlite:///{work}/mlflow.db"))
    assert mounted(wrapping(worker, spec(), None)) == [f"{work}:{work}"]
    studies = work.parent / "studies"
    monkeypatch.setenv("OPTUNA_STORAGE", f"{studies}/study.journal")
    assert mounted(wrapping(worker, spec(), None)) == [f"{work}:{work}", f"{studies}:{studies}"]
