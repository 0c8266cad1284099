"""A stand-in for vLLM: its documented output types, and empty classes for all that verl imports besides.

Written after vLLM's `FlatLogprobs.append_fast` and `append_logprobs_for_next_position`: every position holds the
sampled token first, then the Top-K, without removing duplicates.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

VERSION = "0.22.0"


@dataclass
class FlatLogprobs:
    """vLLM's container for `flat_logprobs=True`."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def append_fast(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> None:
        self.start_indices.append(len(self.token_ids))
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.end_indices.append(len(self.token_ids))


@dataclass
class SamplingParams:
    """The parameters that verl and we pass."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    flat_logprobs: bool = False
    detokenize: bool = True


@dataclass
class CompletionOutput:
    token_ids: list[int]
    logprobs: Any
    finish_reason: str | None


@dataclass
class RequestOutput:
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0


@dataclass
class Logprob:
    logprob: float


class Engine:
    """AsyncLLM over given logits [n, V]: "samples" given tokens and streams cumulative outputs."""

    def __init__(self, logits: torch.Tensor, tokens: list[int]) -> None:
        self.logp = torch.log_softmax(logits, -1)
        self.tokens = tokens
        self.asked: list[SamplingParams] = []

    async def generate(
        self, *, prompt: Any, sampling_params: SamplingParams, request_id: str, **rest: Any
    ) -> AsyncIterator[RequestOutput]:
        self.asked.append(sampling_params)
        k = sampling_params.logprobs
        kept: Any = FlatLogprobs() if sampling_params.flat_logprobs else []
        for t, token in enumerate(self.tokens[: sampling_params.max_tokens]):
            if k is not None:
                top = self.logp[t].topk(k)
                ids = [token, *top.indices.tolist()]
                values = [float(self.logp[t, token]), *top.values.tolist()]
                if sampling_params.flat_logprobs:
                    kept.append_fast(ids, values)
                else:
                    kept.append({i: Logprob(value) for i, value in zip(ids, values, strict=True)})
            done = t + 1 == min(len(self.tokens), sampling_params.max_tokens)
            completion = CompletionOutput(
                self.tokens[: t + 1], kept if k is not None else None, "stop" if done else None
            )
            yield RequestOutput([completion], done)


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != "vllm":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


class _Module(types.ModuleType):
    __version__ = VERSION
    SamplingParams = SamplingParams

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


@contextmanager
def installed() -> Iterator[None]:
    """Within it `import vllm`, and verl's modules that need it, work."""
    finder, version = _Loader(), importlib.metadata.version
    before = set(sys.modules)
    sys.meta_path.insert(0, finder)
    importlib.metadata.version = lambda name: VERSION if name == "vllm" else version(name)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        importlib.metadata.version = version
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "vllm" or "vllm" in name:
                del sys.modules[name]


def flat(logp: np.ndarray, tokens: Sequence[int], topk: int) -> FlatLogprobs:
    """vLLM's container for log-probabilities [n, V] and the tokens sampled."""
    made = FlatLogprobs()
    order = np.argsort(-logp, axis=-1, kind="stable")[:, :topk]
    for t, token in enumerate(tokens):
        ids = [token, *order[t].tolist()]
        made.append_fast(ids, [float(logp[t, i]) for i in ids])
    return made
