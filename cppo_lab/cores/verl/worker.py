"""verl's training worker with our loss, and with per-token traces of the watched steps."""

from functools import partial
from typing import Any

from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine_workers import ActorRolloutRefWorker

from cppo_lab.cores.diagnostics import Diagnostics, ObservedTokens
from cppo_lab.cores.verl.kept_responses import Decided, KeptResponse, kept_responses
from cppo_lab.cores.verl.loss_metrics import summarise_mismatch
from cppo_lab.cores.verl.policy_loss import trust_region_loss
from cppo_lab.cores.verl.rollout import weight_socket
from cppo_lab.cores.verl.topk_once import same_rows_group, share_topk, topk_once
from cppo_lab.spec import RuleSpec

WATCHED_STEP = "watched_step"  # in a batch: the training step whose tokens are traced; 0: none


class TrustRegionWorker(ActorRolloutRefWorker):
    """One rank of actor and rollout."""

    loss_fn: partial[Any]  # the engine's loss, which `init_model` of verl sets first

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Run verl's method, then replace its loss by ours."""
        if get_device_name() == "cpu":
            initialize_global_process_group_ray(
                backend="cpu:gloo"
            )  # verl's own choice for a CPU is refused by torch
        super().init_model()
        if (handle := getattr(self.rollout, "zmq_handle", None)) is not None:  # vLLM's
            self.rollout.zmq_handle = weight_socket.of_this_run(handle)
        self.same_rows = same_rows_group(self.actor.engine.get_data_parallel_rank())
        self.actor_config = self.loss_fn.keywords["config"]
        self.diagnostics: Diagnostics | None = None
        self._watched_step = 0
        self._kept: list[KeptResponse] = []
        self.use_loss(self.actor_config)

    def use_loss(self, config: Any) -> None:
        """Train with our loss under `config`, an ActorConfig."""
        self.loss_fn = partial(trust_region_loss, config=config, watch=self._watch, keep=self._keep)
        self.actor.set_loss_fn(self.loss_fn)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_diagnostics(self, rule: dict[str, Any], horizon: int, state: dict[str, Any] | None) -> None:
        """Start the traces of a run, or resume them from `state`."""
        self.diagnostics = Diagnostics(RuleSpec.model_validate(rule), horizon)
        if state is not None:
            self.diagnostics.load_state(state)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_diagnostics(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tables and state of the traces, which cover the responses of this rank: a sample of all."""
        assert self.diagnostics is not None
        return self.diagnostics.tables(), self.diagnostics.state()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take_kept_responses(self) -> list[KeptResponse]:
        """The marked responses that this rank has trained since the last call; each is on one rank only."""
        kept, self._kept = self._kept, []
        return kept

    @topk_once
    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: Any) -> Any:
        """Train the minibatches of one step."""
        share_topk(data, self.same_rows)
        self._watched_step = tu.get_non_tensor_data(data, WATCHED_STEP, 0)
        # The engine then calls our loss on the logits: D_t and the entropy come from there.
        tu.assign_non_tensor_data(data, "distillation_use_topk", True)
        # With FSDP the same pass gives the log-probabilities, and verl skips its own.
        tu.assign_non_tensor_data(data, "distillation_only", self.actor_config.strategy != "megatron")
        output = super().update_actor(data)
        if output is not None:
            summarise_mismatch(tu.get(output, "metrics"))
        if self.diagnostics is not None:
            self.diagnostics.end_step()
        return output

    def _keep(self, decided: Decided) -> None:
        # The other processes of its group have the same rows.
        if self.actor.engine.is_mp_src_rank_with_outputs():
            self._kept += kept_responses(decided)

    def _watch(self, seen: ObservedTokens) -> None:
        if self._watched_step and self.diagnostics is not None and self.rank == 0:
            tokenizer = self.actor_config.model_config.tokenizer
            # The text that each token adds, not its spelling in the vocabulary (`Ġthe`).
            self.diagnostics.see(
                self._watched_step, seen, lambda ids: [tokenizer.decode([token]) for token in ids]
            )
