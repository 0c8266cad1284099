"""What our trainer does between verl's checkpoints, on a queue in memory and with workers that do nothing.

The trainer as a whole is tested in `test_core`.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.parquet import read_table, write_table
from ray.exceptions import RayTaskError
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync, replay_buffer
from verl.workers.rollout.replica import TokenOutput

from cppo_lab import schema
from cppo_lab.core_records import BEST_CHECKPOINT, PHASES
from cppo_lab.cores.base import write_phases
from cppo_lab.cores.mini.tasks import make_task
from cppo_lab.cores.verl import checkpoints
from cppo_lab.cores.verl import trainer as module
from cppo_lab.cores.verl.answers import PLACE, TrainedResponse
from cppo_lab.cores.verl.checkpoints import TAGS_FILE, best_step, score_name
from cppo_lab.cores.verl.config import lab_settings
from cppo_lab.cores.verl.hf_models import as_fast_tokenizer, write_task
from cppo_lab.cores.verl.rewards import FAULT
from cppo_lab.cores.verl.rollout import TOPK_IDS, TOPK_LOGP
from cppo_lab.cores.verl.trainer import (
    PADDING,
    AsyncLabReplayBuffer,
    AsyncLabTrainer,
    LabReplayBuffer,
    LabTrainer,
    PolicyBroken,
    ages_of,
    arrange,
    row_of_test,
    self_test,
)
from cppo_lab.errors import NotFinite
from cppo_lab.maths.rules import group_advantages
from cppo_lab.schema import Outcome
from cppo_lab.spec import VerlRun
from cppo_lab.sweep.compose import compose
from tests.conftest import user_error
from tests.cores.kills import killed_at_each
from tests.cores.verl.asynchronous import BOUND
from tests.cores.verl.conftest import rows_in, steps_in
from tests.cores.verl.in_process import tree
from tests.cores.verl.queue_in_memory import Queue
from tests.cores.verl.recorded import actor, reduced, train
from tests.maths.maths_batches import random_batch
from tests.waiting import CEILING_SECONDS, until

PROMPTS, RESPONSES, EOS, K = 8, 4, 14, 8
TABLES = {"positions": {"position": [1]}}
Rewards = list[list[float]]  # [prompt][response]
MIXED: Rewards = [[1, 0, 0, 1], [0] * 4, [1] * 4, [0, 0, 0, 1]] + [[0, 1, 0, 0]] * 4


@cache
def configured(*overrides: str) -> tuple[VerlRun, Any]:
    """A run of the miniature, and verl's tree for it."""
    made = compose(["core=verl", "model=tiny_qwen3", *overrides])
    return made.run, tree(made)


def trainer(folder: Path, *overrides: str, ranks: int = 1) -> LabTrainer:
    """A trainer that has not started anything."""
    run, config = configured(*overrides)
    with pytest.MonkeyPatch.context() as patch:
        settings = lab_settings(config).model_copy(update={"folder": folder})
        patch.setattr(module, "lab_settings", lambda _: settings)
        patch.setattr(PPOTrainerSync, "__init__", lambda made, config: vars(made).update(config=config))
        made = LabTrainer(config)
    made.actor_rollout_wg = SimpleNamespace(  # stands for the group of Ray actors
        _dispatch_info={},
        _query_dispatch_info={"actor": range(ranks)}.get,
        # Of a pipeline, whose last stage has the loss.
        read_diagnostics=lambda: [None, (TABLES, {"tokens": torch.zeros(1)})],
    )
    made.tokenizer = SimpleNamespace(eos_token_id=EOS)
    made.global_steps, made.total_training_steps = 1, run.training.t_stop
    made.use_reference_policy = made.use_critic = False
    return made


