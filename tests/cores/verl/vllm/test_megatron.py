"""Our loss on a real Megatron GPTModel with tensor parallelism, against whole logits in one process."""

from typing import Any

import pytest
import torch

from cppo_lab.cores.verl.loss import trust_region_loss
from tests.cores.verl.conftest import LOG, ran
from tests.cores.verl.test_logits import V, recorded, topk
from tests.cores.verl.vllm.megatron_ranks import MEASURE, RANKS
from tests.requirement import VLLM, VLLM_PYTHON

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    VLLM.demand()
    folder = tmp_path_factory.mktemp("megatron")
    assert ran(folder, "vllm.megatron_ranks", python=str(VLLM_PYTHON)) == 0, (folder / LOG).read_text()[
        -3000:
    ]
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def test_divergence_and_entropy_are_those_of_whole_logits(ranks: list[dict[str, Any]]) -> None:
    data, _ = recorded()
    logits = ranks[0]["logits"]
    assert logits.shape[1] == V
    expected = trust_region_loss(topk(MEASURE), data=data, student_logits=(logits * 1.0).unsqueeze(0))
    for rank in ranks:
        assert set(rank["outputs"]) == {"divergence", "policy_entropy"}
        for key, value in rank["outputs"].items():
            torch.testing.assert_close(value, expected[key][0], rtol=1e-5, atol=1e-6)
    assert float(expected["divergence"].max()) > 0.05


def test_verls_log_probabilities_and_their_gradient(ranks: list[dict[str, Any]]) -> None:
    first = ranks[0]
    whole = first["padded"][:, :-1].double().requires_grad_()
    logp = whole.log_softmax(-1).gather(-1, first["ids"][:, 1:, None])[..., 0]
    (logp * first["mask"][:, 1:]).sum().backward()
    for rank in ranks:
        torch.testing.assert_close(rank["logp"].double(), logp, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(rank["gradient"].double(), whole.grad, rtol=1e-5, atol=1e-6)
        assert rank["without_gradient"] == 0
