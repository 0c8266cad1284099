"""One Ray cluster over two machines of a real Slurm: it forms, works and leaves nothing, however the job ends.

The cluster has a network of its own, since Ray does not stay on loopback by itself.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.cores.verl.cluster import remove_abandoned
from cppo_lab.launch.slurm.queue import ACTIVE, WAITING, Ledger
from dev.slurm import starting
from dev.slurm.cluster import PATH, Cluster
from dev.slurm.daemons import of_cluster
from dev.slurm.settings import Settings
from tests.launch.slurm.conftest import wait_until_empty
from tests.launch.slurm.containers import RUNTIMES, asked, make_image, stand_ins
from tests.requirement import SLURM
from tests.slurm.conftest import PATIENT, cluster_folder
from tests.waiting import CEILING_SECONDS, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.verl,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs cppo-lab[verl]"),
]
ROOT = Path(__file__).parents[2]
SWEEP = """
title: Two machines
question: Do two machines train one run?
models: [tiny_qwen3]
variants: {grpo: {rule: grpo}}
axes: {seed: [0]}
"""


@pytest.fixture(scope="module")
def machines() -> Iterator[Cluster]:
    """Two virtual machines of two CPUs, alone in their network."""
    if missing := starting.missing(accounting=False, private_network=True):
        SLURM.lack(f"not installed: {', '.join(missing)}")
    # Processes that share two threads with Ray need time to leave, and tests to ask after a job that has ended.
    timers = {**PATIENT, "KillWait": "120"}
    with cluster_folder("-ray") as cluster:
        starting.start(cluster, Settings(nodes=2, accounting=False, private_network=True, extra=timers))
        yield cluster


@dataclass(frozen=True)
class Submitted:
    """A job of `ray_job`, and what it has written down."""

    cluster: Cluster
    runs: Path
    name: str

    def notes(self, what: str, life: int = 0) -> list[dict[str, Any]]:
        path = self.runs / self.name / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        notes = [json.loads(line) for line in lines]
        return [note for note in notes if (note["what"], note["life"]) == (what, life)]

    def wait_for(self, what: str, life: int = 0) -> dict[str, Any]:
        until(f"{self.name}: {what}", lambda: bool(self.notes(what, life)) or self.state() == "FAILED")
        notes = self.notes(what, life)
        assert notes, self.output()[-5000:]
        return notes[0]

    def job(self) -> str:
        with Ledger(self.runs) as ledger:
            return ledger.newest_tasks()[self.name].job

    def state(self) -> str:
        return self.cluster.call("squeue", "-h", "-t", "all", "-j", self.job(), "-o", "%T").strip()

    def output(self) -> str:
        return "".join(path.read_text() for path in self.runs.glob(f"slurm/*/{self.job()}_*log.out"))

    def wait_for_end(self) -> str:
        until(f"{self.name} ends", lambda: self.state() not in WAITING | ACTIVE)
        return self.state()


def submit(cluster: Cluster, runs: Path, name: str, kind: str, *options: str, path: str = PATH) -> Submitted:
    command = ["env", f"PATH={path}", sys.executable, "-m", "tests.slurm.ray_job"]
    command += [str(runs), name, kind, *options]
    done = cluster.run(*command, seconds=CEILING_SECONDS)
    assert done.returncode == 0, done.stderr
    return Submitted(cluster, runs, name)


def nothing_is_left(cluster: Cluster, *ups: dict[str, Any]) -> None:
    """No process of any job, and none of Ray's folders."""

    def left() -> list[str]:
        found = of_cluster(cluster.folder)
        return [process.command() for name in found if name.startswith("jobs-") for process in found[name]]

    until("the processes of all jobs have ended", lambda: not left())
    folders = [folder for up in ups for folder in up["folders"]]
    assert len(folders) == 2 * len(ups)
    assert [folder for folder in folders if Path(folder).exists()] == []


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def second_life(job: Submitted) -> list[dict[str, Any]]:
    """What a job that holds finds in both of its lives: warned, it starts again, and leaves as its trainer fails."""
    lives = [job.wait_for("up")]
    job.cluster.call("scancel", "--signal=USR2", job.job())  # Slurm's warning, to every process of the job
    lives.append(last_life(job, 1))
    return lives


def last_life(job: Submitted, life: int) -> dict[str, Any]:
    """What a job finds, whose trainer then fails."""
    up = job.wait_for("up", life)
    assert job.wait_for_end() == "FAILED"
    assert "RuntimeError: the trainer fails" in job.output()
    assert [note["machine"] for note in job.notes("left", life)] == ["n2"]  # in order, not killed
    return up


