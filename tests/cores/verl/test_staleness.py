"""`rollout.staleness` in verl's own trainer: from which policy it samples and validates, against the embedded core.

The runs are those of `stale`.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from cppo_lab.core_records import Resources
from cppo_lab.cores.mini.model import Rollout
from cppo_lab.cores.mini.trainer import GradedRollout, Trainer
from cppo_lab.cores.verl.trainer import LabTrainer
from cppo_lab.cores.verl.worker import TrustRegionWorker
from cppo_lab.schema import MISMATCH
from cppo_lab.spec import RuleSpec
from cppo_lab.spec.job import shape_of
from cppo_lab.sweep.compose import compose
from tests.conftest import user_error
from tests.cores.test_diagnostics import watched
from tests.cores.test_mini import without_times
from tests.cores.verl.conftest import OnRay
from tests.cores.verl.on_ray import composed
from tests.cores.verl.stale import KILLED, RANKS, SETTING, STALENESS, STEPS, WHOLE
from tests.cores.verl.story import EVERY, RULE, SETTINGS

slow = pytest.mark.slow
Seen = Callable[[str], dict[str, Any]]


class Machine:
    """Engine and servers of a trainer, with the number of a step for the policy after it."""

    def __init__(self) -> None:
        self.engine = self.server = 0
        self.copies: dict[int, int] = {}
        self.asleep, self.calls = True, 0

    def keep_policy(self, step: int, staleness: int) -> None:
        self.copies[step] = self.engine
        self.calls += 1

    def use_policy(self, step: int) -> None:
        self.engine = self.copies[step]

    def sleep_replicas(self) -> None:
        self.asleep = True

    def update_weights(self, step: int) -> None:
        assert self.asleep and self.engine == step  # as verl requires; they wake up, without a cache
        self.server, self.asleep = step, False


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("staleness", [0, 1, 2, 100])
def test_each_transfer_is_of_the_right_policy_to_sleeping_servers(staleness: int, start: int) -> None:
    """In verl's order of calls, from the start or a checkpoint; training goes on from its own policy."""
    made = object.__new__(LabTrainer)
    made.spec, made.timing_raw = composed(RULE, f"rollout.staleness={staleness}").run, {}
    made.actor_rollout_wg = made.checkpoint_manager = machine = Machine()
    made.global_steps, made.total_training_steps = start, STEPS
    machine.engine, machine.copies = start, {step: step for step in range(start)}
    made._test_servers = machine.sleep_replicas  # type: ignore[method-assign]
    made.on_init_end()
    if start == 0:
        assert machine.server == 0 and not machine.asleep
        made.on_validate_end()
    for made.global_steps in range(start + 1, STEPS + 1):
        assert machine.server == max(0, made.global_steps - 1 - staleness) and not machine.asleep
        machine.sleep_replicas()  # behind sampling
        assert machine.engine == made.global_steps - 1
        machine.engine = made.global_steps
        made.on_step_end()
        if made.global_steps % EVERY == 0:
            assert machine.server == made.global_steps and not machine.asleep
            made.on_validate_end()
    assert machine.engine == machine.server == STEPS  # nothing is sampled behind the last validation
    assert machine.calls == (STEPS + 1 - start if staleness else 0)


