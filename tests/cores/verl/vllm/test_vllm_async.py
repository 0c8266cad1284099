"""`rollout.mode=async` with a real vLLM, whose requests are aborted by new weights and continued."""

from pathlib import Path

import pytest

from tests.cores.verl.test_async_runs import attempt, check_pieces
from tests.requirement import VLLM, VLLM_PYTHON

pytestmark = pytest.mark.slow


def test_pieces_of_an_aborted_response_are_those_of_the_weights_that_they_name(tmp_path: Path) -> None:
    VLLM.demand()
    attempt(tmp_path, "layout=cpu_vllm", "model.architecture.head_dim=32", python=str(VLLM_PYTHON))
    check_pieces(tmp_path)
