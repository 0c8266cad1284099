"""A run's folder that somebody has copied to the id of another run: neither run gets anything of the other."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.jobs import planned
from tests.recorded import histories, mlflow_runs

SWEEP = ["quickstart", "variant=cppo"]


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_copied_folder(cppo: Command, interrupted: bool) -> None:
    theirs, ours = (run.run_id for run in planned([*SWEEP, "seed=0,1"]).runs)
    cppo("launch", *SWEEP, "seed=0", "launcher=inline")
    before = histories()[theirs]
    copy = shutil.copytree(Path("runs", theirs), Path("runs", ours))
    if interrupted:  # as one that was killed has it
        for path in (copy / "spool").glob("*.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if json.loads(line).get("kind") != "end"))
        (copy / "spool/shipped.json").unlink()
        said = cppo("sync", code=2)
        assert f"run {ours} could not be uploaded" in said.err and f"a copy of run {theirs}" in said.err
        assert "sync` uploads the rest" not in said.err
    said = cppo("launch", *SWEEP, "seed=1", "launcher=inline")
    assert f"{ours} was copied from run {theirs}" in said.err
    after = histories()
    assert after[theirs] == before and len(mlflow_runs()) == 2
    [mine, others] = (metrics["train/reward"] for metrics in (after[ours], before))
    assert mine.keys() == others.keys() and mine != others
