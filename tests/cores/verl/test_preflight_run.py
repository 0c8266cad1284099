"""`cppo preflight` with verl's own trainer, and what it says of a run that cannot start."""

from pathlib import Path

import pytest

from cppo_lab.sweep.cost import read_preflight
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.sweep.preflight import job_of, kinds
from tests.conftest import Command
from tests.cores.verl.conftest import ROOT

pytestmark = pytest.mark.slow
SMALL = "validation.samples=1 data.validation_problems=4 model.warm_start.steps=20"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_preflight_measures_every_part(workspace: Path, cppo: Command) -> None:
    done = cppo(f"preflight quickstart core=verl launcher=local {SMALL}")
    assert "quickstart: 1 short job, of 1 kinds of runs" in done.err
    [folder] = (workspace / "runs" / "preflight").glob("tiny_qwen3-*")
    measured = read_preflight(folder)
    assert [step.step for step in measured.steps] == [1, 2]
    for step in measured.steps:
        assert min(step.seconds, step.rollout, step.update, step.weights, step.other) > 0
        assert step.seconds == pytest.approx(step.rollout + step.update + step.weights + step.other)
        assert min(step.sampled_per_second, step.trained_per_second, step.topk_megabytes) > 0
        assert step.logprob_error is not None  # no group is left out
    for seconds in (measured.start, measured.resume, measured.validation, measured.checkpoint):
        assert seconds > 0
    assert measured.memory["max_memory_allocated_gb"] > 0
    # Checkpoints and data are gone, logs and times are kept; nothing was recorded as a run.
    assert {path.name for path in folder.iterdir()} == {"attempts", "measured.json", "verl_phases.jsonl"}
    assert not (workspace / "mlflow.db").exists()
    assert "6 runs to the last step: " in done.out


def test_what_cannot_start_is_the_result(workspace: Path) -> None:
    """As on a node that lacks the data: the command looks for it first, where it is to run."""
    plan = make_plan(load_sweep("main"), ["core=verl", "model=qwen3_1_7b_base", "variant=cppo", "layout=cpu"])
    runs = workspace / "runs"
    [kind] = kinds(plan, runs)
    job_of(kind, plan, runs).run()
    measured = read_preflight(kind.folder)
    assert measured.error.startswith("starting, before the first validation: UserError: ")
    assert "cppo data prepare" in measured.error
    assert measured.steps == ()
    assert "Traceback" in (kind.folder / "attempts" / "part-1.log").read_text()
