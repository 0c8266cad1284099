"""The worker that trains: verl's, with our loss, per-token traces, earlier policies, and mu's Top-K fetched once."""

import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from transfer_queue import KVBatchMeta
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name, get_torch_device
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.transferqueue_utils import kv_batch_meta2batch_meta
from verl.workers.engine_workers import ActorRolloutRefWorker

from cppo_lab.cores.rule_loss import Diagnostics, KeptResponse, ObservedTokens
from cppo_lab.cores.verl.logits import CODE
from cppo_lab.cores.verl.loss import summarise_mismatch, trust_region_loss
from cppo_lab.cores.verl.rollout import TOPK_IDS, TOPK_LOGP, socket_of_this_run
from cppo_lab.errors import UserError
from cppo_lab.spec import RuleSpec

# mu's Top-K is fetched once for all ranks that train the same rows, instead of once per rank.
#
# verl sends a part of the batch to every data-parallel rank. With sequence, context, tensor or pipeline parallelism
# such a rank is a group of processes, each of which fetches all columns of the part from TransferQueue. The Top-K is by
# far the largest of them: 2 K numbers per token. Here the first process of a group fetches it and sends it to the
# others.

_COLUMNS = (TOPK_IDS, TOPK_LOGP)
_BYTES = 2**28  # of a message

Update = Callable[[Any, Any], Any]


def same_rows_group(dp_rank: int) -> dist.ProcessGroup | None:
    """The processes with this data-parallel rank, connected by gloo; None if this is the only process.

    A collective over all processes.
    """
    dp_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(dp_ranks, dp_rank)
    # In the same order in every process, since all create every group.
    members = [
        [process for process, other in enumerate(dp_ranks) if other == rank] for rank in sorted({*dp_ranks})
    ]
    shared = [processes for processes in members if len(processes) > 1]
    group: dist.ProcessGroup | None = None
    if shared:
        group, _ = dist.new_subgroups_by_enumeration(shared, backend="gloo")
    return group


def topk_once(update: Update) -> Update:
    """Decorate a method wrapped by verl's `register`: only the first process of `self.same_rows` fetches the Top-K.

    The method itself calls `share_topk` with its data.
    """

    @wraps(update)  # it also copies verl's mark by which the driver finds the method
    def fetch(self: Any, data: Any) -> Any:
        group = self.same_rows
        if group is not None and dist.get_rank(group) and isinstance(data, KVBatchMeta):
            batch = kv_batch_meta2batch_meta(data)
            data = batch.select_fields([name for name in batch.field_names if name not in _COLUMNS])
        return update(self, data)

    return fetch


def share_topk(data: TensorDict, group: dist.ProcessGroup | None) -> None:
    """Give `data` of every process the Top-K of the first process, if that has any. A collective over `group`.

    The columns are nested, [B, R, K] with a length R for each response, on the CPU.
    """
    if group is None:
        return
    leads = dist.get_rank(group) == 0
    columns = {name: data[name] for name in _COLUMNS if name in data} if leads else {}
    forms: list[Any] = [
        [
            (name, column.values().shape, column.dtype, column.offsets().tolist())
            for name, column in columns.items()
        ]
    ]
    dist.broadcast_object_list(forms, group=group, group_src=0)
    for name, shape, dtype, offsets in forms[0]:
        values = columns[name].values().contiguous() if leads else torch.empty(shape, dtype=dtype)
        for part in values.view(-1).view(torch.uint8).split(_BYTES):
            dist.broadcast(part, group=group, group_src=0)
        if not leads:
            data[name] = torch.nested.nested_tensor_from_jagged(values, torch.tensor(offsets))


# verl's training worker with our loss, and with per-token traces of the watched steps.

WATCHED_STEP = "watched_step"  # in a batch: the training step whose tokens are traced; 0: none


