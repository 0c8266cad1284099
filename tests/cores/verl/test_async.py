"""`rollout.mode=async`: ages of tokens, the order of prompts, and batches that wait. Whole runs: `test_async_runs`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cppo_lab import schema
from cppo_lab.cores.verl.trainer import AsyncLabReplayBuffer, AsyncLabTrainer, ages_of
from tests.cores.verl.asynchronous import BOUND
from tests.cores.verl.queue_in_memory import Queue
from tests.cores.verl.test_trainer import prompts_of, rollout, trainer


def test_ages_count_updated_batches_and_have_a_bound() -> None:
    steps = torch.tensor([4, 4, 6, 5])
    assert ages_of(steps, 7, 3) == {
        "train/staleness_mean": 1.25, "train/staleness_max": 2.0, "train/staleness_share_0": 0.25,
        "train/staleness_share_1": 0.25, "train/staleness_share_2": 0.5, "train/staleness_share_3": 0.0,
    }  # fmt: skip
    assert all(schema.is_known_metric(name) for name in ages_of(steps, 7, 3))
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


def buffer(monkeypatch: pytest.MonkeyPatch, polls: list[dict[str, tuple[str, int]]]) -> AsyncLabReplayBuffer:
    """One over a queue with these prompts at each look: status, and the step of submission."""
    made = AsyncLabReplayBuffer(
        trainer_mode="colocate_async", trainer_config={}, max_off_policy_threshold=1 + BOUND,
        max_off_policy_strategy="wait", sampler_kwargs={}, refill_fn=lambda _: None,
    )  # fmt: skip

    def queued() -> dict[str, dict[str, Any]]:
        prompts = polls.pop(0) if len(polls) > 1 else polls[0]
        tags = {
            uid: {"is_prompt": True, "status": status, "global_steps": step}
            for uid, (status, step) in prompts.items()
        }
        return {"train": tags | {f"{uid}_0_0": {"seq_len": 3} for uid in prompts}}

    from verl.trainer.ppo.v1 import replay_buffer

    monkeypatch.setattr(replay_buffer.tq, "kv_list", queued)
    monkeypatch.setattr(replay_buffer.tq, "kv_clear", lambda **_: None)
    monkeypatch.setattr(replay_buffer.time, "sleep", lambda _: None)
    return made


def test_a_batch_waits_for_prompts_that_would_become_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of step 3's: at step 5 they may be trained with age 2, at step 6 no more; the oldest come first."""
    at_first = {"old": ("running", 3), "new": ("finished", 5), "newer": ("finished", 5)}
    polls = [at_first, at_first, at_first | {"old": ("finished", 3)}]
    batch, _ = buffer(monkeypatch, polls).sample(5, "train", 2)
    assert len(polls) == 1 and "old_0_0" in batch.keys and len(batch.keys) == 2
    batch, _ = buffer(monkeypatch, [at_first]).sample(4, "train", 2)
    assert sorted(batch.keys) == ["new_0_0", "newer_0_0"]


def test_prompts_that_fail_are_replaced_unless_all_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"a": ("failure", 1), "b": ("finished", 1), "c": ("running", 1)}
    batch, _ = buffer(monkeypatch, [one, {"b": ("finished", 1), "c": ("finished", 1)}]).sample(1, "train", 2)
    assert sorted(batch.keys) == ["b_0_0", "c_0_0"]
    assert "step 1: 1 prompts failed, others take their place" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="2 rollouts in a row failed"):
        buffer(monkeypatch, [{"a": ("failure", 1), "b": ("failure", 1)}]).sample(1, "train", 2)
