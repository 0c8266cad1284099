"""A disk that is full while a run trains; what the store gets: tests/tracking/test_upload.py."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.cli.training import plan_states
from cppo_lab.core_records import CHECKPOINT, load_core
from cppo_lab.runs.folder import read_status
from cppo_lab.runs.spool import newest_record
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import TINY
from tests.jobs import job, planned
from tests.launch.gate import Gate
from tests.launch.test_launch import started
from tests.recorded import history, mlflow_runs
from tests.requirement import Requirement

SIZE = 1_000_000  # bytes


# Not of CI: root in a container may often not mount.
DISK = Requirement(
    "a disk to be filled", "CPPO_REQUIRE_SMALL_DISK", lambda: "needs root" if os.getuid() else "", of_ci=False
)


@pytest.fixture
def small_disk(workspace: Path) -> Iterator[Path]:
    """The folder of all runs, on a disk of its own."""
    DISK.demand()
    runs = workspace / "runs"
    runs.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", "cppo-test", os.fspath(runs)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        DISK.lack(mounted.stderr.strip())
    try:
        yield runs
    finally:
        subprocess.run(["umount", "--lazy", os.fspath(runs)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                pass
    return ballast


def test_a_launch_whose_disk_stays_full_says_what_came_of_it(workspace: Path, small_disk: Path) -> None:
    """All of its points arrive, so the launcher, `status` and `plan` call it done; with room, its folder does too."""
    sweep = ["quickstart", *TINY, "variant=cppo", "seed=0", "training.collapse_share=0"]
    gate = Gate(workspace, validation=2)
    launcher = started("launch", *sweep, "launcher=local", gate=gate)
    gate.reached(launcher)
    ballast = fill(small_disk)
    gate.remove()
    printed, _ = launcher.communicate()
    assert launcher.returncode == 0 and "FAILED" not in printed, printed
    [folder] = [path.parent for path in small_disk.glob("*/status.json")]
    for room in (False, True):
        if room:
            ballast.unlink()
            assert main(["launch", *sweep, "launcher=inline"]) == 0
            record = newest_record(folder)
            assert record.end.status == "done"
        assert read_status(folder)["status"] == "done"
        [state] = plan_states(planned(sweep)).values()
        assert state.state == "done"
        assert _steps_of_finished() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("free", [0, 20_000, 60_000])
def test_an_almost_full_disk_costs_checkpoints_and_not_the_run(
    small_disk: Path,
    tiny_spec: RunSpec,
    free: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Room for a part of a file: torch reports that by an error of its own."""

    def filled(core: str) -> object:
        ballast = fill(small_disk)
        os.truncate(ballast, ballast.stat().st_size - free)
        return load_core(core)

    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", filled)
    job(tiny_spec, small_disk, tracking_uri()).run()
    printed = capsys.readouterr().err
    for name in ("checkpoint", "warm start")[: 1 + (free < 56_000)]:  # of a warm start
        assert re.search(rf"{name} .* could not be written: \[Errno 28\] No space left on device", printed)
    assert _steps_of_finished() == [[0, 1, 2, 3, 4]]
    assert not (small_disk / tiny_spec.run_id / CHECKPOINT).exists()


def _steps_of_finished() -> list[list[int]]:
    """The steps that the store has of the rewards or scores of each of its finished runs."""
    return [
        sorted({*history(run, "val/mean/avg_at_16"), *history(run, "train/reward")})
        for run in mlflow_runs()
        if run.info.status == "FINISHED"
    ]