def rollout(made: LabTrainer, queue: Queue, rewards: Rewards) -> KVBatchMeta:
    """A batch of responses as the agent loop leaves it, in a random order of arrival."""
    draw = torch.Generator().manual_seed(0)
    made._order = {f"uid-{prompt}": prompt for prompt in range(PROMPTS)}
    keys = []
    for (uid, prompt), of_prompt in zip(made._order.items(), rewards, strict=True):
        for session, reward in enumerate(of_prompt):
            length = 1 + (prompt * 7 + session * 3) % 11
            scores = torch.zeros(length)
            scores[-1] = reward
            key = f"{uid}_{session}_0"
            queue.rows[key] = {
                "uid": uid, "session_id": session, "prompts": torch.arange(5), "responses": torch.arange(length),
                "response_mask": torch.ones(length).long(), "rm_scores": scores,
                "rollout_log_probs": -torch.rand(length, generator=draw),
                "rollout_topk_ids": torch.ones(length, K, dtype=torch.int32),
                "rollout_topk_logp": -torch.rand(length, K, generator=draw),
            }  # fmt: skip
            queue.tags[key] = {"prompt_len": 5, "response_len": length, "seq_len": 5 + length}
            keys.append(key)
    keys = [keys[i] for i in torch.randperm(len(keys), generator=draw)]
    tags = [queue.tags[key] for key in keys]
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train", extra_info={"temperature": 1.0})


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(monkeypatch)


def prompts_of(keys: list[str]) -> list[int]:
    return [-1 if key.startswith("pad") else int(key.split("_")[0].removeprefix("uid-")) for key in keys]


def test_groups_without_variance_are_left_out_of_their_minibatch(tmp_path: Path, queue: Queue) -> None:
    made = trainer(tmp_path, "rollout.max_response_length=11", ranks=2)
    given = rollout(made, queue, MIXED)
    batch = made._balance_batch(given, {})
    # Two minibatches of four prompts, 16 rows; each rank has its half of the first, then of the second.
    prompts = prompts_of(batch.keys)
    assert sorted(prompts[:8] + prompts[16:24]) == [-1] * 8 + [0] * 4 + [3] * 4
    assert sorted(prompts[8:16] + prompts[24:]) == sorted([4, 5, 6, 7] * 4)
    counts = [float(queue.rows[key]["minibatch_responses"]) for key in batch.keys]
    assert counts == ([8.0] * 8 + [16.0] * 8) * 2
    assert set(prompts_of(list(queue.rows))) == {-1, 0, 3, 4, 5, 6, 7}  # the rest is forgotten
    assert batch.extra_info == {"temperature": 1.0}
    assert made._collected["train/zero_variance_group_share"] == 0.25
    assert made._collected["train/reward"] == pytest.approx(11 / 32)
    lengths = [tag["response_len"] for tag in given.tags]
    assert made._collected["train/truncated_share"] == lengths.count(11) / 32 > 0
    assert made._collected["perf/topk_megabytes"] == sum(lengths) * K * 8 / 1e6  # an id and a float32
    # Rows of padding train nothing, and only the shuffled rule carries an order.
    padding = {
        "responses": [EOS], "response_mask": [0], "loss_mask": [0], "rollout_topk_ids": [[0] * K],
        "rollout_topk_logp": [[0] * K],
    }  # fmt: skip
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        if key.startswith("pad"):
            assert tag["is_padding"] and {name: queue.rows[key][name].tolist() for name in padding} == padding
    assert all("weight_permutation" not in row for row in queue.rows.values())
    # verl computes advantages on the arranged rows, padding among them; mu is the rollout's own probability.
    batch = made._compute_old_log_prob(batch, {})
    rewards = torch.tensor(MIXED, dtype=torch.float32).flatten()
    for normalize in (False, True):
        made.config.algorithm.norm_adv_by_std_in_grpo = normalize
        made._compute_advantage(batch, {})
        groups = torch.arange(PROMPTS).repeat_interleave(RESPONSES)
        expected, _ = group_advantages(rewards, groups, normalize_std=normalize)
        for key, prompt in zip(batch.keys, prompts, strict=True):
            row = queue.rows[key]
            assert torch.equal(row["old_log_probs"], row["rollout_log_probs"])
            value = 0.0 if prompt < 0 else expected[prompt * RESPONSES + int(key.split("_")[1])]
            torch.testing.assert_close(row["advantages"], torch.full_like(row["advantages"], float(value)))


def test_a_validated_step_leaves_its_answers_before_its_row(tmp_path: Path) -> None:
    made, staged = trainer(tmp_path, "training.t_stop=8"), []
    made._answers = Mock(take="of step {}".format)
    made._staging = Mock(add=lambda *given: staged.append((*given, *checkpoints.rows(tmp_path))))
    validated(made, 2, 0.5)
    validated(made, 3, None)
    assert staged == [(2, "of step 2")]


