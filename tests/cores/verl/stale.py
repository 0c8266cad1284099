"""Runs with `rollout.staleness` in the trainer of `on_ray`: from which policy it samples and validates, how it goes on
after a kill, and the embedded core on the same responses.

Every run begins at a checkpoint of the trainer, the first one at that of step 0: what it keeps in memory is that of
another run. Servers decode request by request, so that numbers do not depend on when requests arrive.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from cppo_lab.core_records import CHECKPOINTS, Resources
from cppo_lab.cores.mini.model import Rollout
from cppo_lab.cores.mini.trainer import GradedRollout, Trainer
from cppo_lab.cores.mini.warm_start import weights_digest
from cppo_lab.cores.verl import checkpoints
from cppo_lab.schema import MISMATCH
from cppo_lab.spec import VerlRun
from cppo_lab.spec.job import shape_of
from cppo_lab.sweep.compose import compose
from tests.cores.test_mini import without_times
from tests.cores.verl.conftest import rows_in
from tests.cores.verl.in_process import queued
from tests.cores.verl.story import EVERY, RULE, SETTINGS

STALENESS, STEPS, RANKS = 2, 4, 2
SETTING = f"rollout.staleness={STALENESS}"
KILLED = (1, 3)  # the steps behind which the run is killed: before it has all of its copies, and with them
COLUMNS = ("prompts", "responses", "rollout_log_probs", "rollout_topk_ids", "rollout_topk_logp", "rm_scores")


def has(server: Any) -> str:
    """The digest of a rollout server's weights, in its process."""
    return weights_digest(server.model.state_dict())


def one_by_one(server: Any) -> None:
    """Let a rollout server decode request by request."""
    server.config.max_num_seqs = 1


def check_policies(seen: dict[str, Any]) -> None:
    """Servers sample from the policy of k batches ago and validate the current one, by digests of the trainer's and the
    servers' weights: bit for bit, on both ranks. What is served without staleness is seen in `test_core` by log mu.
    """
    policies = seen["trained"]
    # A batch without a signal moves nothing.
    assert list(policies) == list(range(STEPS + 1)) and len({*policies.values()}) >= STEPS, policies
    sampled = {n: {policies[max(0, n - 1 - STALENESS)]} for n in range(1, STEPS + 1)}
    assert seen["sampled"] == sampled, (seen["sampled"], policies)
    assert seen["validated"] == {n: {policies[n]} for n in range(0, STEPS + 1, EVERY)}, seen["validated"]
    copies = {n: list(range(max(0, n - STALENESS), n + 1)) for n in range(STEPS + 1)}
    assert seen["copies"] == copies, seen["copies"]


def check_resumed(run: VerlRun, step: int, checkpoint: Path, whole: Any, resumed: Any) -> None:
    """A run that is killed behind a step goes on with the same numbers, bit for bit, whatever the trainer has in
    memory; at the first steps from the start's policy.
    """
    later = [*range(step + 1, STEPS + 1)]
    assert list(resumed["rows"]) == later
    for n in later:
        assert without_times(resumed["rows"][n]) == without_times(whole["rows"][n]), n
        assert (resumed["sampled"][n], resumed["trained"][n]) == (whole["sampled"][n], whole["trained"][n]), n
    # Its checkpoint has a shard for each rank, in float32.
    steps = range(max(0, step - STALENESS), step)
    shards = [torch.load(path, weights_only=True) for path in checkpoint.glob("actor/*policies*")]
    assert [list(shard) for shard in shards] == [list(steps)] * RANKS
    size = sum(x.nbytes for shard in shards for policy in shard.values() for x in policy.values())
    expected = len(steps) * shape_of(run).parameters * 4
    assert 0.98 * expected < size < 1.02 * expected  # norms are not counted


