"""A run's folder that somebody has copied to the id of another run: neither run gets anything of the other."""

import json
import shutil
from pathlib import Path

import pytest

from cppo_lab import schema
from tests.conftest import Command
from tests.jobs import planned
from tests.recorded import history, mlflow_runs

SWEEP = ["quickstart", "variant=cppo"]


def run_id(seed: int) -> str:
    """Of the sweep's run with that seed."""
    [run] = planned([*SWEEP, f"seed={seed}"]).runs
    return run.run_id


def histories() -> dict[str, list[dict[int, float]]]:
    """The rewards by step of each run, by id: of each of its MLflow runs."""
    rewards: dict[str, list[dict[int, float]]] = {}
    for run in mlflow_runs():
        rewards.setdefault(run.data.tags[schema.TAG_RUN_ID], []).append(history(run, "train/reward"))
    return rewards


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_copied_folder(cppo: Command, interrupted: bool) -> None:
    runs = Path("runs")
    theirs, ours = run_id(0), run_id(1)
    cppo("launch", *SWEEP, "seed=0", "launcher=inline")
    before = histories()[theirs]
    shutil.copytree(runs / theirs, runs / ours)
    if interrupted:  # as one that was killed has it
        for path in (runs / ours / "spool").glob("*.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if json.loads(line).get("kind") != "end"))
        (runs / ours / "spool/shipped.json").unlink()
        said = cppo("sync", code=2)
        assert f"run {ours} could not be uploaded" in said.err and f"a copy of run {theirs}" in said.err
        assert "sync` uploads the rest" not in said.err
    said = cppo("launch", *SWEEP, "seed=1", "launcher=inline")
    assert f"{ours} was copied from run {theirs}" in said.err
    after = histories()
    assert after[theirs] == before
    [mine] = after[ours]
    assert mine.keys() == before[0].keys() and mine != before[0]
