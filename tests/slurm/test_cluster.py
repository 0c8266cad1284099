"""The development cluster itself: it starts, stops, survives being killed, and behaves as Slurm does elsewhere."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.slurm import daemons, starting
from dev.slurm.cluster import Cluster
from dev.slurm.errors import ClusterError
from dev.slurm.settings import Settings
from tests.slurm.conftest import PATIENT
from tests.slurm.sessions import remove, session_folder
from tests.waiting import CEILING_SECONDS, until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
# Long enough for a job on a busy machine to see SIGTERM, short enough to wait for SIGKILL.
SMALL = Settings(nodes=2, accounting=False, extra={**PATIENT, "KillWait": "15", "MaxArraySize": "77"})
OURS = f".{os.getpid()}"  # a fraction of a second that tells our sleeping processes from other people's
# Ignores SIGTERM and leaves two processes behind it, one of which is in another session and has lost its environment.
STUBBORN = (
    f"trap '' TERM; sleep 9001{OURS} & setsid sleep 9002{OURS} & "
    f"env -i setsid sleep 9003{OURS} & sleep 9004{OURS}"
)


def alive(cluster: Cluster) -> list[str]:
    """Everything of a cluster that runs, by name."""
    return sorted(daemons.of_cluster(cluster.folder))


def sleeping() -> set[str]:
    """Which of the stubborn job's processes run, whoever they belong to."""
    found = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return {line for line in found.splitlines() if line.startswith("sleep 900") and line.endswith(OURS)}


def gone(folder: Path) -> bool:
    """Removes a folder in which others still write."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line on a cluster's folder."""
    line = [sys.executable, "-m", "dev.slurm", "--folder", str(cluster.folder), *words]
    return subprocess.run(
        line, cwd=ROOT, capture_output=True, text=True, timeout=CEILING_SECONDS, check=False
    )


@pytest.fixture(scope="module")
def small_folder(slurm_installed: None) -> Iterator[Cluster]:
    """A cluster of these tests' own, which may be started and stopped, beside the session's."""
    cluster = Cluster(session_folder("-2"))
    yield cluster
    remove(cluster)


@pytest.fixture
def small(small_folder: Cluster) -> Cluster:
    """It runs, has no jobs, and takes some."""
    starting.start(small_folder, SMALL)
    small_folder.end_jobs()
    small_folder.wait_for_nodes(["n1", "n2"])
    return small_folder


def test_starts_and_stops_twice(small: Cluster) -> None:
    for stopped in (False, True):
        assert starting.start(small, SMALL) is stopped
        assert small.running() == ["munged", "slurmctld", "slurmd-n1", "slurmd-n2"]
        assert not starting.start(small, SMALL)
        with pytest.raises(ClusterError, match="another kind runs"):
            starting.start(small, Settings(nodes=1, accounting=False))
        assert small.node_states() == {"n1": "idle", "n2": "idle"}
        assert small.stop()
        assert alive(small) == []
        assert not small.stop()
        assert sorted(path.name for path in small.folder.iterdir()) == ["lock", "log"]


def test_stop_ends_stubborn_jobs(small: Cluster) -> None:
    small.call("sbatch", "--output=/dev/null", f"--wrap={STUBBORN}")
    until("the job runs", lambda: len(sleeping()) == 4)
    small.stop()
    assert (alive(small), sleeping()) == ([], set())


