"""verl's trainer with our advantages, minibatches, metrics and answers: where each response is trained, `LabTrainer`
for synchronous runs, and `AsyncLabTrainer`.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.rollout.replica import TokenOutput

from cppo_lab import schema
from cppo_lab.core_records import read_phases
from cppo_lab.cores.base import write_phases
from cppo_lab.cores.verl import checkpoints
from cppo_lab.cores.verl.answers import PLACE, TrainedResponse, VerlAnswerRecorder
from cppo_lab.cores.verl.checkpoints import (
    TAGS_FILE,
    Staging,
    keep_best,
    score_name,
    seal,
    validation_metrics,
)
from cppo_lab.cores.verl.config import lab_settings, top_k
from cppo_lab.cores.verl.loss import rule_metrics
from cppo_lab.cores.verl.rewards import reward_parts
from cppo_lab.cores.verl.rollout import (
    POLICY_STEP,
    TOPK_DTYPE_REQUEST,
    TOPK_IDS,
    TOPK_LOGP,
    TOPK_REQUEST,
)
from cppo_lab.cores.verl.rollout.agent_loop import ResumingClient
from cppo_lab.cores.verl.worker import WATCHED_STEP, TrustRegionWorker
from cppo_lab.errors import NotFinite, UserError, say
from cppo_lab.files import replace_file
from cppo_lab.maths.rules import group_advantages
from cppo_lab.rules import PERMUTATION, rule_of
from cppo_lab.schema import Outcome

# Where each response is trained: whole groups, in the order of the data.
#
# verl sorts a batch by length, cuts it anywhere, and cannot drop a group. Here, as in the embedded core, minibatch m
# holds the groups of its prompts; a group without reward variance is dropped and not replaced, so that its minibatch
# is smaller; an empty minibatch makes no update. verl requires minibatches of equal size, so they are filled up with
# padding rows.

PADDING = -1


def arrange(
    groups: Sequence[int],
    lengths: Sequence[int],
    keep: Sequence[bool],
    *,
    groups_per_minibatch: int,
    ranks: int,
    rows: int,
) -> NDArray[np.int64]:
    """Indices of the responses, or PADDING, [ranks, minibatches, rows of a rank]: in verl's order, which gives each
    rank an equal part of a batch and cuts that into minibatches.

    The longest come first, each to the rank with the fewest tokens that has a free row.

    Args:
        groups: index of each response's prompt within the batch, from 0.
        lengths: number of tokens of each response, prompt included.
        keep: whether the group of each response has a learning signal.
        groups_per_minibatch: prompts per update.
        ranks: data-parallel ranks.
        rows: responses per full minibatch, a multiple of `ranks` (`checks.check_placement`).
    """
    members: dict[int, list[int]] = {}
    for index, (group, is_kept) in enumerate(zip(groups, keep, strict=True)):
        if is_kept:
            members.setdefault(group // groups_per_minibatch, []).append(index)
    table = np.full((ranks, len(members), rows // ranks), PADDING)
    for shares, number in zip(table.swapaxes(0, 1), sorted(members), strict=True):
        taken, tokens = [0] * ranks, [0] * ranks
        for index in sorted(members[number], key=lambda member: (-lengths[member], member)):
            rank = min((r for r in range(ranks) if taken[r] < rows // ranks), key=lambda r: (tokens[r], r))
            shares[rank, taken[rank]] = index
            taken[rank] += 1
            tokens[rank] += lengths[index]
    return table


# verl's synchronous trainer for the paper's runs, with dropped groups, whole minibatches, our metrics and stopping.
#
# Everything else is verl's. The overridden methods are listed in `check_api`.

TRACES = "verl_traces.pt"
# verl checks for a complete batch every 2 s, which reads every key of the queue. Here it takes a share of the time that
# was waited, from the first to the last of these, so that a rollout ends at most that share late.
POLL_SHARE, POLL_FIRST, POLL_LAST = 0.01, 0.1, 2.0


# At each start of the rollout servers: prompts, and tokens of a prompt and of a response at most.
TEST_PROMPTS, TEST_TOKENS = 8, 32
# Mean abs(log pi - log mu) above which the engines do not have the same policy, in nats: two engines in bfloat16 differ
# by about 0.02, another temperature or other weights by ten times this.
TEST_GAP = 0.3


def row_of_test(prompt: list[int], output: TokenOutput) -> dict[str, Tensor]:
    """The columns of a response that `TrustRegionWorker.compare` reads."""
    response, n = torch.tensor(output.token_ids), len(output.token_ids)
    ids, mask = torch.cat([torch.tensor(prompt), response]), torch.ones(n).long()
    fields = output.extra_fields
    topk = {name: torch.tensor(fields[name]) for name in (TOPK_IDS, TOPK_LOGP) if name in fields}
    return topk | {
        "prompts": torch.tensor(prompt), "responses": response, "input_ids": ids,
        "position_ids": torch.arange(len(ids)), "response_mask": mask, "loss_mask": mask,
        "old_log_probs": torch.tensor(output.log_probs), "advantages": torch.zeros(n),
        "minibatch_responses": torch.ones(1), "weight_permutation": torch.arange(n, dtype=torch.int32),
    }  # fmt: skip


def self_test(gap: Tensor, divergence: Tensor, rows: Sequence[dict[str, Tensor]]) -> str:
    """One line on how mu, as the rollout servers return it, agrees with the trainer.

    Raises UserError where it does not: log mu of sampled tokens far from log pi, or a Top-K that is none.
    """
    mean = float(gap.mean())
    said = f"log mu within {mean:.2g} nats of the trainer's on average, {float(gap.max()):.2g} at most"
    right = mean <= TEST_GAP
    if TOPK_LOGP in rows[0]:
        topk = torch.cat([row[TOPK_LOGP] for row in rows]).double()
        mass = topk.exp().sum(-1)
        said += f"; Top-{topk.shape[1]} mass {float(mass.min()):.4f} to {float(mass.max()):.4f}"
        right = right and float(mass.max()) <= 1.001 and bool((topk.diff() <= 0).all())
    said += f"; D_t {float(divergence.mean()):.2g} on average ({len(gap)} tokens of {len(rows)} prompts)"
    if not right:
        raise UserError(
            f"the rollout servers do not return the trainer's policy: {said}. Look at the engine's version, the "
            "temperature, and what the layout sets"
        )
    return said


def longest(folder: Path, timer: str) -> float:
    """The seconds that the longest phase of this name took so far in a run; 0 if that is not known."""
    try:
        return max((line.seconds.get(timer, 0.0) for line in read_phases(folder)), default=0.0)
    except checkpoints.MALFORMED:  # a kill in the middle of a line
        return 0.0


class PolicyBroken(ArithmeticError):
    """The run has collapsed in the middle of a step; its outcome is written."""


class LabReplayBuffer(ReplayBuffer):
    """verl's, with a shorter wait and a warning about failed rollouts: `trainer.v1.sampler.custom_sampler`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._began = 0.0
        self.on_validation: Callable[[Any], None] | None = None  # called with each batch of a validation

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """Wait for a complete batch."""
        self._began = time.monotonic()
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if failed := len(self.failure_keys[partition_id]):
            say(
                f"step {global_steps}: {failed} of {batch_size} prompts ({partition_id}) have responses that failed; "
                "they are missing from training, and count as wrong in validation"
            )
        if partition_id == "val" and self.on_validation is not None:
            self.on_validation(batch)  # verl clears the batch before it reports the result
        return batch, metrics

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        """Raises RuntimeError if all responses failed; verl would advise a key that no layout may set."""
        uids, rows, steps = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        if {key.split("_")[0] for key in rows}.isdisjoint(uids):
            raise RuntimeError(
                f"all {batch_size} rollouts ({partition_id}) failed: the run's log has the errors"
            )
        return uids, rows, steps

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        waited = time.monotonic() - self._began
        self.poll_interval = min(max(POLL_SHARE * waited, POLL_FIRST), POLL_LAST)
        return float(super()._wait_for_next_poll(partition_id, last_debug_time))


