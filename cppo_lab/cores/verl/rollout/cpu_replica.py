"""The CPU rollout server inside verl: Ray actor, replica, and transfer of the actor's weights.

Selected with `rollout.name=cppo_cpu`.
"""

import os
from collections.abc import Iterable
from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import get_max_position_embeddings

from cppo_lab.cores.verl.rollout.cpu_server import CpuServer, Limits
from cppo_lab.cores.verl.rollout.settings import CPU_ROLLOUT
from cppo_lab.errors import UserError


def end_tokens(tokenizer_eos: int, generation: GenerationConfig | None) -> set[int]:
    """The tokens that end a response: the tokenizer's and, as in vLLM, all of the generation config's."""
    configured = generation.eos_token_id if generation is not None else None
    more = configured if isinstance(configured, list) else [configured]
    return {tokenizer_eos, *(token for token in more if token is not None)}


class CpuServerActor(CpuServer):
    """The server in a separate Ray process, with the model of verl's configs in float32."""

    def __init__(self, config: RolloutConfig, model_config: Any) -> None:
        named: HFModelConfig = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        model = AutoModelForCausalLM.from_pretrained(
            named.local_path,
            dtype=torch.float32,
            attn_implementation="sdpa",
            trust_remote_code=named.trust_remote_code,
        )
        limits = Limits(
            config.prompt_length,
            config.response_length,
            config.max_model_len or get_max_position_embeddings(named.hf_config),
            config.max_num_seqs,
        )
        super().__init__(model, limits, end_tokens(named.tokenizer.eos_token_id, named.generation_config))

    async def ready(self) -> None:
        """Returns when the model is loaded."""


def server_name(replica: int, suffix: str = "") -> str:
    """Name of a replica's Ray actor."""
    return f"{CPU_ROLLOUT}_server_{replica}_0{suffix}"


class CpuReplica(RolloutReplica):
    """One server per replica; several replicas share the requests through verl's load balancer."""

    async def launch_servers(self) -> None:
        """Starts the server and waits until its model is loaded.

        Raises UserError for a replica over several ranks, since there is no tensor parallelism.
        """
        if self.world_size != 1:
            raise UserError(
                f"rollout.name={CPU_ROLLOUT} serves a whole model per rank, not {self.world_size} ranks per replica: "
                "set rollout.tensor_model_parallel_size, data_parallel_size and pipeline_model_parallel_size to 1"
            )
        server = (
            ray.remote(CpuServerActor)
            .options(
                name=server_name(self.replica_rank, self.name_suffix),
                num_cpus=1,
                max_concurrency=self.max_concurrency,
            )
            .remote(self.config, self.model_config)
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = server_name(
            self.replica_rank, self.name_suffix
        )  # not a socket: a name to route by


class CpuServerAdapter(BaseRollout):
    """Lives in the training worker and pushes its weights to the server of the same rank."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True
        self._server: Any = None

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """There is nothing to release."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: Any = None,
        base_sync_done: bool = True,
    ) -> None:
        """Sends the actor's named tensors, gathered to full size by the engine, to the server.

        Raises UserError for weights in another form (deltas, LoRA adapters).
        """
        if wire_format != "named_tensors" or peft_config is not None:
            raise UserError(
                f"rollout.name={CPU_ROLLOUT} takes full weights, not wire_format={wire_format!r} with "
                f"peft_config={peft_config}: set checkpoint_engine.backend=naive and model.lora.merge=true"
            )
        # Copied: the engine may reuse a tensor's memory while Ray still reads it.
        sent = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights}
        if self._server is None:  # the server starts after this worker
            self._server = ray.get_actor(server_name(self.replica_rank))
        await self._server.load_weights.remote(sent, global_steps)
