"""Nothing that computes on a GPU mixes its tensors with the CPU's, checked without a GPU.

A `Lent` tensor says that it is on "cuda:0" and has its data on the CPU. An operation that takes one together with a CPU
tensor of one or more dimensions raises, as on a GPU; what it makes is lent, too. FakeTensor cannot be used: the rules
branch on values.
"""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from cppo_lab.cores.rule_loss import Diagnostics, ObservedTokens
from cppo_lab.maths import divergence
from cppo_lab.maths.mismatch import log_ratios, mismatch_sums
from cppo_lab.rules import RULES
from tests.cores.test_diagnostics import RULE
from tests.maths.maths_batches import CONSTANTS, apply, constants, random_batch

GPU = torch.device("cuda", 0)
DEVICE, IS_CUDA = Tensor.device.__get__, Tensor.is_cuda.__get__
MAY_MIX = ("copy_", "__getitem__", "__setitem__")  # copies between devices, and indices on the CPU


class Lent(Tensor):
    """Data of the CPU that is said to be on a GPU."""

    data_of: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, data: Tensor) -> "Lent":
        lent = Tensor._make_subclass(cls, torch.empty(0))
        lent.data_of = data
        return lent


class Gpu(TorchFunctionMode):
    """What is made on the GPU, moved there, or computed from what lies there, is lent."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        given = [value for value in tree_leaves((args, named)) if isinstance(value, Tensor)]
        # What is done in place has the same tensor as its result.
        same = {id(value.data_of): value for value in given if type(value) is Lent}
        if same and function in (DEVICE, IS_CUDA):
            return GPU if function == DEVICE else True
        name = getattr(function, "__name__", str(function))
        if same and name not in MAY_MIX and (mixed := [t for t in given if type(t) is not Lent and t.dim()]):
            raise RuntimeError(f"{name} mixes devices: {[tuple(t.shape) for t in mixed]} on the CPU")
        places = [torch.device(value).type for value in (*args, named.get("device")) if is_place(value)]
        args, named = tree_map(on_cpu, (tuple(args), named))
        result = function(*args, **named)
        if name in ("cpu", "numpy") or "cpu" in places or not (same or "cuda" in places):
            return result
        return tree_map(lambda value: same[id(value)] if id(value) in same else lent(value), result)


def is_place(value: object) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value in ("cpu", "cuda"))


def on_cpu(value: Any) -> Any:
    if type(value) is Lent:
        return value.data_of
    return torch.device("cpu") if is_place(value) else value


def lent(values: Any) -> Any:
    return tree_map(lambda value: Lent(value) if isinstance(value, Tensor) else value, values)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without autograd, which has no place for a tensor of this kind: its function is called as it would call it."""

    def call(*arguments: Any) -> Any:
        context = Mock(needs_input_grad=(True,))
        outputs = forward(context, *arguments)
        context.saved_tensors = context.save_for_backward.call_args.args
        gradients = [None if part is None else torch.ones_like(part) for part in outputs[:2]]
        assert on_gpu(divergence._LogProbs.backward(context, *gradients))
        return outputs

    forward = divergence._LogProbs.forward
    monkeypatch.setattr(divergence._LogProbs, "apply", call)
    with torch.no_grad(), Gpu():
        yield


def on_gpu(result: Any) -> bool:
    """Whether every tensor is; numbers without a dimension may lie anywhere."""
    return all(
        type(value) is Lent or not value.dim() for value in tree_leaves(result) if isinstance(value, Tensor)
    )


@pytest.mark.parametrize("rule", CONSTANTS)
def test_rules(rule: str) -> None:
    batch = random_batch(1, dtype=torch.float32)
    given = lent(constants(rule, batch))
    assert on_gpu(tuple(apply(rule, *lent(tuple(batch)), **given)))
    assert set(CONSTANTS) == set(RULES)


@pytest.mark.parametrize("convention", ["union", "replace_kth"])
@pytest.mark.parametrize("measure", ["tv", "kl"])
def test_from_logits(measure: str, convention: str) -> None:
    logits, mu = torch.randn(2, 16, 512, generator=torch.Generator().manual_seed(0))
    top, tokens = mu.log_softmax(-1).topk(5), torch.arange(16)
    both = top.indices.int(), top.values.half()
    neither = both[0][:, :0], both[1][:, :0]
    for recorded, topk in ((both, False), (both, True), (neither, False)):
        leaf, *of_mu = lent((logits.bfloat16(), tokens, mu[:, 0].clone(), *recorded))
        options = {"measure": measure, "convention": convention, "entropy": True, "topk_gradient": topk}
        assert on_gpu(divergence.logp_and_divergence(leaf, divergence.Recorded(*of_mu), **options))


def test_mismatch_and_diagnostics() -> None:
    logp, rollout_logp, advantages, valid, divergence = lent(tuple(random_batch(1, dtype=torch.float32)))
    assert on_gpu(mismatch_sums(log_ratios(logp, rollout_logp, divergence, valid)))
    diagnostics = Diagnostics(RULE, horizon=12)
    tokens = torch.arange(12, device=GPU).expand(valid.shape)
    seen = ObservedTokens(logp, rollout_logp, divergence, advantages, valid, tokens, rollout_logp)
    diagnostics.see(1, seen, lambda ids: [f"<{token}>" for token in ids])
    diagnostics.end_step()
    assert diagnostics.tables()["window"]["symbols"]
    assert not any(type(value) is Lent for value in tree_leaves(diagnostics.state()))


@pytest.mark.parametrize(
    "fault",
    [
        lambda x: x * torch.ones(3),
        lambda x: torch.cat([x, x.cpu()]),
    ],
)
def test_a_planted_fault_is_caught(fault: Callable[[Tensor], Tensor]) -> None:
    x = Lent(torch.ones(3))
    assert on_gpu([x * torch.ones((), dtype=torch.float64), x + torch.arange(3, device=x.device)])
    with pytest.raises(RuntimeError, match="mixes devices"):
        fault(x)