class AsyncLabReplayBuffer(LabReplayBuffer, ReplayBufferAsync):
    """The same over verl's asynchronous buffer, which samples other prompts in place of those that failed."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """Wait for a complete batch.

        Raises RuntimeError if as many prompts failed meanwhile as a batch has.
        """
        self._failed, self._most = 0, batch_size
        return super().sample(global_steps, partition_id, batch_size)

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: Any) -> Any:
        if failed := len(eviction_reasons[2]):
            self._failed += failed
            say(f"step {global_steps}: {failed} prompts failed, others take their place")
            if self._failed >= self._most:
                raise RuntimeError(f"{self._failed} rollouts in a row failed: the run's log has the errors")
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)


class LabTrainer(PPOTrainerSync):
    """One run. `trainer_mode` must be `sync`.

    verl's `fit` calls, for each step: `step` (the replay buffer's `sample`, `_balance_batch`, `_update_actor`),
    `_save_checkpoint`, `on_step_end`, where a validation is due `_validate`, and `_compute_metrics`. So a step's
    checkpoint is whole before its row is written, which `checkpoints.last_readable` builds on:

        _save_checkpoint    verl's checkpoint, TRACES in it, and last its SIZES
        _validate           nothing: its scores wait for the row (before the first step: row 0)
        _compute_metrics    PHASES; by `_write_row` diagnostics, answers and last the row; then the best checkpoint
        _end                OUTCOME, with the last row or when the policy broke within a step
    """

    def __init__(self, config: Any) -> None:
        settings = lab_settings(config)
        self.spec, self.folder, self._answer_settings = settings.spec, settings.folder, settings.answers
        self._checkpoint_every, self._deadline = settings.checkpoint_every, settings.deadline
        self._row_at = time.monotonic()  # when the last row was written
        # Of the latest validation and save; before the first, of the longest in earlier attempts.
        self._validation_seconds = longest(self.folder, "testing")
        self._save_seconds = longest(self.folder, "save_checkpoint")
        self._answers: VerlAnswerRecorder | None = None  # of a run that keeps its answers
        self._validation: dict[str, float] = {}
        self._collected: dict[str, float] = {}
        self._order: dict[str, int] = {}
        self._trains = True  # whether any group of the batch has a learning signal
        self._broken = ""  # why the policy can't be trained further
        super().__init__(config)

    def _init_resource_pool_mgr(self) -> None:
        """Use our worker in place of verl's."""
        super()._init_resource_pool_mgr()
        for role, actor in self.role_worker_mapping.items():
            if issubclass(actor.__ray_metadata__.modified_class, ActorRolloutRefWorker):
                self.role_worker_mapping[role] = ray.remote(TrustRegionWorker)

    def _init_dataloader(self) -> None:
        """Raises UserError for too few problems for a batch, of which verl would make none: it drops long prompts."""
        super()._init_dataloader()
        if not self.steps_per_epoch:
            raise UserError(
                f"{self.config.data.train_files} has {len(self.train_dataset)} problems of {self.spec.longest_prompt} "
                f"tokens or less, fewer than batch.prompts={self.spec.batch.prompts}: prepare a larger training set "
                "(`cppo data prepare --from hub`), or lower batch.prompts"
            )

    def _load_checkpoint(self) -> None:
        """Load verl's checkpoint and the traces that belong to it."""
        super()._load_checkpoint()
        traces = checkpoints.checkpoint_folder(self.folder, self.global_steps) / TRACES
        state = torch.load(traces, weights_only=True) if traces.exists() else None
        self.actor_rollout_wg.start_diagnostics(self.spec.rule, self.spec.rollout.max_response_length, state)
        if self._answer_settings is not None:
            rows = (self.val_dataset[place] for place in range(len(self.val_dataset)))
            decode = partial(self.tokenizer.decode, skip_special_tokens=True)
            self._answers = VerlAnswerRecorder(
                self.spec, self._answer_settings, rows, decode, self.tokenizer.decode
            )
            self._staging = Staging(self.spec, self._answer_settings, self.folder, self.global_steps or None)
        self.replay_buffer.on_validation = self._on_validation

    def _on_validation(self, batch: KVBatchMeta) -> None:
        self._reward_parts(batch)
        if self._answers is not None:
            self._answers.validation(self.global_steps, batch)

    def _reward_parts(self, batch: KVBatchMeta) -> dict[str, float]:
        """The parts of the user's reward over a batch; empty if the reward is not the user's.

        Raises UserError for what the user's reward did wrong.
        """
        if self.spec.own_reward is None:
            return {}
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"]
        )
        return reward_parts(fields["reward_extra_info"] for fields in data.pop("extra_fields").tolist())

    def on_init_end(self) -> None:
        """Give the rollout servers the policy for their test, and mu of the first step, which may be older.

        Raises UserError if their policy is not the trainer's.
        """
        self._keep_policy()
        self._serve(self.global_steps)
        self._test_servers()
        self._serve(self._mu())

    def on_step_end(self) -> None:
        """Give the rollout servers mu of the next step, or the policy that is validated first."""
        with marked_timer("update_weights", self.timing_raw, color="red"):
            self._keep_policy()
            self._serve(self.global_steps if self._validates(self.global_steps) else self._mu())

    def on_validate_end(self) -> None:
        """Give the rollout servers mu of the next step, if any, where mu is not the policy just validated."""
        if self._mu() < self.global_steps < self.total_training_steps:
            self.checkpoint_manager.sleep_replicas()  # new weights need sleeping servers, without the old ones' cache
            self._serve(self._mu())

    def _keep_policy(self) -> None:
        if staleness := self.spec.rollout.staleness:
            self.actor_rollout_wg.keep_policy(self.global_steps, staleness)

    def _mu(self) -> int:
        """The step after which the policy was that of the next step's rollouts: `rollout.staleness` batches ago."""
        return max(0, self.global_steps - self.spec.rollout.staleness)

    def _serve(self, step: int) -> None:
        """Give the rollout servers the policy after `step`."""
        if step != self.global_steps:
            self.actor_rollout_wg.use_policy(step)
        self.checkpoint_manager.update_weights(step)
        if step != self.global_steps:
            self.actor_rollout_wg.use_policy(self.global_steps)

    def _test_servers(self) -> None:
        """Compare what the rollout servers return of some prompts with the trainer. They sleep afterwards."""
        k, temperature = top_k(self.spec), self.spec.rollout.temperature
        sampling: dict[str, Any] = {"temperature": temperature, "logprobs": True, "max_tokens": TEST_TOKENS}
        if k:
            sampling |= {TOPK_REQUEST: k, TOPK_DTYPE_REQUEST: "float32"}
        data, client = self.train_dataset, self.get_llm_client()
        texts = (data[place % len(data)]["raw_prompt"][-1]["content"] for place in range(TEST_PROMPTS))
        prompts = [self.tokenizer.encode(text)[:TEST_TOKENS] for text in texts]

        async def responses() -> list[TokenOutput]:
            requests = (
                client.generate(f"test-{seed}", prompt_ids=prompt, sampling_params=sampling | {"seed": seed})
                for seed, prompt in enumerate(prompts)
            )
            return await asyncio.gather(*requests)

        outputs = asyncio.run(responses())
        rows = [row_of_test(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
        runner = ray.get(self.llm_server_manager.server_handles[0].runner.remote())
        self.engine = f"{self.config.actor_rollout_ref.rollout.name} {runner}"
        # As before an update, which needs the memory of the engines.
        self.checkpoint_manager.sleep_replicas()
        compared = self.actor_rollout_wg.compare(rows, temperature)
        gap, divergence, _ = next(part for part in compared if part is not None)
        codes = {part[2] for part in compared if part is not None}  # each rank decides for itself
        tags = {
            schema.TAG_SELF_TEST: self_test(gap, divergence, rows),
            schema.TAG_ROLLOUT: self.engine,
            schema.TAG_LOGITS: "; ".join(sorted(codes)) or "verl",
        }
        replace_file(self.folder / TAGS_FILE, json.dumps(tags))

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        self._order = {uid: place for place, uid in enumerate(batch["uid"])}
        return super()._submit_batch_to_rollout(batch)

    def _balance_batch(
        self,
        batch: KVBatchMeta,
        metrics: dict[str, Any],
        logging_prefix: str = "",
        keep_minibatch: bool = False,
    ) -> KVBatchMeta:
        """Grade the batch, drop groups without learning signal, and arrange the others into minibatches."""

        def place(key: str) -> tuple[int, ...]:
            uid, *numbers = key.split("_")
            return self._order[uid], *map(int, numbers)

        # Sessions arrive in any order; the order of the data makes runs repeatable.
        arrived = sorted(zip(map(place, batch.keys), batch.keys, batch.tags, strict=True))
        places, keys, tags = (list(column) for column in zip(*arrived, strict=True))
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["rm_scores"])
        rewards = torch.tensor([float(scores.sum()) for scores in data["rm_scores"].unbind()])
        groups = torch.tensor([group for group, *_ in places])
        advantages, keep = group_advantages(rewards, groups, normalize_std=self.spec.advantage.normalize_std)
        lengths = np.array([tag["response_len"] for tag in tags])
        longest = self.spec.rollout.max_response_length
        self._sampled_tokens = int(lengths.sum())
        wide = self.config.actor_rollout_ref.rollout.engine_kwargs.cppo_lab.topk_dtype == "float32"
        bytes_per_token = top_k(self.spec) * (4 + (4 if wide else 2))
        self._collected = {
            "train/reward": float(rewards.mean()),
            "train/response_length": float(lengths.mean()),
            "train/truncated_share": float((lengths >= longest).mean()),
            # Of groups, which have different sizes where rollouts failed.
            "train/zero_variance_group_share": len(groups[~keep].unique()) / len(groups.unique()),
            "perf/topk_megabytes": self._sampled_tokens * bytes_per_token / 1e6,
        } | self._reward_parts(batch)
        if not self.spec.advantage.drop_zero_variance:
            keep = torch.ones_like(keep)
        self._trains = bool(keep.any())
        if not self._trains:  # verl clears the rows of an empty batch like those of any other
            return batch
        self._trained_tokens = int(lengths[keep.numpy()].sum())
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        table = arrange(
            groups.tolist(),
            [tag["seq_len"] for tag in tags],
            keep.tolist(),
            groups_per_minibatch=self.spec.batch.minibatch_prompts,
            ranks=max(workers._dispatch_info["actor"]) + 1,
            rows=self.spec.batch.minibatch_prompts * self.spec.batch.responses,
        )
        is_padding = table == PADDING
        spare: list[tuple[str, dict[str, Any]]] = []
        if count := int(is_padding.sum()):
            # Rows that train nothing, modelled on another, are verl's synthetic ones: the response is the end token,
            # with mask, rewards and log-probabilities 0.
            source = tq.kv_batch_get(keys=keys[:1], partition_id=batch.partition_id)[0]
            template, tag = construct_minimal_padding_template(source, tags[0], self.tokenizer.eos_token_id)
            for name in (TOPK_IDS, TOPK_LOGP, POLICY_STEP):  # verl fills only its columns
                if name in template:
                    template[name] = torch.zeros_like(template[name][:1])
            template["uid"] = f"pad{uuid.uuid4().hex}"
            spare = [(f"{template['uid']}_{place}_0", dict(tag)) for place in range(count)]
            tq.kv_batch_put(
                keys=[key for key, _ in spare],
                partition_id=batch.partition_id,
                fields=tu.list_of_dict_to_tensordict(
                    [template | {"session_id": place} for place in range(count)]
                ),
                tags=[tag for _, tag in spare],
            )
        padding = iter(spare)
        if dropped := [keys[place] for place in (~keep).nonzero()[:, 0]]:
            tq.kv_clear(keys=dropped, partition_id=batch.partition_id)
        rows = [
            next(padding) if index == PADDING else (keys[index], tags[index])
            for index in table.ravel().tolist()
        ]
        arranged = replace(batch, keys=[key for key, _ in rows], tags=[tag for _, tag in rows])
        counts = np.broadcast_to((~is_padding).sum((0, 2), keepdims=True), table.shape)
        columns = {"minibatch_responses": torch.tensor(counts.reshape(-1, 1), dtype=torch.float32)}
        if self._answers is not None and self._validates(self.global_steps):
            trained = []
            for row in keep.nonzero()[:, 0].tolist():
                group, draw, *_ = places[row]
                graded = float(rewards[row]), float(advantages[row])
                trained.append(TrainedResponse(keys[row], group, draw, *graded))
            self._answers.choose(trained)
            place_of = {choice.key: number for number, choice in enumerate(self._answers.chosen)}
            columns[PLACE] = torch.tensor([place_of.get(key, -1) for key in arranged.keys])[:, None]
        rule = self.spec.rule
        if rule.verl_loss is None and PERMUTATION in rule_of(rule.name, rule.path).needs:
            # A fresh order per rollout, kept for all its minibatches; a resumed run draws the same.
            generator = torch.Generator().manual_seed(self.spec.seed * 1_000_003 + self.global_steps)
            orders = [torch.randperm(tag["response_len"], generator=generator) for tag in arranged.tags]
            columns["weight_permutation"] = torch.nested.as_nested_tensor(
                [order.to(torch.int32) for order in orders], layout=torch.jagged
            )
        fields = TensorDict(columns, batch_size=len(arranged))
        tq.kv_batch_put(keys=arranged.keys, partition_id=arranged.partition_id, fields=fields)
        return arranged

    def _validates(self, step: int) -> bool:
        """Whether the policy is validated after a step."""
        return step % self.spec.validation.every == 0

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return super()._compute_old_log_prob(batch, metrics) if self._trains else batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return super()._compute_advantage(batch, metrics) if self._trains else batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's update; skipped if every group was dropped. Ends the run if the policy has collapsed."""
        if not self._trains:
            return batch
        batch.extra_info[WATCHED_STEP] = self.global_steps if self._validates(self.global_steps) else 0
        try:
            updated = super()._update_actor(batch, metrics)
        except NotFinite as error:
            # Other ranks may wait for the rank that failed, so the workers cannot be used any more.
            said = str(error).splitlines()[-1].rpartition("NotFinite: ")[2]  # Ray's has the class before it
            self._broken = f"{said} at step {self.global_steps}"
            self._end(self.global_steps)
            raise PolicyBroken(self._broken) from error
        if self._answers is not None and self._answers.chosen:
            responses = self.actor_rollout_wg.take_kept_responses()
            self._answers.training(self.global_steps, batch.partition_id, responses)
        return updated

    def _is_saved(self) -> bool:
        """Whether this step gets a checkpoint.

        Besides the regular ones: at a warning, and before a step whose own would come after the deadline. A deadline
        that is past was moved, as by `scontrol update TimeLimit`.
        """
        every = self._checkpoint_every
        if checkpoints.take_request(self.folder) or self._validates(self.global_steps):
            return True
        if every and self.global_steps % every == 0:
            return True
        step = time.monotonic() - self._row_at
        if self._validates(self.global_steps + 1):  # its row comes after the validation
            step += self._validation_seconds
        seconds = (self._deadline or 0.0) - time.time()
        return 0 < seconds < checkpoints.RESERVED_SECONDS + checkpoints.SLACK * step + self._save_seconds

    def _save_checkpoint(self) -> None:
        """Save verl's checkpoint, with the traces next to it, if this step gets any."""
        if not self._is_saved():
            return
        began = time.monotonic()
        checkpoints.make_room(self.folder, self.config.trainer.max_actor_ckpt_to_keep)
        super()._save_checkpoint()
        _, state = self._traces()
        checkpoint = checkpoints.checkpoint_folder(self.folder, self.global_steps)
        torch.save(state, checkpoint / TRACES)
        seal(checkpoint)
        self._save_seconds = time.monotonic() - began

    def _traces(self) -> Any:
        """Tables and state of the traces, of the rank that has them."""
        return next(filter(None, self.actor_rollout_wg.read_diagnostics()))

    def _validate(self) -> dict[str, float]:
        """Run verl's validation; its metrics are kept under our names for the row of this step."""
        began = time.monotonic()
        metrics: dict[str, float] = super()._validate()
        self._validation = validation_metrics(
            metrics, self.spec.data.benchmarks, self.spec.validation.samples, bool(self.spec.own_reward)
        )
        self._validation_seconds = time.monotonic() - began
        if self.global_steps == 0:
            write_phases(self.folder, 0, {"testing": self._validation_seconds}, {})
            self._write_row(0, {})
        return metrics

    def _compute_metrics(
        self,
        batch: KVBatchMeta,
        metrics: dict[str, Any],
        timing_raw: dict[str, float],
        global_steps: int,
        epoch: int,
    ) -> None:
        """Compute the row of this step in place of verl's metrics, and act on its validation."""
        reduced = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, (int, float, np.number))
        }
        row = self._collected | rule_metrics(reduced)
        norm = row.get("train/grad_norm")
        if norm is not None and not np.isfinite(norm):
            self._broken = f"gradient norm is {norm} at step {global_steps}"
        rollout, update = timing_raw.get("gen", 0.0), timing_raw.get("update_actor", 0.0)
        row |= {
            "perf/step_seconds": timing_raw["step"],
            "perf/rollout_seconds": rollout,
            "perf/update_seconds": update,
        }
        if rollout:
            row["perf/sampled_tokens_per_second"] = self._sampled_tokens / rollout
        if update and self._trains:
            row["perf/trained_tokens_per_second"] = self._trained_tokens / update
        if "perf/mfu/actor" in reduced:
            row["perf/mfu"] = reduced["perf/mfu/actor"]
        write_phases(self.folder, global_steps, timing_raw, reduced)
        metrics.clear()
        metrics |= row | self._validation  # shown on verl's console
        if not self._broken:
            self._write_row(global_steps, row)
        if self._broken or global_steps >= self.total_training_steps:
            self._end(global_steps)

    def _write_row(self, step: int, row: dict[str, float]) -> None:
        """Write the row of `step`; of a validated step also the tables and answers, then judge it."""
        validation, self._validation = self._validation, {}
        if step:
            tables, _ = self._traces() if validation else ({}, {})
            for name, table in tables.items():
                path = self.folder / "diagnostics" / f"{name}.json"
                path.parent.mkdir(exist_ok=True)
                replace_file(path, json.dumps(table))
        answers = self._answers.take(step) if validation and self._answers is not None else None
        if answers is not None:
            self._staging.add(step, answers)
        checkpoints.append_row(self.folder, step, row | validation)
        self._row_at = time.monotonic()
        if not validation:
            return
        keep_best(self.folder, score_name(self.spec))
        self._broken = checkpoints.collapse_of(self.spec, [past for _, past in checkpoints.rows(self.folder)])

    def _end(self, step: int) -> None:
        """Write how training ended, and stop verl's loop."""
        self.total_training_steps = step
        status = schema.COLLAPSED if self._broken else schema.DONE
        last = max(n for _, (n, _) in checkpoints.rows(self.folder))
        checkpoints.write_outcome(self.folder, Outcome(status, last, self._broken))


