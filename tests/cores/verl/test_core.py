"""Whole runs of verl's own trainer through `cppo launch`, each killed on its way and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.analysis.artifacts import read_positions, read_windows
from cppo_lab.cores.diagnostics import Diagnostics, Watched
from cppo_lab.spec import RuleSpec

pytestmark = [pytest.mark.verl, pytest.mark.slow]

STEPS, EVERY, SAMPLES = 6, 2, 4
KILLED_AFTER = 3  # a step with a checkpoint before it, and none of its own
RULES = ("cppo", "dppo", "grpo", "cispo", "minpro", "trm_max_avg", "cppo_soft")
SWEEP = f"""
title: Every rule once
question: Does each rule train, die and go on?
models: [tiny_qwen3]
variants:
{chr(10).join(f"  {rule}: {{rule: {rule}}}" for rule in RULES)}
axes:
  seed: [0]
"""
OVERRIDES = [
    "core=verl",
    f"training.t_stop={STEPS}",
    f"validation.every={EVERY}",
    f"validation.samples={SAMPLES}",
]
LIMIT_SECONDS = 5400


@dataclass(frozen=True)
class Story:
    """What happened to the runs of the sweep, by rule."""

    folder: Path
    killed: dict[str, list[int]]  # the steps that were recorded when the run was killed
    first: dict[str, Run]  # as MLflow had it after the first launch
    runs: dict[str, Run]
    output: str


def launch(folder: Path, log: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "cppo_lab.cli", "launch", "rules.yaml", *OVERRIDES, "launcher.workers=2"]
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)


def recorded(run: Path) -> list[int]:
    """Steps of the trainer's record."""
    path = run / "verl_steps.jsonl"
    return (
        [
            json.loads(line)["step"]
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        if path.exists()
        else []
    )


def runs_of(folder: Path) -> dict[str, Run]:
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(schema.experiment_name("verl"))
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], f"tags.`{schema.TAG_RUN_ID}` LIKE '%'")
    assert len(found) == len({run.data.tags[schema.TAG_RULE] for run in found})  # one each, whatever happened
    return {run.data.tags[schema.TAG_RULE]: run for run in found}