def check_embedded(shared: Path, seen: dict[str, Any]) -> None:
    """The embedded core trains the same on the same responses: its own mu of k batches ago has sampled them, and its
    updates have the same numbers.
    """
    run = compose(["model=tiny_qwen3", f"rule={RULE}", "seed=0", SETTING, *SETTINGS]).run
    trainer = Trainer(run, Resources(shared, shared, device="cpu"))
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
                near = 0.2 if name.endswith("_p99") else 1e-3
                assert math.isclose(row[name], value, rel_tol=near, abs_tol=1e-4), (step, name)
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


def train_all(trainer: Any, run: VerlRun, start: Path, folder: Path, shared: Path, loops: Any) -> None:
    """Train `run` from the checkpoint `start`, and on from its own, with a trainer that has trained others."""
    import ray

    from cppo_lab.cores.verl.rollout.cpu import server_name

    servers = [ray.get_actor(server_name(rank)) for rank in range(RANKS)]

    def of_servers(work: Any) -> set[Any]:
        return set(ray.get([server.__ray_call__.remote(work) for server in servers]))

    class Stale(type(trainer).__base__):  # type: ignore[misc]  # our trainer, without what `on_ray` adds
        seen: dict[str, Any]
        asleep = True  # whether servers wait without a cache

        def _serve(self, step: int) -> None:
            assert self.asleep  # as verl requires; they wake up
            super()._serve(step)
            self.asleep = False

        def train_from(self, start: Path, fresh: bool = False) -> dict[str, Any]:
            """From a checkpoint; what was seen."""
            self.seen = {"sampled": {}, "validated": {}, "trained": {}, "copies": {}, "batches": {}}
            self.folder, self._broken, self.asleep = folder / start.name, "", True
            self.folder.mkdir(parents=True)
            self._checkpoint_every = 1 if fresh else None
            self.config.trainer.update(
                default_local_dir=str(self.folder / CHECKPOINTS),
                resume_from_path=str(start),
                val_before_train=fresh,
            )
            self._init_dataloader()
            self.total_training_steps = STEPS
            self._load_checkpoint()
            self.on_init_end()
            self._see_policy()
            self.fit(loops)
            return self.seen | {"rows": dict(rows_in(self.folder))}

        def _see_policy(self) -> None:
            ranks = [(weights_digest(policy), copies) for policy, copies in self.actor_rollout_wg.policy()]
            assert ranks == [ranks[0]] * RANKS
            self.seen["trained"][self.global_steps], self.seen["copies"][self.global_steps] = ranks[0]

        def on_step_end(self) -> None:
            super().on_step_end()
            self._see_policy()

        def _validate(self) -> dict[str, float]:
            self.seen["validated"][self.global_steps] = of_servers(has)
            return dict(super()._validate())

        def _balance_batch(self, batch: Any, *given: Any, **named: Any) -> Any:
            self.seen["sampled"][self.global_steps] = of_servers(has)
            order = sorted(
                batch.keys, key=lambda key: (self._order[key.split("_")[0]], int(key.split("_")[1]))
            )
            self.seen["batches"][self.global_steps] = queued(batch, order, COLUMNS)
            return super()._balance_batch(batch, *given, **named)

    def sleep(real: Any = trainer.checkpoint_manager.sleep_replicas) -> Any:
        trainer.asleep = True
        return real()

    of_servers(one_by_one)
    trainer.__class__, trainer.checkpoint_manager.sleep_replicas = Stale, sleep
    trainer.spec, trainer._answer_settings, trainer._answers = run, None, None
    trainer.config.trainer.update(
        resume_mode="resume_path", test_freq=EVERY, save_freq=1, max_actor_ckpt_to_keep=None
    )
    whole = trainer.train_from(start, fresh=True)
    assert not list(start.glob("actor/*policies*"))  # of a run without staleness
    check_policies(whole)
    for step in KILLED:
        checkpoint = checkpoints.checkpoint_folder(folder / start.name, step)
        check_resumed(run, step, checkpoint, whole, trainer.train_from(checkpoint))
    check_embedded(shared, whole)
