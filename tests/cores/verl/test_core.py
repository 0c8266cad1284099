"""A run of verl's own trainer through `cppo launch`, killed on its way and continued; and every rule in one trainer.

The way of a run through launch, kill and continuation is the same for every rule.
"""

import json
import re

import numpy as np
import pandas as pd
import pytest

from cppo_lab import schema
from cppo_lab.analysis.replay import replay
from cppo_lab.analysis.study import read_positions, read_windows
from cppo_lab.answers import outcomes, texts, tokens
from cppo_lab.answers.outcomes import OUTCOMES
from cppo_lab.answers.texts import texts_name
from cppo_lab.answers.tokens import tokens_name
from cppo_lab.cores.verl.checkpoints import STAGED
from tests.answers.made import averages
from tests.cores.verl.conftest import OnRay, rows_in, running
from tests.cores.verl.on_ray import RULES
from tests.cores.verl.story import DAMAGED, EVERY, KILLED_AFTER, RESUMED, RULE, SAMPLES, STEPS, Story, store

pytestmark = pytest.mark.slow

SCORE = schema.validation_metric(schema.MEAN, SAMPLES)


def test_a_run_is_killed_and_continues_in_the_same_mlflow_run(story: Story) -> None:
    """From the last checkpoint that can be read. Every other test here holds for the run all the same."""
    assert story.killed == list(range(KILLED_AFTER + 1))
    assert story.first.info.status == "KILLED"
    run = story.run
    assert run.info.run_id == story.first.info.run_id
    assert run.info.status == "FINISHED", story.output[-5000:]
    assert run.data.tags[schema.TAG_STATUS] == schema.DONE
    assert schema.TAG_REASON not in run.data.tags
    assert run.data.tags[schema.TAG_ROLLOUT].startswith("cppo_cpu transformers ")
    assert run.data.tags[schema.TAG_LOGITS] == "eager code: no GPU"
    assert float(run.data.tags[schema.TAG_SELF_TEST].split()[3]) < 1e-5  # log mu within ... nats
    said = (
        rf"global_step_{DAMAGED} is ignored, training resumes from step {RESUMED}: actor/optim_\S+ has \d+ of"
    )
    logs = [path.read_text() for path in (story.own_folder / "attempts").glob("*.err")]
    assert sum(len(re.findall(said, log)) for log in logs) == 1
    lines = (story.own_folder / "verl_phases.jsonl").read_text().splitlines()
    trained = [json.loads(line)["step"] for line in lines]
    assert trained == [*range(KILLED_AFTER + 1), *range(RESUMED + 1, STEPS + 1)]


def test_every_metric_stands_once_at_its_step(story: Story) -> None:
    assert all(map(schema.is_known_metric, story.run.data.metrics))
    of_steps = ("train/reward", "train/response_length", "perf/step_seconds")
    of_updates = (
        "train/loss", "train/entropy", "train/relative_logprob_error", "rule/divergence_mean", "perf/mfu",
        schema.DIVERGENCE_BEFORE,
    )  # fmt: skip
    steps = {name: [step for step, _ in story.history(name)] for name in (SCORE, *of_steps, *of_updates)}
    trained = steps["train/loss"]
    assert trained and trained == sorted({*trained})  # a step whose groups all lack variance has no loss
    expected = {name: [*range(1, STEPS + 1)] for name in of_steps} | dict.fromkeys(of_updates, trained)
    assert steps == expected | {SCORE: [*range(0, STEPS + 1, EVERY)]}


def test_the_best_checkpoint_is_kept_and_no_other(story: Story) -> None:
    scores = dict(story.history(SCORE))
    del scores[0]
    best = int((story.own_folder / "best_checkpoint" / "step").read_text())
    assert scores[best] == max(scores.values())
    # Of the run's state its weights alone, and what says which model they are.
    names = {path.name for path in (story.own_folder / "best_checkpoint").rglob("*") if path.is_file()}
    assert {"step", "model_world_size_1_rank_0.pt", "fsdp_config.json", "config.json"} <= names
    assert not [
        name for name in names if name.startswith(("optim", "extra")) or name in ("data.pt", "sizes.json")
    ]
    assert not (story.own_folder / "verl_checkpoints").exists()


def test_the_traces_are_those_of_the_mini_core(story: Story) -> None:
    """Logged, and readable by the reports."""
    uri, run_id = store(story.folder), story.run.info.run_id
    gaps, window = read_positions(uri, [run_id])[run_id], read_windows(uri, [run_id])[run_id]
    assert sum(gaps.tokens) > 0
    assert (gaps.w_min, gaps.delta) == (0.8, window.token_threshold)
    assert window.step in range(EVERY, STEPS + 1, EVERY)  # tokens are traced on the steps that are validated
    assert len(window.symbols) <= len(gaps.positions)
    names = {path.name for path in (story.own_folder / "diagnostics").iterdir()}
    assert names == {"positions.json", "window.json"}


