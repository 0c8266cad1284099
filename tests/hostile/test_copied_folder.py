"""A run's folder that somebody has copied to the id of another run: neither run gets anything of the other."""

import json
import shutil
from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking.client import open_client
from tests.conftest import TINY

SWEEP = ["quickstart", *TINY, "variant=cppo"]


def run_id(seed: int) -> str:
    """Of the sweep's run with that seed."""
    (run,) = make_plan(load_sweep(SWEEP[0]), [*SWEEP[1:], f"seed={seed}"]).runs
    return run.run_id


def histories(store: str) -> dict[str, list[list[tuple[int, float, int]]]]:
    """The rewards of each run, by id: one list for each of its MLflow runs."""
    client = open_client(store)
    [experiment] = [one for one in client.search_experiments() if one.name == "cppo-mini"]
    found: dict[str, list[list[tuple[int, float, int]]]] = {}
    for run in client.search_runs([experiment.experiment_id]):
        if name := run.data.tags.get("cppo.run_id"):
            history = client.get_metric_history(run.info.run_id, "train/reward")
            found.setdefault(name, []).append([(p.step, p.value, p.timestamp) for p in history])
    return found


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_copied_folder(workspace: Path, capsys: pytest.CaptureFixture[str], interrupted: bool) -> None:
    store, runs = f"sqlite:///{workspace}/mlflow.db", workspace / "runs"
    theirs, ours = run_id(0), run_id(1)
    assert main(["launch", *SWEEP, "seed=0", "launcher=inline"]) == 0
    before = histories(store)[theirs]
    shutil.copytree(runs / theirs, runs / ours)
    if interrupted:  # as one that was killed has it
        for path in (runs / ours / "spool").glob("*.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if json.loads(line).get("kind") != "end"))
    capsys.readouterr()
    assert main(["launch", *SWEEP, "seed=1", "launcher=inline"]) == 0
    assert f"{ours} was copied from run {theirs}" in capsys.readouterr().err
    after = histories(store)
    assert after[theirs] == before
    [mine] = after[ours]
    assert [step for step, _, _ in mine] == [step for step, _, _ in before[0]] and mine != before[0]
