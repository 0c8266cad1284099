"""Rollouts on CPUs: a decoding step, batched decoding, the server, and the replica that starts it."""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import get_max_position_embeddings

from cppo_lab.cores.verl.rollout import (
    CPU_ROLLOUT,
    TOPK_DTYPE_REQUEST,
    TOPK_IDS,
    TOPK_LOGP,
    TOPK_REQUEST,
)
from cppo_lab.errors import UserError

# A decoding step on logits: log mu, mu's Top-K, and a draw by inversion of the cumulative distribution.


class SamplingRule(NamedTuple):
    """How tokens are drawn, and what is kept of mu; requests with the same rule are decoded together."""

    temperature: float = 1.0  # 0: the most likely token
    top_p: float = 1.0
    topk: int = 0  # tokens of mu kept per step; the vocabulary's size: all


def log_policy(logits: Tensor, rule: SamplingRule) -> Tensor:
    """log mu of every token, float32 [B, V]: log-softmax of the logits [B, V] at the sampling temperature.

    mu is the *untruncated* softmax: under top_p < 1 a drawn token's probability under the truncated
    distribution is higher by the mass cut off. Training samples untruncated, so there the two are the same; with
    truncation (validation) the number is the model's probability, not the frequency of draws. With
    temperature 0 it is the softmax at temperature 1. vLLM's `processed_logprobs` differ under truncation only.
    """
    return torch.log_softmax(logits.float() / (rule.temperature or 1.0), -1)


def truncate(probabilities: Tensor, top_p: float) -> Tensor:
    """`probabilities` [B, V] with 0 outside the smallest set of mass >= top_p.

    The most likely token always stays. Not renormalised. Ties at the edge are cut by token id.
    """
    if top_p == 1:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= top_p * ordered.sum(-1, keepdim=True), 0)
    return torch.zeros_like(probabilities).scatter(-1, order, ordered)


def draw(log_mu: Tensor, rule: SamplingRule, uniforms: Tensor) -> Tensor:
    """One token per row [B] for `uniforms` [B] in [0, 1), by inversion of the cumulative distribution, in float64.

    A row's token depends on that row alone, so a request's sample does not depend on its batch (up to rounding of
    the logits). Tokens of probability 0 are never drawn.
    """
    if rule.temperature == 0:
        return log_mu.argmax(-1)
    cumulative = truncate(log_mu.double().exp(), rule.top_p).cumsum(-1)
    total = cumulative[:, -1:]
    # uniform * total < total, so the first entry above it exists and belongs to a token of positive probability.
    return torch.searchsorted(cumulative, uniforms.double()[:, None] * total, right=True).squeeze(-1)


# Batched decoding with a key-value cache; finished rows leave the batch.


class Request(NamedTuple):
    """One prompt to continue."""

    prompt: Sequence[int]
    max_tokens: int
    seed: int | None = None  # None: a fresh seed


@dataclass
class Generation:
    """One response of n tokens; row t of `topk_*` is mu's Top-K in the state that produced token t."""

    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)  # of the untruncated softmax at the sampling temperature
    topk_ids: list[NDArray[np.int32]] = field(default_factory=list)  # [n, K], descending in probability
    topk_logp: list[NDArray[np.float32]] = field(default_factory=list)  # [n, K]
    ended: bool = False  # False: it was interrupted
    policy_step: int | None = None  # training step of the weights


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    requests: Sequence[Request],
    rule: SamplingRule,
    ends: Sequence[int],
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Generation]:
    """Continues every prompt until the first of the tokens `ends`, which is part of the response, or its `max_tokens`,
    or until it is `interrupted`. Probabilities are float32 whatever the model's type.

    Raises FloatingPointError when the model's probabilities are not finite.
    """
    # A separate generator for each request: its sample does not depend on its batch.
    uniforms = [np.random.default_rng(request.seed).random(request.max_tokens) for request in requests]
    limits = np.array([request.max_tokens for request in requests])
    responses = [Generation() for _ in requests]
    prompts = [torch.tensor(request.prompt, device=model.device) for request in requests]
    ids, mask = (
        pad_sequence(parts, batch_first=True, padding_side="left")
        for parts in (prompts, [torch.ones_like(prompt) for prompt in prompts])
    )
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    rows = np.arange(len(requests))
    cache = DynamicCache(config=model.config)
    for step in range(int(limits.max())):
        if interrupted():
            break
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        log_mu = log_policy(logits, rule)
        if not log_mu.amax(-1).isfinite().all():
            raise FloatingPointError("the model's probabilities are not finite: its weights diverged")
        tokens = draw(log_mu, rule, torch.tensor([uniforms[row][step] for row in rows], device=logits.device))
        logp = log_mu.gather(-1, tokens[:, None]).squeeze(-1)
        most_likely = log_mu.topk(rule.topk, -1)
        for place, response in enumerate(responses[row] for row in rows):
            response.tokens.append(int(tokens[place]))
            response.logp.append(float(logp[place]))
            response.topk_ids.append(most_likely.indices[place].int().numpy(force=True))
            response.topk_logp.append(most_likely.values[place].numpy(force=True))
        running = ~np.isin(tokens.numpy(force=True), ends) & (step + 1 < limits[rows])
        for row in rows[~running]:
            responses[row].ended = True
        if not running.any():
            break
        positions = positions[:, -1:] + 1
        if not running.all():
            keep = torch.from_numpy(running.nonzero()[0]).to(logits.device)
            cache.batch_select_indices(keep)
            rows, tokens, mask, positions = rows[running], tokens[keep], mask[keep], positions[keep]
        ids, mask = tokens[:, None], torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
    return responses