class TrustRegionWorker(ActorRolloutRefWorker):
    """One rank of actor and rollout."""

    # The engine's loss, which verl's `init_model` sets first. Its keyword `config` has our `policy_loss`, typed, by
    # which a rule's constants reach the loss (`config.py`).
    loss_fn: partial[Any]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Run verl's method, then replace its loss by ours."""
        # verl's choice for a CPU is refused by torch, and its ten minutes for a GPU are less than a rank may have to
        # wait at the end of a save.
        backend = "cpu:gloo" if get_device_name() == "cpu" else None
        initialize_global_process_group_ray(self.config.nccl_timeout, backend)
        super().init_model()
        if (handle := getattr(self.rollout, "zmq_handle", None)) is not None:  # vLLM's
            self.rollout.zmq_handle = socket_of_this_run(handle)
        self.same_rows = same_rows_group(self.actor.engine.get_data_parallel_rank())
        self.actor_config = self.loss_fn.keywords["config"]
        self.diagnostics: Diagnostics | None = None
        self._watched_step = 0
        self._kept_responses: dict[int, KeptResponse] = {}  # by place
        self._staleness = 0
        self._policies: dict[int, dict[str, torch.Tensor]] = {}  # this rank's shards, by step and name
        self.use_loss(self.actor_config)

    def use_loss(self, config: Any) -> None:
        """Train with our loss under `config`, an ActorConfig."""
        self.loss_fn = partial(
            trust_region_loss, config=config, watch=self._watch, record_decisions=self._keep
        )
        self.actor.set_loss_fn(self.loss_fn)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def keep_policy(self, step: int, staleness: int) -> None:
        """Copy the policy after `step` to host memory, where the last `staleness` + 1 are.

        Raises UserError if any of them is missing: a resumed run's come from its checkpoint.
        """
        self._staleness, oldest = staleness, max(0, step - staleness)
        if missing := [past for past in range(oldest, step) if past not in self._policies]:
            raise UserError(
                f"the checkpoint of step {step} lacks {self._policies_file()} or its policies of steps {missing}, from "
                f"which rollout.staleness={staleness} samples: remove its folder to resume from an older one"
            )
        self._policies = {past: shards for past, shards in self._policies.items() if past >= oldest}
        self._policies[step] = {name: shard.to("cpu", copy=True) for name, shard in self._shards().items()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def use_policy(self, step: int) -> None:
        """Make the policy after `step`, which is in host memory, that of the engine; bit for bit."""
        with torch.no_grad():
            for name, shard in self._shards().items():
                shard.copy_(self._policies[step][name])

    def _shards(self) -> dict[str, torch.Tensor]:
        """What this rank holds of the parameters, by name; tied ones once."""
        get_torch_device().synchronize()  # verl moves offloaded parameters without waiting
        # Not `named_parameters`: only this brings FSDP2's parameters back from their gathered form.
        whole = self.actor.engine.module.state_dict(keep_vars=True)
        named = {id(tensor): (name, tensor) for name, tensor in whole.items()}
        with torch.no_grad():
            return {
                name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
                for name, tensor in named.values()
            }

    def _policies_file(self) -> str:
        # Like verl's file of extra state, it is nothing that a best checkpoint needs.
        return f"extra_policies_world_size_{self.world_size}_rank_{self.rank}.pt"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
    ) -> None:
        """Save verl's checkpoint, with the earlier policies that later steps sample from."""
        super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
        if self._staleness:
            oldest = global_step - self._staleness
            needed = {step: shards for step, shards in self._policies.items() if step >= oldest}
            torch.save(needed, Path(local_path) / self._policies_file())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Load verl's checkpoint, and the earlier policies in it."""
        super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
        path = Path(local_path) / self._policies_file()
        self._policies = torch.load(path, weights_only=True) if path.exists() else {}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_diagnostics(self, rule: RuleSpec, horizon: int, state: dict[str, Any] | None) -> None:
        """Start the traces of a run, or resume them from `state`."""
        self.diagnostics = Diagnostics(rule, horizon)
        if state is not None:
            self.diagnostics.load_state(state)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_diagnostics(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Tables and state of the traces, which cover the responses of one rank: a sample of all; None on others."""
        assert self.diagnostics is not None
        return (self.diagnostics.tables(), self.diagnostics.state()) if self._traces() else None

    def _traces(self) -> bool:
        """Whether this is the process that traces tokens: it has the loss of the first part of a batch."""
        engine = self.actor.engine
        return engine.get_data_parallel_rank() == 0 and bool(engine.is_mp_src_rank_with_outputs())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take_kept_responses(self) -> dict[int, KeptResponse]:
        """The marked responses that this rank has trained since the last call, by place; each is on one rank only."""
        responses, self._kept_responses = self._kept_responses, {}
        return responses

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def all_reduce_speed(self) -> float:
        """Bytes per second through each rank's network, in units of 1e9, when all ranks sum a large tensor.

        NCCL goes on by TCP where it finds no InfiniBand, and says so in its log alone.
        """
        message = torch.zeros(_BYTES, dtype=torch.uint8, device=get_device_name())
        for _ in range(3):  # the first connects
            began = time.perf_counter()
            dist.all_reduce(message)
            message[0].item()  # a GPU goes on after the call
            seconds = time.perf_counter() - began
        ranks = dist.get_world_size()
        return 2 * (ranks - 1) / ranks * _BYTES / seconds / 1e9

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def compare(self, rows: list[dict[str, Tensor]], temperature: float) -> tuple[Tensor, Tensor, str] | None:
        """abs(log pi - log mu) and D_t of the response tokens of `rows`, columns of a batch; None without the logits.

        In the way that the updates take, but for the gradient; and what code took them from the logits, if it was ours.
        """
        columns = {
            name: torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged)
            for name in rows[0]
        }
        data, seen = tu.get_tensordict(columns, {}), list[ObservedTokens]()
        config = self.actor_config
        tu.assign_non_tensor(
            data, temperature=temperature, calculate_entropy=False, distillation_use_topk=True,
            distillation_only=config.strategy != "megatron", global_batch_size=len(rows),
            use_dynamic_bsz=True, max_token_len_per_gpu=config.ppo_max_token_len_per_gpu,
        )  # fmt: skip
        self.actor.set_loss_fn(partial(trust_region_loss, config=config, watch=seen.append))
        self.actor.infer_batch(data)
        self.actor.set_loss_fn(self.loss_fn)
        if not seen:
            return None
        gaps = [(part.logp - part.rollout_logp)[part.valid].abs().cpu() for part in seen]
        divergences = torch.cat([part.divergence[part.valid].cpu() for part in seen])
        return torch.cat(gaps), divergences, "; ".join(sorted({*CODE.values()}))

    @topk_once
    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: Any) -> Any:
        """Train the minibatches of a step."""
        share_topk(data, self.same_rows)
        self._watched_step = tu.get_non_tensor_data(data, WATCHED_STEP, 0)
        # The engine then calls our loss on the logits: D_t and the entropy come from there. With FSDP the same pass
        # gives the log-probabilities, and verl computes none.
        fsdp = self.actor_config.strategy != "megatron"
        tu.assign_non_tensor(data, distillation_use_topk=True, distillation_only=fsdp)
        output = super().update_actor(data)
        if output is not None:
            summarise_mismatch(tu.get(output, "metrics"))
        if self.diagnostics is not None:
            self.diagnostics.end_step()
        return output

    def _keep(self, responses: dict[int, KeptResponse]) -> None:
        # The other processes of its group have the same rows.
        if self.actor.engine.is_mp_src_rank_with_outputs():
            self._kept_responses |= responses

    def _watch(self, seen: ObservedTokens) -> None:
        if self._watched_step and self.diagnostics is not None and self._traces():
            tokenizer = self.actor_config.model_config.tokenizer
            # The text that each token adds, not its spelling in the vocabulary (`Ġthe`).
            self.diagnostics.see(
                self._watched_step, seen, lambda ids: [tokenizer.decode([token]) for token in ids]
            )