def test_a_copy_comes_back_bit_for_bit_with_tied_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what a checkpoint should have had the run ends at once."""
    monkeypatch.setattr("cppo_lab.cores.verl.worker.get_torch_device", Mock())
    model = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3, bias=False) for name in "ab"})
    model["b"].weight = model["a"].weight
    worker = object.__new__(TrustRegionWorker)
    worker.__dict__.update(
        _policies={}, _rank=0, _world_size=1, actor=SimpleNamespace(engine=SimpleNamespace(module=model))
    )
    weights = []
    for step in range(4):
        weights.append(model["a"].weight.detach().clone())
        worker.keep_policy(step, 2)
        assert list(worker._policies) == list(range(max(0, step - 2), step + 1))
        assert all(len(shards) == 1 for shards in worker._policies.values())
        model["a"].weight.data /= 3
    for step in (1, 3, 2):
        worker.use_policy(step)
        assert torch.equal(model["b"].weight, weights[step])
    del worker._policies[2]
    with user_error(r"step 4 lacks extra_policies_world_size_1_rank_0.pt .* steps \[2\], .*=2"):
        worker.keep_policy(4, 2)


@pytest.mark.parametrize(
    "data_rank, has_outputs, traces", [(0, True, True), (0, False, False), (1, True, False)]
)
def test_tokens_are_traced_where_the_loss_is(data_rank: int, has_outputs: bool, traces: bool) -> None:
    """With a pipeline, that is not the first process."""
    engine = SimpleNamespace(
        get_data_parallel_rank=lambda: data_rank, is_mp_src_rank_with_outputs=lambda: has_outputs
    )
    worker = object.__new__(TrustRegionWorker)
    config = SimpleNamespace(model_config=SimpleNamespace(tokenizer=None))
    worker.__dict__.update(
        _rank=1, actor=SimpleNamespace(engine=engine), actor_config=config, _watched_step=1
    )
    worker.start_diagnostics(RuleSpec(name="grpo"), 6, None)
    worker._watch(watched([3]))
    worker.diagnostics.end_step()
    read = worker.read_diagnostics()
    assert (read is not None) == traces
    assert read is None or read[0]["positions"]["tokens"] == [1, 1, 1]


@pytest.fixture
def seen_of(on_ray: OnRay) -> Seen:
    """What the trainer has seen of each run."""
    on_ray.seen("stale")
    return lambda run: dict(torch.load(on_ray.folder / "stale" / f"{run}.pt", weights_only=False))


@slow
def test_servers_sample_from_the_policy_of_k_batches_ago_and_validate_the_current_one(
    seen_of: Seen, on_ray: OnRay
) -> None:
    """By digests of the trainer's and the servers' weights: bit for bit, on both ranks. Without staleness there are no
    copies; what is served then is seen in `test_core` by log mu.
    """
    seen = seen_of(WHOLE)
    policies = seen["trained"]
    # A batch without a signal moves nothing.
    assert list(policies) == list(range(STEPS + 1)) and len({*policies.values()}) >= STEPS
    assert seen["sampled"] == {n: {policies[max(0, n - 1 - STALENESS)]} for n in range(1, STEPS + 1)}
    assert seen["validated"] == {n: {policies[n]} for n in range(0, STEPS + 1, EVERY)}
    assert seen["copies"] == {n: list(range(max(0, n - STALENESS), n + 1)) for n in range(STEPS + 1)}
    start = on_ray.folder / "verl_checkpoints/global_step_0/actor"
    assert not [path for path in start.iterdir() if "policies" in path.name]


@slow
@pytest.mark.parametrize("step", KILLED)
def test_a_run_that_is_killed_behind_a_step_goes_on_with_the_same_numbers(
    seen_of: Seen, on_ray: OnRay, step: int
) -> None:
    """Bit for bit, whatever the trainer has in memory; at the first steps from the start's policy."""
    whole, resumed, later = seen_of(WHOLE), seen_of(f"from {step}"), [*range(step + 1, STEPS + 1)]
    assert list(resumed["rows"]) == later
    for n in later:
        assert without_times(resumed["rows"][n]) == without_times(whole["rows"][n]), n
        assert (resumed["sampled"][n], resumed["trained"][n]) == (whole["sampled"][n], whole["trained"][n])
    # Its checkpoint has a shard for each rank, in float32.
    steps = range(max(0, step - STALENESS), step)
    paths = on_ray.folder.glob(f"stale/{WHOLE}/verl_checkpoints/global_step_{step}/actor/*policies*")
    shards = [torch.load(path, weights_only=True) for path in paths]
    assert [list(shard) for shard in shards] == [list(steps)] * RANKS
    size = sum(x.nbytes for shard in shards for policy in shard.values() for x in policy.values())
    parameters = shape_of(composed(RULE).run).parameters
    assert size == pytest.approx(len(steps) * parameters * 4, rel=0.02)  # norms are not counted


@slow
def test_the_embedded_core_trains_the_same_on_the_same_responses(seen_of: Seen, on_ray: OnRay) -> None:
    """Its own mu of k batches ago has sampled them, and its updates have the same numbers."""
    seen = seen_of(WHOLE)
    run = compose(["model=tiny_qwen3", f"rule={RULE}", "seed=0", SETTING, *SETTINGS]).run
    trainer = Trainer(run, Resources(on_ray.shared, on_ray.shared, device="cpu"))
    apart = []
    for step in range(1, STEPS + 1):
        batch = recorded(trainer, seen["batches"][step])
        valid = batch.rollout.valid()
        gaps = []
        for model in (trainer.policy.current(), trainer.model):
            logits = batch.rollout.logits(model) / run.rollout.temperature
            logp = logits.log_softmax(-1).gather(-1, batch.rollout.responses[..., None])[..., 0]
            gaps.append(float((logp - batch.rollout.logp)[valid].abs().max()))
        assert gaps[0] < 1e-4, step
        apart.append(gaps[1])
        metrics, row = trainer.update(batch), seen["rows"][step]
        assert ("train/loss" in metrics) == ("train/loss" in row)
        for name, value in metrics.items():
            if not name.startswith(MISMATCH):
                # A token at the edge of a bin moves the percentile by one, which is 19 % wide.
                near = {"rel": 0.2, "abs": 1e-4} if name.endswith("_p99") else {"rel": 1e-3, "abs": 1e-4}
                assert row[name] == pytest.approx(value, **near), (step, name)
    assert apart[0] < 1e-4 and min(apart[1:]) > 1e-3  # the current policy is another one


def recorded(trainer: Trainer, rows: dict[str, list[torch.Tensor]]) -> GradedRollout:
    """verl's batch in the form of the embedded core."""
    responses = trainer.spec.batch.responses
    padded = {name: pad_sequence(columns, batch_first=True) for name, columns in rows.items()}
    group = torch.arange(len(rows["responses"])) // responses
    rewards = torch.tensor([float(scores.sum()) for scores in rows["rm_scores"]])
    advantages, keep, share = trainer.graded(rewards, group)
    rollout = Rollout(
        padded["prompts"][::responses], group, padded["responses"],
        torch.tensor([len(response) for response in rows["responses"]]), padded["rollout_log_probs"],
        padded["rollout_topk_ids"].long(), padded["rollout_topk_logp"].float(),
        torch.zeros_like(padded["rollout_log_probs"]),
    )  # fmt: skip
    return GradedRollout(rollout, rewards, advantages, keep, None, share)
