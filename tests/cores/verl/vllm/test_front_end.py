"""vLLM's own front end with our columns: what it gives verl for a batch of requests, and what it holds meanwhile."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.requirement import VLLM, VLLM_PYTHON

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
N = 12  # tokens of a response
EXACT = {"ids": True, "logp": True, "sampled": True}


@pytest.fixture(scope="module")
def seen() -> Any:
    VLLM.demand()
    command = [VLLM_PYTHON, "-m", "tests.cores.verl.vllm.front_end"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_topk_arrives_as_the_engine_sent_it(seen: Any) -> None:
    """Also for a request with fewer columns than others of its batch, and of one that was aborted."""
    assert seen["training"] == seen["few"] == {"rows": N, **EXACT}
    assert seen["aborted"] == {"rows": 3, "finish": "abort", "outputs": 2, **EXACT}


def test_requests_of_others_are_as_before(seen: Any) -> None:
    of_vllm, ours = seen["validation"]
    assert ours == of_vllm and len(ours) == N
    assert [len(tokens) for tokens in seen["streamed"]] == [1] * N


def test_verl_gets_the_first_output_and_the_last(seen: Any) -> None:
    outputs = seen["outputs"]  # by vLLM, and with our columns
    assert outputs.pop("streamed") == [N, N]
    assert outputs == {name: [N, 2] for name in ("training", "few", "validation")}


def test_a_response_in_flight_holds_a_tenth(seen: Any) -> None:
    before, after = seen["bytes"]
    assert before > 1500 and after < 300