def assert_worked(*ups: dict[str, Any]) -> None:
    """Each time both machines took part, and no process of Ray's was endangered by SIGUSR2."""
    for up in ups:
        assert (len(set(up["addresses"])), up["endangered"]) == (2, False)
    assert len({folder for up in ups for folder in up["folders"]}) == 2 * len(ups)


def test_two_jobs_share_two_machines_and_each_ends_without_the_other(
    machines: Cluster, tmp_path: Path
) -> None:
    """One is killed. The other is requeued."""
    kinds = {"held": "hold", "killed": "hold", "alone": "alone"}
    held, killed, alone = (submit(machines, tmp_path, name, kind) for name, kind in kinds.items())
    held.wait_for("up")
    up = killed.wait_for("up")  # both are there at once
    os.kill(killed.wait_for("training")["pid"], signal.SIGKILL)
    assert (killed.wait_for_end(), held.state()) == ("FAILED", "RUNNING")
    ups = [up, *second_life(held)]
    ups.append(alone.wait_for("up", life=1))  # it was requeued
    assert_worked(*ups)
    assert alone.wait_for_end() == "FAILED"
    [interruption] = alone.notes("interrupted")
    assert interruption["why"].startswith("n2 did not join Ray's cluster on n1 within 1 s")
    remove_abandoned()  # as the next run on the machine does: Slurm kills what would remove the killed one's folder
    nothing_is_left(machines, *ups)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_machines_join_from_containers(runtime: str, machines: Cluster, tmp_path: Path) -> None:
    """One container on each machine, without Slurm's commands."""
    site = stand_ins(tmp_path / "site")
    image = make_image(tmp_path / "image", HF_HUB_OFFLINE="1")
    path = os.pathsep.join([str(site), PATH])
    up = last_life(submit(machines, tmp_path / "runs", "fails", "fail", f"{runtime}={image}", path=path), 0)
    assert_worked(up)
    assert asked(site) == [runtime] * (1 if runtime == "pyxis" else 2)
    nothing_is_left(machines, up)


def cppo(machines: Cluster, folder: Path, command: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command on a small sweep of that folder."""
    (folder / "two.yaml").write_text(SWEEP)
    small = ["validation.samples=1", "data.validation_problems=4", "model.warm_start.steps=20"]
    small += ["core=verl", "layout=cpu_two_nodes"]
    line = [
        "env",
        "-C",
        str(folder),
        sys.executable,
        "-m",
        "cppo_lab.cli",
        command,
        "two.yaml",
        *small,
        *words,
    ]
    return machines.run(*line, seconds=CEILING_SECONDS)


BY_SLURM = ("launcher=slurm", "resources.memory_gb=4", "resources.hours=0.5")


def test_a_preflight_starts_and_resumes_on_two_machines(machines: Cluster, tmp_path: Path) -> None:
    asked = cppo(machines, tmp_path, "preflight", *BY_SLURM)
    assert asked.returncode == 0, asked.stderr
    wait_until_empty(machines)
    shown = cppo(machines, tmp_path, "preflight", "--show")
    for line in ("start from a checkpoint", "step 1", "step 2", "all-reduce over 2 devices, GB/s"):
        assert line in shown.stdout, shown.stdout + shown.stderr
    nothing_is_left(machines)


def test_verl_trains_one_run_on_two_machines(machines: Cluster, tmp_path: Path) -> None:
    launched = cppo(machines, tmp_path, "launch", "training.t_stop=1", "validation.every=1", *BY_SLURM)
    assert "Slurm has them" in launched.stdout, launched.stderr  # queued or already running
    wait_until_empty(machines)
    run = next((tmp_path / "runs").glob("*/status.json")).parent
    status = json.loads((run / "status.json").read_text())
    log = "".join(path.read_text() for path in (tmp_path / "runs" / "slurm").glob("*/*_0_log.out"))
    assert (status["status"], status["step"]) == ("done", 1), log[-5000:]
    assert "ip=127.0.0.3" in log  # a rank worked on the second machine
    # Both tasks: the other machine left in order.
    assert Submitted(machines, tmp_path / "runs", run.name).state() == "COMPLETED"
    shards = {path.name for path in (run / "best_checkpoint" / "actor").glob("model_world_size_2_*")}
    assert shards == {f"model_world_size_2_rank_{rank}.pt" for rank in range(2)}
    nothing_is_left(machines)
