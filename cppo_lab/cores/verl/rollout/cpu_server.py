"""A rollout server for CPUs that decodes with transformers and records mu.

It implements the part of the interface of verl's vLLM server
(verl/workers/rollout/vllm_rollout/vllm_async_server.py) that the synchronous trainer uses. `cpu_replica` starts it.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from verl.workers.rollout.replica import TokenOutput

from cppo_lab.cores.verl.rollout.decode import Generation, Request, decode
from cppo_lab.cores.verl.rollout.sampling import SamplingRule, unused
from cppo_lab.cores.verl.rollout.settings import TOPK_DTYPE_REQUEST, TOPK_IDS, TOPK_LOGP, TOPK_REQUEST
from cppo_lab.errors import UserError

# A batch starts when no request has arrived for this long, since those of one step arrive one by one over Ray.
GATHER_SECONDS = 0.02


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens, under verl's names."""

    prompt_length: int
    response_length: int
    max_model_len: int
    max_num_seqs: int  # rows of one batch

    def max_tokens(self, prompt: int, parameters: dict[str, Any]) -> int:
        """Tokens a request may generate, with verl's defaults for vLLM; removes the limit from `parameters`.

        Raises UserError when the prompt leaves no room in the model's context.
        """
        room = self.max_model_len - prompt
        if room < 1:
            raise UserError(
                f"a prompt of {prompt} tokens leaves no room in max_model_len={self.max_model_len}: raise "
                "rollout.max_model_len or drop long prompts with data.filter_overlong_prompts=true"
            )
        default = min(self.response_length, self.prompt_length + self.response_length - prompt)
        asked = parameters.pop("max_new_tokens", default)
        return max(1, min(int(parameters.pop("max_tokens", asked)), room))


@dataclass(frozen=True, eq=False)
class _Waiting:
    request: Request
    rule: SamplingRule
    topk: int
    # Resolved, when the request's batch starts, with that batch and the request's place in it.
    batch: "asyncio.Future[tuple[asyncio.Future[list[Generation]], int]]"


