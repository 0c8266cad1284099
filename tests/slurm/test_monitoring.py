"""`cppo status`, `watch`, `logs`, `cancel` and `retry` on runs that a real Slurm has."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.cli import main
from cppo_lab.sweep.compose import compose
from dev.slurm.cluster import Cluster
from tests.conftest import TINY
from tests.launch.slurm import holding
from tests.waiting import CEILING_SECONDS, until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SLURM = ["launcher=slurm", "launcher.workers=1"]
THREE = ["quickstart", *TINY, "seed=0", "training.t_stop=8", "training.collapse_share=0", *SLURM]
TWO = ["quickstart", *TINY, "seed=0", "variant=grpo,cppo", *SLURM]


def rows(capsys: pytest.CaptureFixture[str], *sweep: str) -> dict[str, dict[str, Any]]:
    """By variant."""
    capsys.readouterr()
    assert main(["status", *sweep, "--json"]) == 0
    return {row["variants"]["quickstart"]: row for row in json.loads(capsys.readouterr().out)["runs"]}


def test_cancelled_in_the_queue_and_while_it_runs(
    slurm: Cluster, workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("cppo_lab.monitor.cancel.PATIENCE_SECONDS", CEILING_SECONDS)
    assert main(["launch", *THREE, f"launcher.python={holding.python()}"]) == 0
    said = capsys.readouterr()
    assert "cppo watch quickstart" in said.out
    assert "are not done" not in said.err
    runs = workspace / "runs"
    until("one trains", lambda: any(map(holding.holds, runs.glob("*/"))))
    found = rows(capsys, *THREE)
    assert sorted(row["state"] for row in found.values()) == ["queued", "queued", "running"]
    [array] = {row["job"].split("_")[0] for row in found.values()}
    assert array.isdecimal()
    last = next(row for row in found.values() if row["job"] == f"{array}_2")
    assert (last["state"], last["reason"]) == ("queued", f"Slurm job {array}_2: pending, JobArrayTaskLimit")

    assert main(["cancel", "--run", last["run_id"]]) == 0
    assert f"cppo/mini_base/seed 0: taken out of Slurm's queue (job {array}_2)" in capsys.readouterr().out
    found = rows(capsys, *THREE)
    assert sorted(row["state"] for row in found.values()) == ["missing", "queued", "running"]
    assert found["cppo"]["reason"] == f"Slurm job {array}_2: CANCELLED"

    assert main(["cancel", *THREE]) == 0
    assert "2 of 3 runs cancelled" in capsys.readouterr().out
    found = rows(capsys, *THREE)
    assert [row["state"] for row in found.values()] == ["partial", "missing", "missing"]
    assert found["grpo"]["reason"] == f"interrupted: cancelled at step {holding.STEP}"
    until("Slurm's queue is empty", lambda: not slurm.call("squeue", "-h"))
    assert main(["watch", *THREE]) == 1
    assert main(["logs", found["grpo"]["run_id"][:8]]) == 0


def test_a_run_that_fails_is_seen_left_and_retried(
    slurm: Cluster, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = workspace / "runs" / compose([*TINY, "rule=cppo", "seed=0"]).run_id
    broken.mkdir(parents=True)
    (broken / "diagnostics").touch()  # where the run will want a folder
    assert main(["launch", *TWO]) == 0
    assert main(["watch", *TWO, "--every", "1"]) == 4
    said = capsys.readouterr().out
    assert re.search(rf"^{broken.name} cppo/mini_base/seed 0: failed.*: FileExistsError: ", said, re.M)
    assert rows(capsys, *TWO)["grpo"]["state"] == "done"
    assert main(["logs", broken.name]) == 0
    assert "Traceback (most recent call last)" in capsys.readouterr().out

    assert main(["launch", *TWO]) == 4
    assert "1 run failed with an error and is not retrained" in capsys.readouterr().err
    (broken / "diagnostics").unlink()
    assert main(["retry", *TWO, "--failed"]) == 0
    assert main(["watch", *TWO, "--every", "1"]) == 0
    assert {row["state"] for row in rows(capsys, *TWO).values()} == {"done"}
