"""A whole launch with passwords and keys in its environment: none of them is in anything that it writes or shows."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from cppo_lab.cli import main
from cppo_lab.launch.local import launch_local
from cppo_lab.tracking import address
from dev.servers.mlflow_server import MlflowServer
from tests.conftest import ROOT, TINY, python
from tests.launch.slurm.jobs import Careless, slurm_spec
from tests.servers.conftest import found_in

SWEEP = """
title: One run
question: Does it keep secrets?
models: [mini_base]
variants:
  cppo: {rule: cppo}
axes:
  seed: [97]  # no other test of this server has it
"""
CANARY = "canary7f3"  # stands in every secret, and in nothing else
SECRETS = {
    "MLFLOW_TRACKING_PASSWORD": "canary7f3-tracking-password",
    "AWS_ACCESS_KEY_ID": "AKIACANARY7F30000002",
    "AWS_SECRET_ACCESS_KEY": "canary7f3-cloud-key-0003",
    "AZURE_STORAGE_ACCESS_KEY": "canary7f3-cloud-key-0004",
    "HF_TOKEN": "hf_canary7f3canary7f3canary7f3canary7",
    "MLFLOW_S3_SECRET": "canary7f3-s3-secret",
    "OPTUNA_STORAGE": "postgresql://ada:canary7f3-optuna@127.0.0.1:1/studies",
    "WANDB_API_KEY": "canary7f3canary7f3canary7f3canary7f30008",
}


def with_canary(uri: str) -> str:
    """The address of a server, with a user's name and a password that nothing may write."""
    return uri.replace("http://", "http://admin:canary7f3-in-the-address@")


@contextlib.contextmanager
def processes() -> Iterator[set[str]]:
    """The arguments of all others that run until the end of the block, as `ps` shows them."""
    seen, ended = set[str](), threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            for process in psutil.process_iter(["pid", "cmdline"]):
                if process.info["pid"] != os.getpid():
                    seen.add(" ".join(process.info["cmdline"] or ()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@patch.dict(os.environ, SECRETS)
@patch.dict(os.environ, {address.VARIABLE: with_canary("http://127.0.0.1:1")})
@patch.dict(os.environ, {"PYTHONPATH": str(Path(__file__).parents[2])})  # the job is one of the tests'
def test_what_a_job_prints_and_how_it_fails_is_masked_as_it_is_written(tmp_path: Path) -> None:
    job = Careless(tmp_path, "careless")
    launch_local([job], slurm_spec(), lambda event: None)
    assert found_in(CANARY, tmp_path) == []
    [out], [err] = (list(job.folder.glob(f"attempts/*_log.{kind}")) for kind in ("out", "err"))
    printed = out.read_text()
    assert "logging to http://admin:***@127.0.0.1:1\n" in printed
    assert "HF_TOKEN=*** then http://admin:***@127.0.0.1:1/\n" in printed
    assert "an end without a line's end: http://admin:***@127.0.0.1:1" in printed
    assert "a warning: http://admin:***@127.0.0.1:1\n" in err.read_text()
    assert "cannot reach http://admin:***@127.0.0.1:1" in err.read_text() + printed


ENDED = """
import contextlib, os, pathlib
from cppo_lab.launch.base import run_masked
from tests.launch.slurm.jobs import Careless
with contextlib.suppress(OSError):
    run_masked(Careless(pathlib.Path(), "careless"))
os._exit(0)
"""


@patch.dict(os.environ, SECRETS | {address.VARIABLE: "http://127.0.0.1:1"})
def test_what_a_job_prints_is_written_when_it_has_ended() -> None:
    """Its process may end later, and launchers do not wait for that."""
    assert python("-c", ENDED, cwd=ROOT).stdout.endswith("an end without a line's end: http://127.0.0.1:1")


def test_nothing_that_a_launch_writes_or_shows_has_a_secret(
    server: MlflowServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    for folder in (work, temporary):
        folder.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("tempfile.tempdir", None)
    settings = {address.VARIABLE: with_canary(server.uri), "TMPDIR": str(temporary)}
    for name, value in (SECRETS | settings).items():
        monkeypatch.setenv(name, value)
    Path("one.yaml").write_text(SWEEP)
    with processes() as seen:
        launched = [sys.executable, "-m", "cppo_lab.cli", "launch", "one.yaml", *TINY, "launcher=local"]
        assert subprocess.run(launched).returncode == 0, capfd.readouterr()
    assert any("cppo_lab.cli launch" in arguments for arguments in seen)
    assert [arguments for arguments in seen if CANARY in arguments.lower()] == []
    [run] = {path.parent.name for path in work.glob("runs/*/status.json")}
    for command in (["status"], ["logs", run, "--all"], ["sync"], ["report", "one.yaml", *TINY]):
        assert main(command) == 0
    (tmp_path / "shown.txt").write_text("".join(capfd.readouterr()))
    assert found_in(CANARY, tmp_path, server.folder) == []  # the server's folder has its database
    assert list(work.glob("runs/*/attempts/*_log.out"))  # the search has seen what jobs print