class CpuServer:
    """Decodes queued requests in batches: those with the same sampling rule and Top-K together.

    Weights change only between batches, so a response comes from one policy.
    """

    def __init__(self, model: PreTrainedModel, limits: Limits, end_tokens: Iterable[int]) -> None:
        self.model = model.eval()
        self.limits = limits
        self.end_tokens = frozenset(end_tokens)
        self.global_steps: int | None = None  # training step of the weights, as verl's servers report it
        self._queue: list[_Waiting] = []
        self._serving: asyncio.Task[None] | None = None
        self._model_in_use = asyncio.Lock()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
    ) -> TokenOutput:
        """One response. Fails with the batch's own exception when decoding fails.

        Raises UserError for what this server cannot do: images, unknown sampling parameters, too long a prompt.
        """
        if image_data or video_data:
            raise UserError("the CPU rollout server reads text only: use data without images and videos")
        parameters = dict(sampling_params)
        topk = int(parameters.pop(TOPK_REQUEST, 0))
        if topk > self.model.config.vocab_size:
            raise UserError(
                f"engine_kwargs.cppo_lab.topk={topk} exceeds the vocabulary of {self.model.config.vocab_size} tokens: "
                "the exact divergence needs no more than that"
            )
        dtype = np.dtype(parameters.pop(TOPK_DTYPE_REQUEST, "float32"))
        with_logp = parameters.pop("logprobs", False)
        rule = SamplingRule.take(parameters)
        prompt = [int(token) for token in prompt_ids]
        request = Request(
            prompt,
            self.limits.max_tokens(len(prompt), parameters),
            self._stop(parameters),
            parameters.pop("seed", None),
        )
        unused(parameters)
        made = await self._decoded(request, rule, topk)
        extra: dict[str, Any] = {"global_steps": self.global_steps}
        if made.topk_ids is not None and made.topk_logp is not None:
            extra[TOPK_IDS], extra[TOPK_LOGP] = made.topk_ids, made.topk_logp.astype(dtype)
        return TokenOutput(
            token_ids=made.tokens,
            log_probs=made.logp if with_logp else None,
            stop_reason="completed",  # verl's word for an end token and for the length limit alike
            extra_fields=extra,
        )

    def _stop(self, parameters: dict[str, Any]) -> frozenset[int]:
        extra = frozenset(parameters.pop("stop_token_ids", None) or ())
        return extra if parameters.pop("ignore_eos", False) else extra | self.end_tokens

    async def _decoded(self, request: Request, rule: SamplingRule, topk: int) -> Generation:
        waiting = _Waiting(request, rule, topk, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        # Shielded: a client that gives up must not cancel the batch of the others.
        batch, place = await waiting.batch
        return (await asyncio.shield(batch))[place]

    async def _serve(self) -> None:
        """Runs batches until the queue is empty."""
        while self._queue:
            await self._gather()
            first = self._queue[0]
            alike = [item for item in self._queue if (item.rule, item.topk) == (first.rule, first.topk)]
            members = alike[: self.limits.max_num_seqs]
            taken = set(members)
            self._queue = [item for item in self._queue if item not in taken]
            async with self._model_in_use:
                requests = [item.request for item in members]
                batch = asyncio.ensure_future(
                    asyncio.to_thread(decode, self.model, requests, first.rule, first.topk)
                )
                for place, item in enumerate(members):
                    if not item.batch.done():  # its client may have gone
                        item.batch.set_result((batch, place))
                # A failure is raised where each request awaits the batch; it must not end the server.
                await asyncio.wait([batch])

    async def _gather(self) -> None:
        """Waits until no more requests come, or a batch is full."""
        seen = -1
        while seen < len(self._queue) < self.limits.max_num_seqs:
            seen = len(self._queue)
            await asyncio.sleep(GATHER_SECONDS)

    async def load_weights(self, weights: dict[str, torch.Tensor], global_steps: int | None) -> None:
        """Replaces the model's weights by the actor's, under its names, after the running batch.

        Raises UserError that lists the names when they are not exactly the model's. A tied output head may be
        missing (it is the embedding), or sent as well.
        """
        async with self._model_in_use:
            await asyncio.to_thread(load_named_tensors, self.model, weights)
            if global_steps is not None:
                self.global_steps = global_steps

    # There is no memory to release and no cache that outlives a batch: verl's life-cycle calls have nothing to do.
    async def wake_up(self) -> None: ...

    async def sleep(self) -> None: ...

    async def clear_kv_cache(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def start_profile(self, **options: Any) -> None: ...

    async def stop_profile(self) -> None: ...

    async def resume_generation(self) -> None: ...

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Raises UserError: interrupted responses belong to verl's asynchronous trainers."""
        raise UserError(
            "the CPU rollout server cannot interrupt a response: use a synchronous trainer (trainer.v1.trainer_mode) "
            "or rollout.name=vllm"
        )


def load_named_tensors(model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> None:
    """Copies `weights` into the parameters and buffers of `model`; see `CpuServer.load_weights`."""
    own = model.state_dict(keep_vars=True)
    unexpected = sorted(weights.keys() - own.keys())
    given = {id(own[name]) for name in weights.keys() & own.keys()}
    # Names that share one tensor are tied: one of them is enough.
    missing = sorted(name for name, tensor in own.items() if name not in weights and id(tensor) not in given)
    wrong = sorted(
        f"{name} {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in weights.keys() & own.keys()
        if weights[name].shape != own[name].shape
    )
    if unexpected or missing or wrong:
        raise UserError(
            f"the actor's weights are not those of {type(model).__name__}: missing {missing or 'none'}, unexpected "
            f"{unexpected or 'none'}, wrong shape {wrong or 'none'}: actor_rollout_ref.model.path must name the same "
            "model for the actor and the rollout, without LoRA adapters"
        )
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)