def test_slurm_kills_a_job_that_ignores_its_end(small: Cluster, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    loop = f"trap 'touch {begun}.asked' TERM; touch {begun}; while :; do sleep 0.2; done"
    job = small.call("sbatch", "--parsable", "--output=/dev/null", f"--wrap={loop}").strip()
    until("the job runs", begun.exists)
    small.call("scancel", job)
    until("it has left", lambda: not small.call("squeue", "-h", "-j", job, "-t", "R,CG"))
    assert (tmp_path / "begun.asked").exists()
    # slurmstepd tells the controller of the end before it ends itself.
    until("nothing is left of it", lambda: not any(name.startswith("jobs-") for name in alive(small)))


@pytest.mark.parametrize("left", ["folder", "daemons", "some daemons", "daemons without folder"])
def test_starts_over_whatever_is_left(small: Cluster, left: str) -> None:
    first = small.call("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep infinity")
    until("the job runs", lambda: any(name.startswith("jobs-") for name in alive(small)))
    if left == "folder":  # as after a reboot
        small.end("*", patience=0)
        assert alive(small) == []
    if left == "some daemons":
        small.end("slurmctld", "slurmd-n2", patience=0)
    if left == "daemons without folder":
        until("the folder is gone", lambda: gone(small.folder))
    again = starting.start(small, SMALL)
    assert again is (left != "daemons")
    jobs = small.call("squeue", "-h", "-o", "%A").split()
    assert jobs == ([] if again else [first.strip()])
    assert set(small.node_states()) == {"n1", "n2"}


def test_without_accounting(small: Cluster, tmp_path: Path) -> None:
    assert "accounting storage is disabled" in small.run("sacct").stderr
    submit = ["sbatch", "--wait", "--parsable", f"--output={tmp_path}/out", "--wrap=echo done"]
    job = small.call(*submit).strip()
    assert (tmp_path / "out").read_text() == "done\n"
    shown = ["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]
    until("it has left", lambda: small.call(*shown) == "COMPLETED\n")


def test_own_lines_of_slurm_conf(small: Cluster) -> None:
    assert "MaxArraySize            = 77\n" in small.call("scontrol", "show", "config")


def test_private_network(second_cluster: Cluster) -> None:
    started = command(second_cluster, "start", "--nodes", "2", "--no-accounting", "--private-network")
    assert (started.returncode, started.stderr) == (0, "")
    assert f"--folder {second_cluster.folder} run -- COMMAND" in started.stdout
    ran = command(
        second_cluster, "run", "--", "sh", "-c", "srun -N2 printenv SLURMD_NODENAME; tail -n +3 /proc/net/dev"
    )
    *nodes, device = ran.stdout.splitlines()
    assert sorted(nodes) == ["n1", "n2"]
    assert device.strip().startswith("lo:")
    assert command(second_cluster, "stop").stdout == "stopped\n"


def test_listens_on_loopback_only(slurm: Cluster) -> None:
    job = subprocess.Popen(["srun", "--quiet", "-N2", "sleep", "infinity"], env=slurm.env())
    try:
        until("the job runs", lambda: "jobs-n2" in alive(slurm))
        lines = subprocess.run(
            ["ss", "-Hltunp"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    ours = {one.pid for group in daemons.of_cluster(slurm.folder).values() for one in group} | {job.pid}
    addresses = [line.split()[4] for line in lines if any(f"pid={pid}," in line for pid in ours)]
    assert len(addresses) >= 2 + 4 + 2  # slurmctld and slurmdbd, the nodes, srun
    assert [address for address in addresses if not address.startswith("127.")] == []


def test_all_nodes_are_idle_with_their_gpus(slurm: Cluster) -> None:
    lines = slurm.call("sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T %c %G").splitlines()
    assert lines == [f"n{number} idle 2 gpu:8" for number in range(1, 5)]


def test_a_step_on_two_nodes(slurm: Cluster) -> None:
    nodes = slurm.call("srun", "--quiet", "--nodes=2", "printenv", "SLURMD_NODENAME").split()
    assert len(set(nodes)) == 2


def test_two_jobs_on_a_node_see_different_gpus(slurm: Cluster, tmp_path: Path) -> None:
    for gpus in (3, 5):
        wrap = "--wrap=echo $CUDA_VISIBLE_DEVICES; sleep infinity"
        slurm.call("sbatch", "-w", "n1", f"--gres=gpu:{gpus}", f"--output={tmp_path}/{gpus}", wrap)
    until(
        "both ran",
        lambda: len(list(tmp_path.iterdir())) == 2 and all(p.read_text() for p in tmp_path.iterdir()),
    )
    seen = [(tmp_path / str(gpus)).read_text().strip().split(",") for gpus in (3, 5)]
    assert [len(ids) for ids in seen] == [3, 5]
    assert sorted(seen[0] + seen[1]) == list("01234567")


def test_a_failed_node_loses_its_job_to_another(slurm: Cluster, tmp_path: Path) -> None:
    wrap = "--wrap=echo $SLURMD_NODENAME; sleep infinity"
    job = slurm.call(
        "sbatch", "--parsable", "--requeue", f"--output={tmp_path}/out", "--open-mode=append", wrap
    ).strip()
    until("the job runs", lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text() != "")
    slurm.fail_node("n1")
    try:
        assert slurm.node_states()["n1"].startswith("down")
        until("it runs again", lambda: len((tmp_path / "out").read_text().split()) == 2)
        assert (tmp_path / "out").read_text() == "n1\nn2\n"
        assert "Restarts=1" in slurm.call("scontrol", "show", "job", job)
    finally:
        slurm.resume_node("n1")
    assert slurm.node_states()["n1"] == "idle"


def test_a_restarted_controller_knows_its_jobs(slurm: Cluster, tmp_path: Path) -> None:
    def submit(name: str, *options: str) -> str:
        return slurm.call("sbatch", "--parsable", f"--output={tmp_path}/{name}", *options).strip()

    running = submit("running", f"--wrap=until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo through")
    waiting = submit("waiting", f"--dependency=afterok:{running}", "--wrap=echo afterwards")
    until("the job runs", lambda: slurm.call("squeue", "-h", "-j", running, "-o", "%T") == "RUNNING\n")
    slurm.restart_controller()
    states = dict(line.split() for line in slurm.call("squeue", "-h", "-o", "%A %T").splitlines())
    assert states == {running: "RUNNING", waiting: "PENDING"}
    (tmp_path / "go").touch()
    until("both are done", lambda: (tmp_path / "waiting").exists())
    assert (tmp_path / "running").read_text() == "through\n"
