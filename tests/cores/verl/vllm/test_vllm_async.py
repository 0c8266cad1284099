"""`rollout.mode=async` in verl's own trainer with a real vLLM, whose requests are aborted and asked for again."""

from pathlib import Path

import pytest

from tests.cores.verl.test_async import Runs, check_pieces
from tests.requirement import VLLM, VLLM_PYTHON

pytestmark = [pytest.mark.verl, pytest.mark.slow]


def test_log_mu_and_topk_are_those_of_the_policy_that_each_token_names(tmp_path: Path) -> None:
    VLLM.demand()
    runs = Runs(tmp_path, "layout=cpu_vllm", "model.architecture.head_dim=32", python=str(VLLM_PYTHON))
    check_pieces(runs.eager, tmp_path / "eager")