# A rollout server for CPUs that decodes with transformers and records mu.
#
# It implements the part of the interface of verl's vLLM server
# (verl/workers/rollout/vllm_rollout/vllm_async_server.py) that the trainers use; `CpuReplica` starts it.


# A batch starts when no request has arrived for this long, since those of a step arrive singly over Ray.
GATHER_SECONDS = 0.02


# What a request may ask for, and what else verl always sends: at its neutral value it changes nothing, and no other is
# implemented here.
_SAMPLING = {
    "temperature": 1.0, "top_p": 1.0, "seed": None, "max_tokens": None, "logprobs": False,
    TOPK_REQUEST: 0, TOPK_DTYPE_REQUEST: "float32",
}  # fmt: skip
_NEUTRAL = {
    "top_k": -1, "repetition_penalty": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0
}  # fmt: skip


class CpuServer:
    """Decodes queued requests in batches: those with the same sampling rule together. `context`: tokens that the model
    takes at most.

    Weights change only between batches, so what is returned for a request comes from one policy.
    """

    def __init__(
        self, model: PreTrainedModel, config: RolloutConfig, context: int, end_tokens: Iterable[int]
    ) -> None:
        self.model = model.eval()
        self.config, self.context = config, context
        self.end_tokens = list(end_tokens)
        self.global_steps: int | None = None  # training step of the weights, as verl's servers report it
        self._queue: list[tuple[SamplingRule, Request, asyncio.Future[Generation]]] = []
        self._serving: asyncio.Task[None] | None = None
        self._model_in_use = asyncio.Lock()
        self._running = asyncio.Event()
        self._running.set()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        request_id: str,
        **_: Any,  # images and the like, of which our data has none
    ) -> TokenOutput:
        """One response, or the part of it before `abort_all_requests`. Fails with the batch's exception when decoding
        fails.

        Raises UserError for what this server cannot do: unknown sampling parameters, too long a prompt.
        """
        asked = _SAMPLING | sampling_params
        foreign = [
            f"{name}={value!r}"
            for name, value in asked.items()
            if name not in _SAMPLING and _NEUTRAL.get(name, object()) != value
        ]
        if foreign:
            raise UserError(
                f"sampling parameters {', '.join(foreign)} are not implemented by the CPU rollout server: leave "
                "them out"
            )
        rule = SamplingRule(float(asked["temperature"]), float(asked["top_p"]), int(asked[TOPK_REQUEST]))
        if rule.topk > self.model.config.vocab_size:
            raise UserError(
                f"engine_kwargs.cppo_lab.topk={rule.topk} exceeds the vocabulary of {self.model.config.vocab_size} "
                "tokens: the exact divergence needs no more than that"
            )
        prompt = [int(token) for token in prompt_ids]
        room = self.context - len(prompt)
        if room < 1:
            raise UserError(
                f"a prompt of {len(prompt)} tokens leaves no room in max_model_len={self.context}: raise "
                "rollout.max_model_len or drop long prompts with data.filter_overlong_prompts=true"
            )
        limit, longest = asked["max_tokens"], self.config.response_length
        if limit is None:  # verl's default for vLLM
            limit = min(longest, self.config.prompt_length + longest - len(prompt))
        request = Request(prompt, max(1, min(limit, room)), asked["seed"])
        response = asyncio.get_running_loop().create_future()
        self._queue.append((rule, request, response))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        generation: Generation = await response
        extra: dict[str, Any] = {"global_steps": generation.policy_step}
        if rule.topk and generation.tokens:
            extra[TOPK_IDS] = np.stack(generation.topk_ids)
            extra[TOPK_LOGP] = np.stack(generation.topk_logp).astype(asked[TOPK_DTYPE_REQUEST])
        return TokenOutput(
            token_ids=generation.tokens,
            log_probs=generation.logp if asked["logprobs"] else None,
            # verl's words; the first is for an end token and for the length limit alike
            stop_reason="completed" if generation.ended else "aborted",
            extra_fields=extra,
        )

    async def _serve(self) -> None:
        """Runs batches until the queue is empty."""
        while self._queue:
            await self._running.wait()
            # Until no more requests come, or a batch is full.
            seen = -1
            while seen < len(self._queue) < self.config.max_num_seqs:
                seen = len(self._queue)
                await asyncio.sleep(GATHER_SECONDS)
            rule = self._queue[0][0]
            members = [item for item in self._queue if item[0] == rule][: self.config.max_num_seqs]
            self._queue = [item for item in self._queue if item not in members]
            requests = [request for _, request, _ in members]
            async with self._model_in_use:
                # A failure belongs to this batch's requests, and must not end the server.
                [decoded] = await asyncio.gather(
                    asyncio.to_thread(
                        decode,
                        self.model,
                        requests,
                        rule,
                        self.end_tokens,
                        lambda: not self._running.is_set(),
                    ),
                    return_exceptions=True,
                )
                step = self.global_steps
            for place, (_, _, response) in enumerate(members):
                if response.done():  # its client has gone
                    continue
                if isinstance(decoded, BaseException):
                    response.set_exception(decoded)
                else:
                    decoded[place].policy_step = step
                    response.set_result(decoded[place])

    async def abort_all_requests(self, **_: Any) -> None:
        """Ends the running batch before its next token; others wait for `resume_generation`."""
        self._running.clear()
        async with self._model_in_use:
            pass

    async def resume_generation(self) -> None:
        """Goes on after `abort_all_requests`."""
        self._running.set()

    async def load_weights(self, weights: dict[str, torch.Tensor], global_steps: int | None) -> None:
        """Replaces the model's weights by the actor's, under its names, after the running batch.

        Raises UserError that lists the names when they are not the model's, RuntimeError for another shape. A tied
        output head may be missing (it is the embedding), or sent as well.
        """
        async with self._model_in_use:
            await asyncio.to_thread(load_named_tensors, self.model, weights)
            if global_steps is not None:
                self.global_steps = global_steps

    async def _nothing(self, **_: Any) -> None:
        """There is no memory to release and no cache that outlives a batch."""

    # verl's calls of a server's life.
    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    start_profile = stop_profile = _nothing