def test_the_responses_that_are_kept_are_chosen_from_the_trained_and_marked(
    tmp_path: Path, queue: Queue
) -> None:
    made, kept = trainer(tmp_path, "validation.every=1", "advantage.normalize_std=false"), list[Any]()
    made._answers = Mock(choose=lambda trained: kept.extend(trained[::5]), chosen=kept)
    batch = made._balance_batch(rollout(made, queue, MIXED), {})
    trained = [(group, draw) for group in (0, *range(3, PROMPTS)) for draw in range(RESPONSES)]
    assert kept == [
        TrainedResponse(f"uid-{group}_{draw}_0", group, draw, reward, reward - sum(MIXED[group]) / 4)
        for group, draw in trained[::5]
        for reward in (MIXED[group][draw],)
    ]
    marked = sorted((int(queue.rows[key][PLACE]), key) for key in batch.keys)
    assert marked[-len(kept) :] == [*enumerate(row.key for row in kept)]
    assert {place for place, _ in marked[: -len(kept)]} == {-1}


def test_weights_are_shuffled_afresh_at_each_step_and_the_same_when_it_is_repeated(
    tmp_path: Path, queue: Queue
) -> None:
    drawn = []
    for step, seed in ((1, 0), (1, 0), (2, 0), (1, 1)):
        made = trainer(tmp_path, "rule=cppo_no_prefix_budget_shuffled", f"seed={seed}")
        made.global_steps = step
        batch = made._balance_batch(rollout(made, queue, MIXED), {})
        rows = [queue.rows[key] for key in batch.keys]
        for row in rows:
            assert sorted(row["weight_permutation"].tolist()) == list(range(len(row["responses"])))
        drawn.append([row["weight_permutation"].tolist() for row in rows])
    assert [order == drawn[0] for order in drawn] == [True, True, False, False]


def test_missing_responses_are_filled_up(tmp_path: Path, queue: Queue) -> None:
    """And without the drop everything is trained."""
    rewards: Rewards = [[1, 0], [1], [], [0, 0, 0, 1], *[[0, 1, 0, 0]] * 4]
    everything = trainer(tmp_path, "advantage.drop_zero_variance=false")
    for made, batch, trained, share in (
        (everything, MIXED, [*range(PROMPTS)] * RESPONSES, 1 / 4),
        (trainer(tmp_path, ranks=2), rewards, [-1] * 10 + [0] * 2 + [3, 4, 5, 6, 7] * 4, 1 / 7),
    ):
        keys = made._balance_batch(rollout(made, queue, batch), {}).keys
        assert sorted(prompts_of(keys)) == sorted(trained)
        assert made._collected["train/zero_variance_group_share"] == share  # of groups, of whatever size
    assert sum(float(queue.rows[key]["minibatch_responses"]) for key in keys) == 16 * 6 + 16 * 16


