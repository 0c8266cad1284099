"""vLLM with Top-K and its weights, on a stand-in for vLLM: its output types, and verl's own code around a fake engine.

vLLM's own front end is in `vllm/front_end.py`.
"""

import asyncio
import contextlib
import importlib.metadata
import os
import sys
import types
from collections.abc import AsyncIterator, Iterator
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from cppo_lab.cores.verl import core
from cppo_lab.cores.verl import rollout as settings
from cppo_lab.cores.verl.rollout import TOPK_IDS, TOPK_LOGP
from cppo_lab.files import redacted
from cppo_lab.sweep.compose import compose
from tests.cores.verl.test_rollout import TRAIN as SAMPLING

N, V, K = 30, 50, 20
VERSION = "0.22.0"
TRAIN = SAMPLING | {"cppo_topk": K, "cppo_topk_dtype": "float16", "seed": 3}
# verl's, in the first job of any Ray cluster.
HANDLE = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"


class SamplingParams(SimpleNamespace):
    """vLLM's, as far as verl reads what it has not set itself."""

    prompt_logprobs = None


class _Module(types.ModuleType):
    __version__ = VERSION
    SamplingParams = SamplingParams

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {}))
        return getattr(self, name)


LOADER = SimpleNamespace(create_module=lambda spec: _Module(spec.name), exec_module=lambda module: None)


def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
    return ModuleSpec(name, LOADER, is_package=True) if name.split(".")[0] == "vllm" else None


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within it `import vllm`, and verl's modules that need it, work."""
    before, version = set(sys.modules), importlib.metadata.version
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find_spec), *sys.meta_path])
        patch.setattr(
            importlib.metadata, "version", lambda name: VERSION if name == "vllm" else version(name)
        )
        try:
            yield
        finally:
            for name in set(sys.modules) - before:
                if "vllm" in name:
                    del sys.modules[name]


LOGP = torch.log_softmax(torch.randn(N, V, generator=torch.Generator().manual_seed(0)) * 2, -1)
TOKENS: list[int] = np.random.default_rng(0).integers(0, V, N).tolist()


def columns_of(module: Any, tokens: list[int], k: int) -> Any:
    """What vLLM's front end gathers for these tokens: each with its Top-K."""
    columns = module.Columns(len(tokens), k + 1)
    ids = np.array([[token, *LOGP[t].topk(k).indices.tolist()] for t, token in enumerate(tokens)])
    columns.append(ids, LOGP.numpy()[np.arange(len(tokens))[:, None], ids])
    return columns


class Engine:
    """AsyncLLM that "samples" TOKENS and streams cumulative outputs."""

    def __init__(self, module: Any) -> None:
        self.module, self.asked = module, list[Any]()

    async def generate(self, *, sampling_params: Any, **_: Any) -> AsyncIterator[Any]:
        self.asked.append(sampling_params)
        longest = min(N, sampling_params.max_tokens)
        for n in range(1, longest + 1):
            tokens = TOKENS[:n]
            kept = [{token: Mock(logprob=float(LOGP[i, token]))} for i, token in enumerate(tokens)]
            if getattr(sampling_params, "flat_logprobs", False):
                kept = columns_of(self.module, tokens, sampling_params.logprobs)
            output = SimpleNamespace(token_ids=tokens, logprobs=kept, finish_reason="stop")
            yield SimpleNamespace(outputs=[output], finished=n == longest, num_cached_tokens=0)


@pytest.fixture
def module() -> Iterator[Any]:
    with installed():
        from cppo_lab.cores.verl.rollout import vllm_server

        yield vllm_server


def server(module: Any, topk: int = K) -> Any:
    """verl's server with all it reads in `generate`, around the stand-in engine."""
    made = object.__new__(module.TopKServer)
    made.config = OmegaConf.create({
        "max_model_len": 128, "prompt_length": 16, "response_length": 64, "full_determinism": False,
        "logprobs_mode": "processed_logprobs", "enable_rollout_routing_replay": False, "mtp": None,
        "engine_kwargs": {"cppo_lab": {"topk": topk}, "vllm": {}},
    })  # fmt: skip
    made.model_config = SimpleNamespace(processor=None, lora_rank=0, lora={})
    made._disaggregation_role, made._pd_decode_peers = "null", []
    made._submission_paused, made._admitting, made.replica_rank, made.global_steps = False, 0, 0, 4
    made.engine = module.TopKEngine(Engine(module))
    return made