def test_outcomes_texts_and_training_groups_of_every_validation(story: Story) -> None:
    """The run was killed and continued; averages are the logged metrics, exactly."""
    outcome = outcomes.read((story.own_folder / OUTCOMES).read_bytes(), OUTCOMES)
    steps = list(range(0, STEPS + 1, EVERY))
    assert (outcome.steps.tolist(), outcome.samples) == (steps, SAMPLES)
    for column, benchmark in enumerate(outcome.benchmarks):
        logged = story.history(schema.validation_metric(benchmark, SAMPLES))
        assert averages(outcome)[:, column].tolist() == [value for _, value in logged]
    assert not (story.own_folder / STAGED).exists()
    trained = {step for step, _ in story.history("train/loss")}
    for row, step in enumerate(steps):
        name = texts_name(step)
        samples = pd.DataFrame(texts.read((story.own_folder / name).read_bytes(), name).samples)
        validated = samples.kind == texts.VALIDATION
        right, groups = (
            samples[validated].groupby("problem").right.sum(),
            samples[~validated].groupby("group"),
        )
        place = [*map(outcome.problems.index, right.index)]
        assert len(place) == 8 and outcome.right[row, place].tolist() == right.tolist()
        assert groups.ngroups in ((1, 2) if step in trained else (0,))
        assert (groups.size() == 4).all() and (groups.reward.nunique() == 2).all()
        assert (groups.advantage.sum().abs() < 1e-5).all()
        assert (story.own_folder / tokens_name(step)).exists() == (groups.ngroups > 0)


def test_an_evaluation_validates_and_trains_nothing(on_ray: OnRay) -> None:
    """By `trainer.val_only`, which `cppo evaluate` sets (`test_export`)."""
    assert on_ray.seen("validated") == [0]


def rows(on_ray: OnRay) -> dict[int, dict[str, float]]:
    """The record of the trainer that has another rule at each step."""
    on_ray.seen("done")
    return dict(rows_in(on_ray.folder))


@pytest.mark.parametrize("rule", RULES)
def test_every_kind_of_rule_trains(on_ray: OnRay, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of two minibatches on two ranks, through verl's own trainer; a replay of what is kept says the same."""
    step = dict(on_ray.seen("trained"))[rule]
    row = rows(on_ray)[step]
    assert all(map(schema.is_known_metric, row))
    assert 0 < row["train/grad_norm"] < 1000
    assert {"train/loss", "train/entropy", "train/relative_logprob_error", "perf/mfu"} <= set(row)
    # Both servers have the weights of the step before.
    assert row["mismatch/before_update/abs_log_ratio_max"] < 1e-4
    # The second minibatch sees a policy that has moved away from mu. What the rollout keeps of mu is rounded to
    # float16 here, which is a divergence of its own; the probabilities of the sampled tokens are not.
    assert row["rule/divergence_mean"] > 1e-5
    assert row["train/mean_abs_probability_gap"] > 1e-5
    assert "rule/masked_fraction" in row
    assert rule != "cppo" or "rule/delta_b_mean" in row
    table = tokens.read((on_ray.folder / f"tokens-{step}.npz").read_bytes(), rule)
    assert (table.step, table.rule.name) == (step, rule)
    assert table.draw.tolist() == [0, 1, 2, 3] * 2 and len(set(table.group.tolist())) == 2
    if table.rule.path:  # a file's word is not enough
        monkeypatch.setenv("CPPO_RULES", table.rule.path)
    again = replay(table)
    np.testing.assert_allclose(again.keep, table.keep, atol=1e-5)
    np.testing.assert_array_equal(again.reason, table.reason)
    assert (again.tests, again.divergence) == (
        table.tests,
        f"topk_{'kl' if rule.startswith('trm') else 'tv'}",
    )
    assert bool(len(table.order)) == (rule == "cppo_no_prefix_budget_shuffled")


def test_runs_of_one_seed_begin_alike(story: Story, on_ray: OnRay) -> None:
    """Same model, same problems, same sampling seeds: the first rollout depends neither on rule nor on layout."""
    other = rows(on_ray)
    assert RULES[0] != RULE
    assert story.history("train/reward")[0] == (1, other[1]["train/reward"])
    assert story.history("train/response_length")[0] == (1, other[1]["train/response_length"])
    assert story.history(SCORE)[0] == (0, other[0][SCORE])


def test_nothing_is_left_running(story: Story, on_ray: OnRay) -> None:
    on_ray.process.wait()
    assert running(story.folder) == running(on_ray.folder) == []