def test_the_parts_of_a_users_reward_are_metrics_and_what_it_does_wrong_ends_the_run(
    tmp_path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(tmp_path)
    monkeypatch.setattr(VerlRun, "own_reward", "package.module:score")
    batch = rollout(made, queue, MIXED)
    for row in queue.rows.values():
        row["extra_fields"] = {"reward_extra_info": {"score": float(row["rm_scores"].sum()), "format": 0.5}}
    made._on_validation(batch)
    fault = {"extra_fields": {"reward_extra_info": {FAULT: "it returned None"}}}
    with monkeypatch.context() as patch, user_error("it returned None"):
        patch.setitem(queue.rows, batch.keys[-1], fault)
        made._on_validation(batch)
    made._balance_batch(batch, {})
    assert made._collected["reward/score"] == made._collected["train/reward"] == 11 / 32
    assert made._collected["reward/format"] == 0.5


def test_a_batch_without_a_signal_is_no_update(
    tmp_path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(tmp_path)
    batch = made._balance_batch(rollout(made, queue, [[1.0] * 4, [0.0] * 4] * 4), {})
    for name in ("_compute_old_log_prob", "_compute_advantage", "_update_actor"):
        monkeypatch.setattr(PPOTrainerSync, name, None)  # of verl nothing is asked
        batch = getattr(made, name)(batch, {})
    queue.kv_clear(batch.keys, "train")  # as verl's loop ends a step
    assert queue.rows == {}
    made._compute_metrics(batch, {}, {"step": 1.0, "gen": 0.5, "update_actor": 1e-6}, 1, 0)
    [(_, (_, row))] = checkpoints.rows(tmp_path)
    assert row["train/zero_variance_group_share"] == 1.0
    assert "perf/trained_tokens_per_second" not in row


def test_fewer_problems_than_a_batch_has_are_named(tmp_path: Path) -> None:
    """Whoever has written the file, of what verl's data set takes of it."""
    made, composed = trainer(tmp_path), compose(["core=verl", "model=tiny_qwen3", "training.t_stop=2"])
    made.config = tree(composed, folder=tmp_path)
    data = made.config.data
    write_task(composed.run, Path(data.train_files), Path(data.val_files[0]))
    made.tokenizer, made.processor = as_fast_tokenizer(make_task(composed.run.data).tokenizer), None
    made.parameter_sync_step, made.trainer_mode = 1, "sync"
    made._init_dataloader()
    write_table(read_table(data.train_files).slice(0, PROMPTS - 1), data.train_files)
    with user_error(rf"has 7 problems of \d+ tokens or less, fewer than batch\.prompts={PROMPTS}: prepare"):
        made._init_dataloader()


ONE_ROW = KVBatchMeta(keys=["a"], tags=[{}], partition_id="train")


def validated(made: LabTrainer, step: int, score: float | None, **metrics: float) -> None:
    """The end of a step, with or without a validation."""
    made.global_steps = step
    made._sampled_tokens = made._trained_tokens = 10
    made._validation = {} if score is None else {score_name(made.spec): score}
    made._compute_metrics(ONE_ROW, dict(metrics), {"step": 2.0, "gen": 1.0, "update_actor": 0.5}, step, 0)


def test_the_end_of_a_collapse(tmp_path: Path) -> None:
    """Seen over the break of a continued run, too."""
    for step, score in enumerate([0.5, 0.1, 0.1], start=1):
        made = trainer(tmp_path, "training.t_stop=8")
        validated(made, step, score)
    outcome = checkpoints.read_outcome(tmp_path)
    assert outcome == Outcome(schema.COLLAPSED, 3, outcome.reason)
    assert "at 2 validations in a row" in outcome.reason
    assert made.total_training_steps == 3  # where verl's loop looks
    rows = dict(rows_in(tmp_path))
    assert list(rows) == [1, 2, 3]
    assert rows[1]["perf/sampled_tokens_per_second"] == 10
    assert rows[1]["perf/trained_tokens_per_second"] == 20
    assert all(schema.is_known_metric(name) for row in rows.values() for name in row)
    assert (tmp_path / "diagnostics" / "positions.json").is_file()


SCORES = {2: 0.2, 4: 0.5, 6: 0.3}


def verls(made: LabTrainer) -> None:
    """verl's save. It removes old weights that it has written itself."""
    folder = checkpoints.checkpoint_folder(made.folder, made.global_steps)
    for name in ("actor/model_world_size_1_rank_0.pt", "actor/optim_world_size_1_rank_0.pt", "data.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save({"step": torch.tensor(made.global_steps)}, folder / name)


def saved(folder: Path) -> list[int]:
    paths = (folder / checkpoints.CHECKPOINTS).glob("*")
    return sorted(int(path.name.removeprefix(checkpoints.PREFIX)) for path in paths)


def attempt(folder: Path) -> None:
    """Of a run to its end, as `core.train` and verl's loop go; validated every 2 steps, and saved every 3 as well."""
    made = trainer(folder, "training.t_stop=6")
    made._checkpoint_every = 3
    last, _ = checkpoints.resume(folder, score_name(made.spec))
    if last is None:
        made._validation = {score_name(made.spec): 0.1}
        made._write_row(0, {})
    for step in range((last or 0) + 1, 7):
        made.global_steps = step
        made._save_checkpoint()
        assert len(saved(folder)) <= 2
        validated(made, step, SCORES.get(step))


def test_a_run_that_is_killed_at_any_moment_loses_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of a save, of its row, or of keeping the best weights: the next attempt mends it."""
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", verls)
    resumed = set()
    for folder, through in killed_at_each(monkeypatch, tmp_path, attempt):
        resumed.add(checkpoints.last_readable(folder))
        assert not through or checkpoints.read_outcome(folder) == Outcome(schema.DONE, 6)
        attempt(folder)
        assert steps_in(folder) == list(range(7))
        assert saved(folder) in ([4, 6], [6])
        assert best_step(folder) == 4
        [weights] = (folder / BEST_CHECKPOINT).rglob("*.*")
        assert torch.load(weights) == {"step": 4}
    assert resumed == {None, 2, 3, 4, 6}


@pytest.mark.parametrize(
    "step, left, save, is_saved",
    [
        # Validated every 4 steps; a step has taken 100 s, a validation 200 s. A minute is for the end.
        (1, None, 0, False),
        (4, None, 0, True),
        (1, 195, 0, False),
        (1, 185, 0, True),
        (1, 195, 20, True),  # which the next save will take
        (3, 445, 0, True),  # the row of the next step comes after its validation
        (3, 455, 0, False),
        (1, -1, 0, False),  # it was put off, or the clocks differ: the run would save at every step
        (4, -1, 0, True),
    ],
)
def test_a_step_is_saved_if_the_next_might_be_too_late(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    left: float | None,
    save: float,
    is_saved: bool,
) -> None:
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", verls)
    made = trainer(tmp_path, "training.t_stop=8", "validation.every=4")
    monkeypatch.setattr(module, "time", Mock(time=lambda: 5000.0, monotonic=lambda: 300.0))
    made._deadline = left and 5000.0 + left
    made._row_at, made._validation_seconds, made._save_seconds = 200.0, 200.0, save
    made.global_steps = step
    made._save_checkpoint()
    assert saved(tmp_path) == [step] * is_saved


def test_a_later_attempt_expects_the_times_of_the_earlier_ones(tmp_path: Path) -> None:
    def expected() -> tuple[float, float]:
        made = trainer(tmp_path)
        return made._validation_seconds, made._save_seconds

    write_phases(tmp_path, 4, {"step": 900.0, "testing": 200.0, "save_checkpoint": 70.0}, {})
    write_phases(tmp_path, 5, {"step": 900.0, "save_checkpoint": 0.0}, {})  # was not saved
    assert expected() == (200, 70)
    for line in ('{"step": 4, "sec{"step": 5}\n', ""):
        (tmp_path / PHASES).write_text(line)
        assert expected() == (0, 0)


@pytest.mark.parametrize("late", [0, 1])
def test_a_warned_run_saves_the_step_that_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """Or the next, if it is past its save, unless it was the last. And nothing is awaited where there is no time,
    where it is unknown, or where nothing has been trained.
    """
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", verls)
    made = trainer(tmp_path, "training.t_stop=8", "validation.every=4")
    checkpoints.await_step(tmp_path, time.time() + 1000, 3600)
    validated(made, 1, None)
    for left, grace in ((None, 3600), (-5.0, 3600), (30.0, 3600), (20_000.0, 3600), (3000.0, 120)):
        checkpoints.await_step(tmp_path, left and time.time() + left, grace)
        assert not checkpoints.take_request(tmp_path)

    def warned() -> threading.Thread:
        given = (tmp_path, time.time() + 3000, 3600)
        thread = threading.Thread(target=checkpoints.await_step, args=given, daemon=True)
        thread.start()
        until("the request", (tmp_path / checkpoints.REQUEST).exists)
        return thread

    def goes(thread: threading.Thread) -> None:
        thread.join(CEILING_SECONDS)
        assert not thread.is_alive()

    waiting = warned()
    if late:
        validated(made, 2, None)
        waiting.join(1.0)  # several looks at the record
    assert waiting.is_alive()
    made.global_steps = 2 + late
    made._save_checkpoint()
    assert waiting.is_alive()  # until the row says that the checkpoint is whole
    validated(made, 2 + late, None)
    goes(waiting)
    assert checkpoints.last_readable(tmp_path) == 2 + late
    made.global_steps = 3 + late
    made._save_checkpoint()
    assert (4 in saved(tmp_path)) is bool(late)
    waiting = warned()
    made._end(made.global_steps)
    goes(waiting)


def test_a_gradient_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    made = trainer(tmp_path, "training.t_stop=8")
    sums = reduced([train(actor("dppo", {"delta": 0.1}), random_batch(5), [[range(4)]]).metrics])
    validated(made, 1, 0.5, **sums | {"actor/grad_norm": 1.0})
    validated(made, 2, 0.6, **sums | {"actor/grad_norm": math.inf})
    outcome = checkpoints.read_outcome(tmp_path)
    assert outcome == Outcome(schema.COLLAPSED, 1, "gradient norm is inf at step 2")
    assert steps_in(tmp_path) == [1]  # such a step can't be continued from


def test_a_log_probability_that_is_not_finite_ends_the_run_in_the_middle_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray hands the worker's error on: an exception that is both RayTaskError and NotFinite."""
    fault = NotFinite("the ratio of kept token [0, 3] overflows (log_ratio 90): see logp there, or mask it")
    error = RayTaskError("update_actor", f"Traceback:\n  ...\ncppo_lab.errors.NotFinite: {fault}", fault)
    failing = Mock(side_effect=error.as_instanceof_cause())
    monkeypatch.setattr(PPOTrainerSync, "_update_actor", failing)
    made = trainer(tmp_path)
    validated(made, 1, None)
    made.global_steps = 2
    with pytest.raises(PolicyBroken):
        made._update_actor(ONE_ROW, {})
    assert checkpoints.read_outcome(tmp_path) == Outcome(schema.COLLAPSED, 1, f"{fault} at step 2")


GOOD = torch.tensor([[0.5, 0.3, 0.1], [0.9, 0.05, 0.02]]).log()  # mu's Top-3 at two tokens


@pytest.mark.parametrize(
    "gap, topk, said",
    [
        ([0.01, 0.05], GOOD, "within 0.03 nats of the trainer's on average, 0.05 at most; Top-3 mass 0.9000 to 0.9700"),
        ([0.01, 0.05], None, "0.05 at most; D_t 0.004 on average (2 tokens of 1 prompts)"),
        ([0.5, 0.3], GOOD, ""),  # other weights
        ([math.nan, 0.1], None, ""),
        ([0.01, 0.05], GOOD * 0.7, ""),  # not of a softmax: 1.25 and more
        ([0.01, 0.05], GOOD.flip(1), ""),  # the least likely first
        ([0.01, 0.05], GOOD + math.nan, ""),
    ],
)  # fmt: skip
def test_rollout_servers_with_another_policy_are_found(
    gap: list[float], topk: Tensor | None, said: str
) -> None:
    columns = {} if topk is None else {TOPK_IDS: np.ones((2, 3), np.int32), TOPK_LOGP: topk.numpy()}
    output = TokenOutput(token_ids=[8, 9], log_probs=[-0.1, -0.2], extra_fields=columns)
    row = row_of_test([5, 6, 7], output)
    assert row["input_ids"].tolist() == [5, 6, 7, 8, 9]
    test = (torch.tensor(gap), torch.tensor([0.003, 0.005]), [row])
    if not said:
        with user_error("do not return the trainer's policy: log mu within"):
            self_test(*test)
    else:
        assert said in self_test(*test)


Prompts = dict[str, tuple[str, int]]  # their status, and the step in which they were submitted


def buffer(
    patch: pytest.MonkeyPatch,
    kind: type[LabReplayBuffer],
    look: Callable[[], Prompts],
    partition: str = "train",
) -> LabReplayBuffer:
    """One over a queue with these prompts at each look."""

    def queued() -> dict[str, dict[str, Any]]:
        prompts = look()
        tags = {
            uid: {"is_prompt": True, "status": status, "global_steps": step}
            for uid, (status, step) in prompts.items()
        }
        answered = {
            f"{uid}_0_0": {"seq_len": 3} for uid, (status, _) in prompts.items() if status != "failure"
        }
        others = {"trained_0_0": {"seq_len": 3}}  # whose prompt has gone
        return {partition: tags | answered | others}

    patch.setattr(replay_buffer.tq, "kv_list", queued)
    patch.setattr(replay_buffer.tq, "kv_clear", lambda **_: None)
    return kind(
        trainer_mode="sync" if kind is LabReplayBuffer else "colocate_async", trainer_config={}, sampler_kwargs={},
        max_off_policy_threshold=1 + BOUND, max_off_policy_strategy="wait", refill_fn=lambda _: None,
    )  # fmt: skip


@pytest.mark.parametrize("seconds, most", [(1.5, 16), (600.0, 700)])
def test_a_long_rollout_is_asked_for_seldom_and_noticed_in_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    clock, pauses = [1000.0], list[float]()

    def sleep(pause: float) -> None:
        pauses.append(pause)
        clock[0] += pause

    watch = SimpleNamespace(monotonic=lambda: clock[0], time=lambda: clock[0], sleep=sleep)
    monkeypatch.setattr(replay_buffer, "time", watch)
    monkeypatch.setattr(module, "time", watch)

    statuses = "running", "finished"
    made = buffer(monkeypatch, LabReplayBuffer, lambda: {"a": (statuses[clock[0] >= 1000 + seconds], 1)})
    assert made.sample(1, "train", 1)[0].keys == ["a_0_0"]
    assert len(pauses) <= most and clock[0] - 1000 <= max(1.01 * seconds, seconds + 0.1) + 1e-6
    assert not any(pause < 1 for pause in pauses[-100:] if seconds > 10)


@pytest.mark.parametrize("kind", [LabReplayBuffer, AsyncLabReplayBuffer])
@pytest.mark.parametrize("partition", ["train", "val"])
def test_a_batch_without_a_response_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, kind: type[LabReplayBuffer], partition: str
) -> None:
    failed = {"a": ("failure", 1), "b": ("failure", 1)}
    said = rf"2 rollouts (\({partition}\)|in a row) failed: the run's log has"
    with pytest.raises(RuntimeError, match=said):
        buffer(monkeypatch, kind, lambda: failed, partition).sample(1, partition, 2)


@pytest.mark.parametrize(
    "codes, tag",
    [
        (["kernels", None, "eager code: no ptxas", "kernels"], "eager code: no ptxas; kernels"),
        (["", ""], "verl"),
    ],
)
def test_a_run_is_tagged_with_the_code_of_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[str | None], tag: str
) -> None:
    made = MagicMock(folder=tmp_path, train_dataset=[{"raw_prompt": [{"content": "1 + 1"}]}])
    made.spec, made.tokenizer.encode.return_value = configured()[0], [5, 6]
    output = TokenOutput(token_ids=[8], log_probs=[-0.1])
    made.get_llm_client.return_value.generate = AsyncMock(return_value=output)
    made.actor_rollout_wg.compare.return_value = [
        None if code is None else (torch.tensor([0.1]), torch.tensor([0.0]), code) for code in codes
    ]
    monkeypatch.setattr(module.ray, "get", lambda _: "0.20")
    LabTrainer._test_servers(made)
    assert json.loads((tmp_path / TAGS_FILE).read_text())[schema.TAG_LOGITS] == tag


# -- Who is trained where ----------------------------------------------------------------------------------------------


def test_the_longest_come_first_and_then_fill_the_ranks() -> None:
    """Two minibatches of two groups of two on two ranks: 8 | 7 + 5 would leave no place, so 8 + 5 | 7 + 6."""
    groups, lengths = [0, 0, 1, 1, 2, 2, 3, 3], [5, 6, 7, 8, 4, 3, 2, 1]
    rows = arrange(groups, lengths, [True] * 8, groups_per_minibatch=2, ranks=2, rows=4)
    assert rows.tolist() == [[[3, 0], [4, 7]], [[2, 1], [5, 6]]]


def present(minibatch: Sequence[Sequence[int]]) -> list[int]:
    return [row for rank in minibatch for row in rank if row != PADDING]


@settings(max_examples=200, deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_any_batch(data: st.DataObject, random: Random) -> None:
    """Of some prompts, some of whose responses are missing or without signal, in any order."""
    minibatches, size, responses = (data.draw(st.integers(1, most)) for most in (4, 4, 6))
    ranks = data.draw(st.sampled_from([1, 2, 3, 4]))
    rows = -(-size * responses // ranks) * ranks
    signal = [random.random() < 0.6 for _ in range(minibatches * size)]
    groups = [group for group in range(len(signal)) for _ in range(random.randint(0, responses))]
    random.shuffle(groups)
    lengths = [random.randint(1, 10_000) for _ in groups]

    whole = [
        [row for row, group in enumerate(groups) if signal[group] and group // size == number]
        for number in range(minibatches)
    ]
    for order in (range(len(groups)), random.sample(range(len(groups)), len(groups))):
        of = [groups[row] for row in order]
        columns = of, [lengths[row] for row in order], [signal[group] for group in of]
        table = arrange(*columns, groups_per_minibatch=size, ranks=ranks, rows=rows)
        arrangement = table.swapaxes(0, 1).tolist()  # [minibatch][rank][row]
        # Whole groups, in the minibatch of their prompts, in the order of the data; none of padding alone. The order of
        # arrival does not change a minibatch.
        assert [sorted(order[row] for row in present(minibatch)) for minibatch in arrangement] == [
            *filter(None, whole)
        ]
        for minibatch in arrangement:
            assert [len(share) for share in minibatch] == [rows // ranks] * ranks  # what verl needs
            # As long as every rank has a place left, no two differ by more tokens than the longest response has.
            tokens = [sum(columns[1][row] for row in share if row != PADDING) for share in minibatch]
            if all(PADDING in share for share in minibatch):
                assert max(tokens) - min(tokens) <= max(columns[1][row] for row in present(minibatch))


# -- rollout.mode=async: ages of tokens, the order of prompts, batches that wait; whole runs: test_async_runs ----------


def test_ages_count_updated_batches_and_have_a_bound() -> None:
    steps = torch.tensor([4, 4, 6, 5])
    assert ages_of(steps, 7, 3) == {
        "train/staleness_mean": 1.25, "train/staleness_max": 2.0, "train/staleness_share_0": 0.25,
        "train/staleness_share_1": 0.25, "train/staleness_share_2": 0.5, "train/staleness_share_3": 0.0,
    }  # fmt: skip
    assert all(map(schema.is_known_metric, ages_of(steps, 7, 3)))
    with pytest.raises(RuntimeError, match=r"step 7 .* policy after step 4, with rollout.max_staleness=1"):
        ages_of(steps, 7, 1)


def test_prompts_are_trained_in_the_order_in_which_they_were_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that an earlier attempt has left come first; whichever was answered first."""
    queue = Queue(monkeypatch)
    made: Any = trainer(
        tmp_path, "rollout.mode=async", f"rollout.max_staleness={BOUND}", "advantage.drop_zero_variance=false"
    )
    made.__class__, made.global_steps = AsyncLabTrainer, 3
    made._in_flight = {"uid-6": 9, **{f"uid-{prompt}": 8 - prompt for prompt in range(6)}, "later": 10}
    batch = rollout(made, queue, [[1, 0, 0, 0]] * 8)
    for key in batch.keys:
        length = queue.tags[key]["response_len"]
        queue.rows[key]["policy_step"] = torch.full((length,), 1 + (key == "uid-7_0_0"), dtype=torch.int32)
    arranged = made._balance_batch(batch, {})
    assert made._in_flight == {"later": 10}
    half = len(arranged.keys) // 2
    assert set(prompts_of(arranged.keys[:half])) == {7, 5, 4, 3} and made._order["uid-7"] == 0
    assert set(prompts_of(arranged.keys[half:])) == {2, 1, 0, 6}
    assert made._collected["train/staleness_max"] == 1 and made._collected["train/reward"] == 0.25


@pytest.mark.parametrize("partition", ["train", "val"])
def test_prompts_that_fail_are_missing_from_a_batch_and_a_validation_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], partition: str
) -> None:
    prompts = {"a": ("failure", 1), "b": ("finished", 1)}
    made = buffer(monkeypatch, LabReplayBuffer, lambda: prompts, partition)
    made.on_validation = seen = Mock()
    batch, _ = made.sample(1, partition, 2)
    assert batch.keys == ["b_0_0"]
    assert f"step 1: 1 of 2 prompts ({partition}) have responses that failed" in capsys.readouterr().err
    assert [call.args for call in seen.mock_calls] == [(batch,)] * (partition == "val")


def sampled(patch: pytest.MonkeyPatch, step: int, *looks: Prompts) -> list[str]:
    """The two responses of a batch, after exactly these looks at the queue."""
    prompts = iter(looks)
    patch.setattr(replay_buffer.time, "sleep", lambda _: None)
    batch, _ = buffer(patch, AsyncLabReplayBuffer, lambda: next(prompts)).sample(step, "train", 2)
    assert next(prompts, None) is None
    return sorted(batch.keys)


def test_a_batch_waits_for_prompts_that_would_become_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of step 3's: at step 5 they may be trained with age 2, at step 6 no more; the oldest come first."""
    at_first = {"old": ("running", 3), "new": ("finished", 5), "newer": ("finished", 5)}
    batch = sampled(monkeypatch, 5, at_first, at_first, at_first | {"old": ("finished", 3)})
    assert "old_0_0" in batch and len(batch) == 2
    assert sampled(monkeypatch, 4, at_first) == ["new_0_0", "newer_0_0"]


def test_prompts_that_fail_are_replaced_unless_all_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = {"a": ("failure", 1), "b": ("finished", 1), "c": ("running", 1)}
    last = {"b": ("finished", 1), "c": ("finished", 1)}
    assert sampled(monkeypatch, 1, first, last) == ["b_0_0", "c_0_0"]
    assert "step 1: 1 prompts failed, others take their place" in capsys.readouterr().err