def test_columns_that_do_not_fit_the_tokens_are_refused(module: Any) -> None:
    columns = columns_of(module, TOKENS, K)
    for logprobs, tokens, message in (
        (columns, TOKENS[::-1], "do not begin with the sampled token"),
        (columns, TOKENS[1:], "for 30 tokens of 29"),
        ([{}] * N, TOKENS, "for None tokens of 30"),
    ):
        with pytest.raises(ValueError, match=message):
            module.Capture(K).take(SimpleNamespace(logprobs=logprobs, token_ids=tokens))
    with pytest.raises(ValueError, match="returned 1 log-probabilities for a token, 21 were requested"):
        module.Columns(4, K + 1).append(np.zeros((1, 1)), np.zeros((1, 1)))


def test_requests_at_once_keep_their_own_topk(module: Any) -> None:
    made = server(module)
    wanted = dict(TRAIN), dict(SAMPLING), TRAIN | {"cppo_topk": 7, "max_tokens": 5}

    async def three() -> list[Any]:
        return await asyncio.gather(*(made.generate([1, 2], one, str(i)) for i, one in enumerate(wanted)))

    first, second, third = asyncio.run(three())
    assert first.token_ids == TOKENS and first.stop_reason == "completed"
    np.testing.assert_allclose(first.log_probs, LOGP[range(N), TOKENS], rtol=1e-6)
    ids, logp = first.extra_fields[TOPK_IDS], first.extra_fields[TOPK_LOGP]
    np.testing.assert_array_equal(ids, LOGP.topk(K, -1).indices)
    np.testing.assert_array_equal(logp, LOGP.topk(K, -1).values.half())
    assert (ids.dtype, logp.dtype) == (np.int32, np.float16)
    assert first.extra_fields["global_steps"] == 4
    assert TOPK_IDS not in second.extra_fields and len(second.log_probs) == N
    assert third.extra_fields[TOPK_IDS].shape == (5, 7) and len(third.token_ids) == 5
    asked = made.engine.asked  # the engine behind stays in reach
    assert [one.logprobs for one in asked] == [K, 0, 7]
    assert (asked[0].flat_logprobs, asked[0].detokenize, asked[0].seed) == (True, False, 3)
    assert not hasattr(asked[1], "flat_logprobs")
    assert module.CAPTURE.get() is None


@pytest.mark.parametrize(
    "topk, given, expected", [(20, {}, None), (64, {}, 64), (64, {"max_logprobs": 80}, 80)]
)
def test_vllm_is_told_to_allow_the_topk(
    module: Any, topk: int, given: dict[str, int], expected: int | None
) -> None:
    server(module, topk)._preprocess_engine_kwargs(given)
    assert given.get("max_logprobs") == expected


def test_two_runs_at_once_keep_their_weights_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's end of each, and the rollout engine's as verl's extension of vLLM's worker names it."""
    # Ray takes half a minute.
    monkeypatch.setattr(core, "alone", lambda *arguments: contextlib.nullcontext({}))
    layout, sockets = compose(["core=verl", "model=tiny_qwen3"]).layout, set()
    for _ in range(2):
        with core.own_ray(layout) as ray_init, installed():
            name = ray_init["runtime_env"]["env_vars"][settings.SOCKET_VARIABLE]
            assert os.environ[settings.SOCKET_VARIABLE] == name and len(name) == 32
            # verl prints it into the run's log.
            assert name not in redacted(f"ray init kwargs: {ray_init}")
            settings.tell_engine()
            from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

            worker = SimpleNamespace(local_rank=0, model_runner=SimpleNamespace(vllm_config=None))
            handle = vLLMColocateWorkerExtension._get_zmq_handle(worker)
            assert handle == settings.socket_of_this_run(HANDLE)
            sockets.add(handle)
    assert len(sockets) == 2 and settings.SOCKET_VARIABLE not in os.environ


def test_other_addresses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="was not started by the verl core"):
        settings.socket_of_this_run(HANDLE)
    monkeypatch.setenv(settings.SOCKET_VARIABLE, "0" * 32)
    assert settings.socket_of_this_run(HANDLE) == HANDLE.replace("01000000", "0" * 32)
    with pytest.raises(RuntimeError, match="names no job"):
        settings.socket_of_this_run("ipc:///tmp/other.sock")
