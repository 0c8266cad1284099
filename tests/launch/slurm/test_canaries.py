"""A launch on Slurm with passwords and keys in its environment: none is in anything that it or its job writes."""

from pathlib import Path

import pytest

from cppo_lab.tracking import address
from dev.servers.mlflow_server import MlflowServer
from dev.slurm.cluster import Cluster
from tests.conftest import TINY
from tests.servers.canaries import SECRETS, ArgumentsOfProcesses, found_in, with_canary
from tests.servers.test_canaries import cppo
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
SWEEP = ["quickstart", *TINY, "variant=cppo", "seed=0"]


def shown_by(words: tuple[str, ...], work: Path) -> list[str]:
    """What a command prints; it has to end well."""
    done = cppo(*words, folder=work)
    assert done.returncode == 0, done.stderr
    return [done.stdout, done.stderr]


def test_nothing_that_a_job_writes_has_a_secret(
    bare_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm itself keeps the environment of a job in its own state folder, which only it can read: not looked at."""
    work, kept = tmp_path / "work", tmp_path / "server"
    for folder in (work, kept):
        folder.mkdir()
    server = MlflowServer(kept, f"sqlite:///{kept}/mlflow.db").start()
    try:
        for name, value in (SECRETS | {address.VARIABLE: with_canary(server.uri)}).items():
            monkeypatch.setenv(name, value)
        launch = ("launch", *SWEEP, "launcher=slurm")
        with ArgumentsOfProcesses() as arguments:
            shown = shown_by(launch, work)
            until("the job has run", lambda: not bare_slurm.call("squeue", "-h"))
        run = next(path.parent.name for path in work.glob("runs/*/status.json"))
        for words in (("status",), ("logs", run, "--all"), launch):
            shown += shown_by(words, work)
    finally:
        server.stop()
    (tmp_path / "shown.txt").write_text("\n".join(shown))
    assert "done" in shown[-2]
    [log] = work.glob("runs/slurm/*/*_log.out")  # what the job printed
    assert log.stat().st_size > 0
    assert arguments.looks > 0 and arguments.found == set()
    assert found_in(tmp_path) == []
