"""A run's folder as a trainer leaves it, to be broken."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY, working_in


@pytest.fixture(scope="session")
def run() -> RunSpec:
    """The run that is broken."""
    return compose(TINY).run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, run: RunSpec) -> Path:
    """The folder of a run of two attempts, one of them interrupted, and beside it one submission to Slurm."""
    folder = tmp_path_factory.mktemp("whole") / run.run_id
    (folder / "attempts").mkdir(parents=True)
    (folder / "attempts" / "0_log.out").write_text("step 0\n")
    (folder / "lock").write_text("somewhere:1\n")
    for last in (2, 4):
        recorder = Recorder(run, {schema.sweep_tag("mine"): "cppo"}, folder, yaml="core: mini\n")
        recorder.begin(None if last == 2 else 2)
        for step in range(last + 1):
            recorder.log(step, {"train/reward": step / 8, "val/mean/avg_at_16": step / 4})
        if last == 2:
            recorder.interrupt("terminated by SIGTERM")
        else:
            recorder.artifact("diagnostics/positions.json", {"position": [1], "tokens": [3]})
            recorder.fail("ValueError: bad", "Traceback\nValueError: bad\n")
    with Ledger(folder.parent) as ledger:
        ledger.submitted(ledger.claim([run.run_id]), 17)
        ledger.end(ledger.open_tasks(), "FAILED")
    return folder


@pytest.fixture(scope="module")
def desk(shared_path: Path) -> Iterator[Path]:
    """A working folder for a whole module: examples of one test share it."""
    with working_in(shared_path):
        yield shared_path


@pytest.fixture(scope="module")
def fresh(whole: Path, desk: Path) -> Callable[[], Path]:
    """Makes the run's folder in `desk/runs` what it was before anything was broken."""

    def copy() -> Path:
        shutil.rmtree(desk / "runs", ignore_errors=True)
        return shutil.copytree(whole.parent, desk / "runs", symlinks=True) / whole.name

    return copy
