"""`rollout.staleness` in verl's own trainer: from which policy it samples and validates, against the embedded core.

The runs are those of `stale`.
"""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from cppo_lab.cores.verl.worker import TrustRegionWorker
from cppo_lab.spec import RuleSpec
from tests.conftest import user_error
from tests.cores.test_diagnostics import watched
from tests.cores.verl.conftest import OnRay


def test_a_copy_comes_back_bit_for_bit_with_tied_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what a checkpoint should have had the run ends at once."""
    monkeypatch.setattr("cppo_lab.cores.verl.worker.get_torch_device", Mock())
    model = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3, bias=False) for name in "ab"})
    model["b"].weight = model["a"].weight
    worker = object.__new__(TrustRegionWorker)
    worker.__dict__.update(
        _policies={}, _rank=0, _world_size=1, actor=SimpleNamespace(engine=SimpleNamespace(module=model))
    )
    weights = []
    for step in range(4):
        weights.append(model["a"].weight.detach().clone())
        worker.keep_policy(step, 2)
        assert list(worker._policies) == list(range(max(0, step - 2), step + 1))
        assert all(len(shards) == 1 for shards in worker._policies.values())
        model["a"].weight.data /= 3
    for step in (1, 3, 2):
        worker.use_policy(step)
        assert torch.equal(model["b"].weight, weights[step])
    del worker._policies[2]
    with user_error(r"step 4 lacks extra_policies_world_size_1_rank_0.pt .* steps \[2\], .*=2"):
        worker.keep_policy(4, 2)


@pytest.mark.parametrize(
    "data_rank, has_outputs, traces", [(0, True, True), (0, False, False), (1, True, False)]
)
def test_tokens_are_traced_where_the_loss_is(data_rank: int, has_outputs: bool, traces: bool) -> None:
    """With a pipeline, that is not the first process."""
    engine = SimpleNamespace(
        get_data_parallel_rank=lambda: data_rank, is_mp_src_rank_with_outputs=lambda: has_outputs
    )
    worker = object.__new__(TrustRegionWorker)
    config = SimpleNamespace(model_config=SimpleNamespace(tokenizer=None))
    worker.__dict__.update(
        _rank=1, actor=SimpleNamespace(engine=engine), actor_config=config, _watched_step=1
    )
    worker.start_diagnostics(RuleSpec(name="grpo"), 6, None)
    worker._watch(watched([3]))
    worker.diagnostics.end_step()
    read = worker.read_diagnostics()
    assert (read is not None) == traces
    assert read is None or read[0]["positions"]["tokens"] == [1, 1, 1]


@pytest.mark.slow
def test_runs_in_verls_own_trainer(on_ray: OnRay) -> None:
    """What `stale` asserts of them."""
    on_ray.seen("stale")
