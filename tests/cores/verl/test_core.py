"""A run of verl's own trainer through `cppo launch`, killed on its way and continued; and every rule in one trainer.

The way of a run through launch, kill and continuation is the same for every rule.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from cppo_lab import schema
from cppo_lab.analysis.artifacts import read_positions, read_windows
from cppo_lab.cores.diagnostics import Diagnostics, Watched
from cppo_lab.cores.verl import steps
from cppo_lab.spec import RuleSpec
from tests.cores.verl.conftest import OnRay
from tests.cores.verl.on_ray import FOREIGN, RULES
from tests.cores.verl.story import EVERY, KILLED_AFTER, RULE, SAMPLES, STEPS, Story

pytestmark = [pytest.mark.verl, pytest.mark.slow]

SCORE = schema.validation_metric(schema.MEAN, SAMPLES)


def test_a_run_is_killed_and_continues_in_the_same_mlflow_run(story: Story) -> None:
    assert story.killed == list(range(KILLED_AFTER + 1))
    assert story.first.info.status == "KILLED"
    run = story.run
    assert run.info.run_id == story.first.info.run_id
    assert run.info.status == "FINISHED", story.output[-5000:]
    assert run.data.tags[schema.TAG_STATUS] == schema.DONE
    assert schema.TAG_REASON not in run.data.tags


def test_every_metric_stands_once_at_its_step(story: Story) -> None:
    assert all(schema.is_known_metric(name) for name in story.run.data.metrics)
    assert [step for step, _ in story.history(SCORE)] == list(range(0, STEPS + 1, EVERY))
    for name in ("train/reward", "train/response_length", "perf/step_seconds"):
        assert [step for step, _ in story.history(name)] == list(range(1, STEPS + 1))
    trained = [step for step, _ in story.history("train/loss")]
    assert trained
    assert trained == sorted(set(trained))  # a step whose groups all lack variance has no loss
    for name in ("train/entropy", "train/relative_logprob_error", "rule/divergence_mean", "perf/mfu"):
        assert [step for step, _ in story.history(name)] == trained


def test_a_real_update_changes_the_policy(story: Story) -> None:
    norms = [value for _, value in story.history("train/grad_norm")]
    assert all(0 < norm < 1000 for norm in norms)
    # The second minibatch of a step sees a policy that has moved away from mu.
    assert max(value for _, value in story.history("rule/divergence_mean")) > 1e-5


def test_the_best_checkpoint_is_kept_and_no_other(story: Story) -> None:
    scores = dict(story.history(SCORE))
    del scores[0]
    best = int((story.own_folder / "best_checkpoint" / "step").read_text())
    assert scores[best] == max(scores.values())
    assert (story.own_folder / "best_checkpoint" / "actor" / "model_world_size_1_rank_0.pt").is_file()
    assert not (story.own_folder / "verl_checkpoints").exists()


def test_the_traces_are_those_of_the_mini_core(story: Story) -> None:
    """Logged, readable by the reports, and with the fields that `cores.diagnostics` gives every core."""
    uri, found = f"sqlite:///{story.folder / 'mlflow.db'}", story.run.info.run_id
    gaps, window = read_positions(uri, [found])[found], read_windows(uri, [found])[found]
    assert sum(gaps.tokens) > 0
    assert (gaps.w_min, gaps.delta) == (0.8, window.token_threshold)
    assert 0 < window.step <= STEPS
    assert len(window.symbols) <= len(gaps.positions)
    tables = made_tables()
    assert {path.stem for path in (story.own_folder / "diagnostics").iterdir()} == set(tables)
    for name, table in tables.items():
        written = json.loads((story.own_folder / "diagnostics" / f"{name}.json").read_text())
        assert written.keys() == table.keys()


def made_tables() -> dict[str, dict[str, Any]]:
    """What the diagnostics give on two made-up tokens."""
    rule = RuleSpec(name="cppo", delta=0.1, delta_b=0.01, delta_b_mode="fixed", w_min=0.8)
    made = Diagnostics(rule, 2)
    one = torch.ones(1, 2)
    made.see(1, Watched(-one, -2 * one, one / 2, one, one.bool(), one.long()), lambda ids: ["a" for _ in ids])
    made.end_step()
    return made.tables()


def rows(on_ray: OnRay) -> dict[int, dict[str, float]]:
    """The record of the trainer that has another rule at each step."""
    on_ray.found("done")
    return dict(row for _, row in steps.rows(on_ray.folder))


def rows_of_rules(on_ray: OnRay) -> dict[str, dict[str, float]]:
    """The row of the step that each rule trained."""
    found = rows(on_ray)
    return {rule: found[step] for rule, step in on_ray.found("trained")}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_trains(on_ray: OnRay, rule: str) -> None:
    """A step of two minibatches on two ranks, through verl's own trainer."""
    row = rows_of_rules(on_ray)[rule]
    assert all(schema.is_known_metric(name) for name in row)
    assert 0 < row["train/grad_norm"] < 1000
    assert {"train/loss", "train/entropy", "train/relative_logprob_error", "perf/mfu"} <= set(row)
    # The second minibatch sees a policy that has moved away from mu. What the rollout keeps of mu is rounded to
    # float16 here, which is a divergence of its own; the probabilities of the sampled tokens are not.
    assert row["rule/divergence_mean"] > 1e-5
    assert row["train/mean_abs_probability_gap"] > 1e-5


def test_rules_with_masks_report_them(on_ray: OnRay) -> None:
    found = rows_of_rules(on_ray)
    for rule in ("cppo", "dppo", "trm_max_avg", "cppo_soft", FOREIGN):
        assert "rule/masked_fraction" in found[rule], rule
    assert "rule/delta_b_mean" in found["cppo"]


def test_a_step_of_its_own_for_every_rule(on_ray: OnRay) -> None:
    trained = on_ray.found("trained")
    assert [rule for rule, _ in trained] == list(RULES)
    found = rows(on_ray)
    assert list(found) == list(range(trained[-1][1] + 1))
    # Metrics that rules have of their own came with them, and went.
    assert (
        len({frozenset(name for name in found[step] if name.startswith("rule/")) for _, step in trained}) > 1
    )


def test_runs_of_one_seed_begin_alike(story: Story, on_ray: OnRay) -> None:
    """Same model, same problems, same sampling seeds: the first rollout depends neither on rule nor on layout."""
    other = rows(on_ray)
    assert RULES[0] != RULE
    assert story.history("train/reward")[0] == (1, other[1]["train/reward"])
    assert story.history("train/response_length")[0] == (1, other[1]["train/response_length"])
    assert story.history(SCORE)[0] == (0, other[0][SCORE])


def test_nothing_is_left_running(story: Story, on_ray: OnRay) -> None:
    on_ray.wait()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        assert os.fsencode(story.folder) not in command and os.fsencode(on_ray.folder) not in command
