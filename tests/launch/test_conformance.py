"""The launchers of this machine pass the conformance tests (Slurm's jobs: tests/launch/slurm); a launcher of another
package, from its entry point to a finished run.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab.errors import interrupt_on_termination
from cppo_lab.launch import local
from cppo_lab.launch.base import Event, LauncherSpec
from cppo_lab.launch.launchers import LAUNCHERS, LauncherRecord
from cppo_lab.runs.folder import is_cancelled
from cppo_lab.testing import LauncherTests
from cppo_lab.testing.launchers import SmallJob
from tests.conftest import ROOT, TINY, Command, python
from tests.recorded import mlflow_client

MODULE = """
import multiprocessing

from cppo_lab.launch.base import Event, LauncherSpec, run_masked
from cppo_lab.launch.launchers import LauncherRecord
from cppo_lab.runs.folder import is_cancelled


class RowSpec(LauncherSpec):
    pause: float


def launch_row(jobs, spec, report):
    for job in jobs:
        if is_cancelled(job.folder):
            report(Event("cancelled", job))
            continue
        process = multiprocessing.get_context("fork").Process(target=run_masked, args=(job,))
        process.start()
        report(Event("started", job))
        process.join()
        report(Event("ended", job))


ROW = LauncherRecord("row", "a row", function="acme_row:launch_row", settings="acme_row:RowSpec", config={"pause": 0.0})
"""
CHECK = """
from acme_row import ROW
from cppo_lab.testing import check_launcher

if __name__ == "__main__":
    check_launcher(ROW, ["launcher.pause=0.5"])
"""
SMALL = [*TINY, "training.t_stop=2", "validation.every=1", "validation.samples=1", "model.warm_start.steps=2"]


class TestInline(LauncherTests):
    """One after the other in this process."""

    launcher = LAUNCHERS["inline"]


class TestLocal(LauncherTests):
    """In processes of their own."""

    launcher = LAUNCHERS["local"]


def test_a_launcher_of_another_package_conforms_and_trains_a_sweep(
    cppo: Command, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is on the path of other processes as an installer leaves it."""
    info = workspace / "site" / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    (info.parent / "acme_row.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cppo_lab.launchers]\nrow = acme_row:ROW\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(info.parent)]))
    Path("check.py").write_text(CHECK)
    python("check.py")
    mlflow_client()  # makes the tables, which takes other processes seconds
    sweep = ["quickstart", "variant=cppo", "seed=0", *SMALL]
    python("-m", "cppo_lab.cli", "launch", *sweep, "launcher=row")
    assert "1 run: 1 done" in cppo("plan", *sweep).out  # the launcher is no part of a run's id
    refused = python("-m", "cppo_lab.cli", "plan", *sweep, "launcher=raw", check=False)
    said = "did you mean 'row'? valid: inline, local, row, slurm"
    assert refused.returncode == 2 and said in refused.stderr


Report = Callable[[Event[SmallJob]], None]


def doing(*steps: str, before: Sequence[str] = ()) -> Callable[[list[SmallJob], LauncherSpec, Report], None]:
    """A launcher that runs each job here, or reports an event of it, in these steps up to one that fails; `before` are
    reported of all jobs first.
    """

    def launch(jobs: list[SmallJob], spec: LauncherSpec, report: Report) -> None:
        for job, kind in product(jobs, before):
            report(Event(kind, job))
        for job in jobs:
            with suppress(RuntimeError):
                for step in steps:
                    job.run() if step == "run" else report(Event(step, job))

    return launch


twice = doing("run", "run")
# Begins jobs that were cancelled, and reports no end of one that fails.
careless = doing("started", "run", "ended")
# Starts all jobs whatever `workers` is, on a machine so slow that they do not overlap.
at_once = doing("run", "ended", before=["started"])
too_soon = doing("ended", "run")
queue_up = doing("run", "submitted")  # its queue is empty when it returns


def ends_what_never_began(jobs: list[SmallJob], spec: LauncherSpec, report: Report) -> None:
    for job in jobs:
        report(Event("cancelled" if (cancelled := is_cancelled(job.folder)) else "started", job))
        if not cancelled:
            job.run()
        report(Event("ended", job))


def elsewhere(jobs: list[SmallJob], spec: LauncherSpec, report: Report) -> None:
    """A queue whose machines see other folders: they do not learn that a job was cancelled."""
    for job in jobs:
        replace(job, created=None).run()


def nothing_waits(folder: Path) -> dict[str, object]:
    """A queue that is empty."""
    return {}


@pytest.mark.parametrize("function", ["queue_up", "elsewhere"])
def test_a_job_cancelled_in_a_queue(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, queue = f"{__name__}:{function}", f"{__name__}:nothing_waits"
    record = LauncherRecord("line", "a line", path, in_process=True, queue=queue)
    settings = LauncherSpec(name="line", workers=1, threads=1)
    monkeypatch.setattr("cppo_lab.launch.launchers.LAUNCHERS", {**LAUNCHERS, "line": record})
    monkeypatch.setattr("cppo_lab.testing.LauncherTests._settings", lambda self: settings)
    tests = type("Line", (LauncherTests,), {"launcher": record})()
    runs = pytest.raises(AssertionError, match="a cancelled job ran")
    with nullcontext() if function == "queue_up" else runs:
        tests.test_a_job_cancelled_while_it_waits_does_not_begin()


@pytest.mark.parametrize(
    "function, test",
    [
        ("twice", "every_job_runs_once_in_its_own_process"),
        ("twice", "no_more_jobs_than_workers_run_at_a_time"),
        ("at_once", "no_more_jobs_than_workers_run_at_a_time"),
        ("twice", "what_is_reported"),
        ("too_soon", "what_is_reported"),
        ("careless", "what_is_reported"),
        ("careless", "a_job_cancelled_while_it_waits_does_not_begin"),
        ("ends_what_never_began", "a_job_cancelled_while_it_waits_does_not_begin"),
    ],
)
def test_a_launcher_that_does_not_conform_is_found_out(function: str, test: str) -> None:
    record = LauncherRecord("inline", "here", f"{__name__}:{function}", in_process=True)
    tests = type("Wrong", (LauncherTests,), {"launcher": record})()
    with pytest.raises(AssertionError):
        getattr(tests, f"test_{test}")()


def test_a_signal_while_a_job_of_this_machine_starts_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has begun, and is in no list yet."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def submit(job: SmallJob) -> SimpleNamespace:
        signal.raise_signal(signal.SIGTERM)
        return SimpleNamespace(done=lambda: child.poll() is not None, job_id=str(child.pid))

    monkeypatch.setattr("cppo_lab.launch.local._submit", submit)
    monkeypatch.setattr("cppo_lab.launch.local.POLL_SECONDS", 0.01)
    interrupt_on_termination()
    spec = LauncherSpec(name="local", workers=1, threads=1)
    try:
        with pytest.raises(KeyboardInterrupt):
            local.launch_local([SmallJob("a", tmp_path)], spec, lambda event: None)
        assert child.poll() == -signal.SIGTERM
    finally:
        child.kill()