def load_named_tensors(model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> None:
    """Copies `weights` into the parameters and buffers of `model`; see `CpuServer.load_weights`."""
    # verl sends each expert by itself, as the hub has them: here they are views of the tensors that pack them.
    state = revert_weight_conversion(model, model.state_dict())
    # Names that share memory are tied: a single name is enough.
    given = {state[name].data_ptr() for name in weights.keys() & state.keys()}
    missing = sorted(name for name, tensor in state.items() if tensor.data_ptr() not in given)
    unexpected = sorted(weights.keys() - state.keys())
    if unexpected or missing:
        raise UserError(
            f"the actor's weights are not those of {type(model).__name__}: missing {missing or 'none'}, unexpected "
            f"{unexpected or 'none'}: actor_rollout_ref.model.path must name the same model for the actor and the "
            "rollout, without LoRA adapters"
        )
    for name, value in weights.items():
        if value.shape != state[name].shape:
            raise RuntimeError(
                f"size mismatch for {name}: {tuple(value.shape)}, not {tuple(state[name].shape)}"
            )
        state[name].copy_(value)


# The CPU rollout server inside verl: Ray actor, replica, and transfer of the actor's weights.
#
# Selected with `rollout.name=cppo_cpu`.


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
        context = config.max_model_len or get_max_position_embeddings(named.hf_config)
        ends = end_tokens(named.tokenizer.eos_token_id, named.generation_config)
        super().__init__(model, config, context, ends)

    async def ready(self) -> None:
        """Returns when the model is loaded."""

    async def runner(self) -> str:
        """The engine's version."""
        return f"transformers {version('transformers')}"


def server_name(replica: int, suffix: str = "") -> str:
    """Name of a replica's Ray actor: not a socket, a name to route by."""
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
        name = server_name(self.replica_rank, self.name_suffix)
        options = {"name": name, "num_cpus": 1, "max_concurrency": self.max_concurrency}
        server = ray.remote(CpuServerActor).options(**options).remote(self.config, self.model_config)
        await server.ready.remote()
        self.servers, self._server_handle, self._server_address = [server], server, name


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
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        """Sends the actor's named tensors, gathered to full size by the engine, to the server."""
        # Copied: the engine may reuse a tensor's memory while Ray still reads it.
        sent = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights}
        if self._server is None:  # the server starts after this worker
            self._server = ray.get_actor(server_name(self.replica_rank))
        await self._server.load_weights.remote(sent, global_steps)