def ages_of(steps: Tensor, step: int, most: int) -> dict[str, float]:
    """The metrics of the ages of tokens that were sampled with the policies after `steps` and are trained in `step`.

    Raises RuntimeError if a token is older than `most`.
    """
    ages = step - 1 - steps
    shares = torch.bincount(ages, minlength=most + 1).double() / len(ages)
    if len(shares) > most + 1:
        raise RuntimeError(
            f"step {step} has tokens of the policy after step {int(steps.min())}, with rollout.max_staleness={most}"
        )
    metrics = {schema.age_metric(age): share for age, share in enumerate(shares.tolist())}
    return metrics | {
        "train/staleness_mean": float(ages.double().mean()),
        "train/staleness_max": float(ages.max()),
    }


class AsyncLabTrainer(LabTrainer, PPOTrainerColocateAsync):
    """One run with `rollout.mode` async: the engine is the trainer's GPUs, and goes on where it was interrupted."""

    def __init__(self, config: Any) -> None:
        self._in_flight: dict[str, int] = {}  # in the order of submission
        super().__init__(config)

    def get_llm_client(self) -> ResumingClient:
        """A client that puts responses together from pieces."""
        return self.llm_server_manager.get_client(client_cls=ResumingClient)

    on_sample_end = PPOTrainerColocateAsync.on_sample_end

    def on_step_end(self) -> None:
        """Give the rollout servers the policy, with which they go on."""
        super().on_step_end()
        self.checkpoint_manager.resume_generation_replicas()

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """Train a batch, which then is not in the queue that a checkpoint keeps, but for a row that verl clears."""
        batch = super().step(metrics, timing_raw)
        tq.kv_clear(keys=batch.keys[1:], partition_id=batch.partition_id)
        return KVBatchMeta(partition_id=batch.partition_id, keys=batch.keys[:1], tags=batch.tags[:1])

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        first = 1 + max(self._in_flight.values(), default=0)
        self._in_flight |= {uid: place for place, uid in enumerate(batch["uid"], first)}
        return super()._submit_batch_to_rollout(batch)

    def _balance_batch(self, batch: KVBatchMeta, *given: Any, **named: Any) -> KVBatchMeta:
        # In the order of the data; prompts of an earlier attempt come first.
        uids = {key.split("_")[0] for key in batch.keys}
        in_order = sorted(uids, key=lambda uid: (self._in_flight.pop(uid, 0), uid))
        self._order = {uid: place for place, uid in enumerate(in_order)}
        data = tq.kv_batch_get(
            keys=list(batch.keys), partition_id=batch.partition_id, select_fields=[POLICY_STEP]
        )
        most = self.spec.rollout.max_staleness
        assert most is not None
        ages = ages_of(torch.cat(data[POLICY_STEP].unbind()), self.global_steps, most)
        arranged = super()._balance_batch(batch, *given, **named)
        self._collected |= ages
        return arranged
