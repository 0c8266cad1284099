"""vLLM's own front end with our columns: what it gives verl for a batch of requests, and what it holds meanwhile."""

import json
from typing import Any

import pytest

from tests.cores.verl.conftest import LOG, ran
from tests.requirement import VLLM, VLLM_PYTHON

pytestmark = pytest.mark.slow
N = 12  # tokens of a response
EXACT = {"ids": True, "logp": True, "sampled": True}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    VLLM.demand()
    folder = tmp_path_factory.mktemp("front_end")
    assert ran(folder, "vllm.front_end", python=str(VLLM_PYTHON)) == 0, (folder / LOG).read_text()[-3000:]
    return json.loads((folder / "seen.json").read_text())


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
