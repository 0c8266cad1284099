"""mu's Top-K from vLLM's outputs, without an object per token. Does not import vLLM.

NOT RUN ON A GPU: written from vLLM's documented types (`SamplingParams.flat_logprobs`, `FlatLogprobs`, since vLLM
0.12) and tested on objects that mimic them.

vLLM returns, for `logprobs=K`, the sampled token first and then the K most likely ones in descending order, so every
position has K + 1 entries and the sampled token may appear twice. As `list[dict[int, Logprob]]` a response of 8k
tokens with K = 20 is 172k Python objects; `FlatLogprobs` holds the same entries in a few flat columns.
"""

from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class SampledLogprob(NamedTuple):
    """The only attribute of vLLM's `Logprob` that verl's server reads."""

    logprob: float


@dataclass
class Capture:
    """The Top-K that a request asks for, and its result."""

    topk: int
    ids: NDArray[np.int32] | None = field(default=None)  # [n, K]
    logp: NDArray[np.float32] | None = field(default=None)  # [n, K]

    def take(self, completion: Any) -> None:
        """Keeps the Top-K of a finished `CompletionOutput`, and leaves in it the sampled tokens' log-probabilities.

        verl's server reads the rest as `logprobs[t][token_ids[t]].logprob`; from `FlatLogprobs` that
        expression would build all K + 1 objects of every token.
        """
        tokens = completion.token_ids
        sampled, self.ids, self.logp = flat_topk(completion.logprobs, tokens, self.topk)
        completion.logprobs = [
            {token: SampledLogprob(logp)} for token, logp in zip(tokens, sampled.tolist(), strict=True)
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