def kill_on_the_way(folder: Path, process: "subprocess.Popen[bytes]") -> dict[str, list[int]]:
    """SIGKILL every run when it has recorded KILLED_AFTER; returns what it had recorded, by run id."""
    killed: dict[str, list[int]] = {}
    deadline = time.monotonic() + LIMIT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for status in (folder / "runs").glob("*/status.json"):
            run = status.parent
            steps = recorded(run)
            if run.name not in killed and KILLED_AFTER in steps:
                os.kill(json.loads(status.read_text())["pid"], signal.SIGKILL)
                killed[run.name] = steps
        time.sleep(0.05)
    return killed


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("verl")
    (folder / "rules.yaml").write_text(SWEEP)
    process = launch(folder, folder / "first.log")
    try:
        killed = kill_on_the_way(folder, process)
        assert process.wait(timeout=60) == 1, (folder / "first.log").read_text()[-5000:]
        first = runs_of(folder)
        process = launch(folder, folder / "second.log")
        process.wait(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
    runs = runs_of(folder)
    by_rule = {rule: killed.get(run.data.tags[schema.TAG_RUN_ID], []) for rule, run in runs.items()}
    yield Story(folder, by_rule, first, runs, (folder / "second.log").read_text())


def history(story: Story, rule: str, metric: str) -> list[tuple[int, float]]:
    client = MlflowClient(f"sqlite:///{story.folder / 'mlflow.db'}")
    points = client.get_metric_history(story.runs[rule].info.run_id, metric)
    return [(point.step, point.value) for point in points]


@pytest.mark.parametrize("rule", RULES)
def test_a_run_is_killed_and_continues_in_the_same_mlflow_run(story: Story, rule: str) -> None:
    assert story.killed[rule] == list(range(KILLED_AFTER + 1))
    assert story.first[rule].info.status == "KILLED"
    run = story.runs[rule]
    assert run.info.run_id == story.first[rule].info.run_id
    assert run.info.status == "FINISHED", story.output[-5000:]
    assert run.data.tags[schema.TAG_STATUS] == schema.DONE
    assert schema.TAG_REASON not in run.data.tags


@pytest.mark.parametrize("rule", RULES)
def test_every_metric_stands_once_at_its_step(story: Story, rule: str) -> None:
    metrics = story.runs[rule].data.metrics
    assert all(schema.is_known_metric(name) for name in metrics)
    score = schema.validation_metric(schema.MEAN, SAMPLES)
    assert [step for step, _ in history(story, rule, score)] == list(range(0, STEPS + 1, EVERY))
    for name in ("train/reward", "train/response_length", "perf/step_seconds"):
        assert [step for step, _ in history(story, rule, name)] == list(range(1, STEPS + 1))
    steps = [step for step, _ in history(story, rule, "train/loss")]
    assert steps
    assert steps == sorted(set(steps))  # a step whose groups all lack variance has no loss
    for name in ("train/entropy", "train/relative_logprob_error", "rule/divergence_mean", "perf/mfu"):
        assert [step for step, _ in history(story, rule, name)] == steps


@pytest.mark.parametrize("rule", RULES)
def test_a_real_update_changes_the_policy(story: Story, rule: str) -> None:
    norms = [value for _, value in history(story, rule, "train/grad_norm")]
    assert all(0 < norm < 1000 for norm in norms)
    # The second minibatch of a step sees a policy that has moved away from mu.
    assert max(value for _, value in history(story, rule, "rule/divergence_mean")) > 1e-5


@pytest.mark.parametrize("rule", RULES)
def test_the_best_checkpoint_is_kept_and_no_other(story: Story, rule: str) -> None:
    folder = story.folder / "runs" / story.runs[rule].data.tags[schema.TAG_RUN_ID]
    scores = dict(history(story, rule, schema.validation_metric(schema.MEAN, SAMPLES)))
    del scores[0]
    best = int((folder / "best_checkpoint" / "step").read_text())
    assert scores[best] == max(scores.values())
    assert (folder / "best_checkpoint" / "actor" / "model_world_size_1_rank_0.pt").is_file()
    assert not (folder / "verl_checkpoints").exists()


def test_rules_with_masks_report_them(story: Story) -> None:
    for rule in ("cppo", "dppo", "trm_max_avg", "cppo_soft"):
        assert "rule/masked_fraction" in story.runs[rule].data.metrics, rule
    assert "rule/delta_b_mean" in story.runs["cppo"].data.metrics


def test_the_traces_are_those_of_the_mini_core(story: Story) -> None:
    """Logged, readable by the reports, and with the fields that `cores.diagnostics` gives every core."""
    uri, found = f"sqlite:///{story.folder / 'mlflow.db'}", story.runs["cppo"].info.run_id
    gaps, window = read_positions(uri, [found])[found], read_windows(uri, [found])[found]
    assert sum(gaps.tokens) > 0
    assert (gaps.w_min, gaps.delta) == (0.8, window.token_threshold)
    assert 0 < window.step <= STEPS
    assert len(window.symbols) <= len(gaps.positions)
    folder = story.folder / "runs" / story.runs["cppo"].data.tags[schema.TAG_RUN_ID] / "diagnostics"
    tables = made_tables()
    assert {path.stem for path in folder.iterdir()} == set(tables)
    for name, table in tables.items():
        assert json.loads((folder / f"{name}.json").read_text()).keys() == table.keys()


def made_tables() -> dict[str, dict[str, Any]]:
    """What the diagnostics give on two made-up tokens."""
    rule = RuleSpec(name="cppo", delta=0.1, delta_b=0.01, delta_b_mode="fixed", w_min=0.8)
    made = Diagnostics(rule, 2)
    one = torch.ones(1, 2)
    made.see(1, Watched(-one, -2 * one, one / 2, one, one.bool(), one.long()), lambda ids: ["a" for _ in ids])
    made.end_step()
    return made.tables()


def test_runs_of_one_seed_begin_alike(story: Story) -> None:
    """Same model, same problems, same sampling seeds: the first rollouts do not depend on the rule."""
    firsts = {rule: history(story, rule, "train/reward")[0] for rule in RULES}
    assert len(set(firsts.values())) == 1
    starts = {history(story, rule, schema.validation_metric(schema.MEAN, SAMPLES))[0] for rule in RULES}
    assert len(starts) == 1


def test_nothing_is_left_running(story: Story) -> None:
    mine = os.fsencode(story.folder)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            assert mine not in (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
