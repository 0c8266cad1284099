"""From logits on packed rows to what each response token needs, against loops over single tokens."""

import itertools
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import logprobs_from_logits
from verl.workers.utils.padding import no_padding_2_padding

from cppo_lab.cores.verl.logits import kernel_fault, kernels_serve, packed_columns
from cppo_lab.cores.verl.loss import trust_region_loss
from cppo_lab.maths import divergence
from cppo_lab.maths.rules import aggregate, centred, get_rule
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import KL, RULES
from tests.conftest import user_error
from tests.cores.verl.recorded import actor, nested
from tests.maths.maths_batches import CONSTANTS
from tests.requirement import TRITON

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
V, K = 50, 6
PROMPTS, LENGTHS = [4, 1, 7, 2], [5, 3, 1, 8]


def recorded(
    seed: int = 0, noise: float = 0.5, wire: torch.dtype = torch.float32, k: int = K
) -> tuple[Any, Tensor]:
    """A micro-batch whose mu recorded its Top-K, and pi's logits [N, V] at all packed rows, float32 leaf.

    mu's logits differ from pi's by `noise`.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, packed = [], []
    for prompt, length in zip(PROMPTS, LENGTHS, strict=True):
        packed.append(logits := 2 * torch.randn(prompt + length, V, generator=generator))
        mu = logits[prompt - 1 : -1] + noise * torch.randn(length, V, generator=generator)
        logp = mu.double().log_softmax(-1).float()  # another arithmetic than that of the maths
        responses = torch.multinomial(logp.exp(), 1, generator=generator)[:, 0]
        prompts = torch.randint(V, (prompt,), generator=generator)
        top = logp.topk(k)
        rows.append({
            "prompts": prompts, "responses": responses, "input_ids": torch.cat([prompts, responses]),
            "old_log_probs": logp.gather(-1, responses[:, None])[:, 0],
            "rollout_topk_ids": top.indices.int(), "rollout_topk_logp": top.values.to(wire),
        })  # fmt: skip
    data = tu.get_tensordict({name: nested([row[name] for row in rows]) for name in rows[0]}, {})
    tu.assign_non_tensor(data, distillation_use_topk=True, distillation_only=True)
    return data, torch.cat(packed).requires_grad_()


def graded(data: Any) -> list[Tensor]:
    """Make `data` a whole minibatch with the advantages that are returned, of both signs."""
    lengths = data["responses"].offsets().diff().tolist()
    advantages = [torch.full((n,), (-1.0) ** row * (row + 1)) for row, n in enumerate(lengths)]
    data["advantages"], data["response_mask"] = nested(advantages), nested([torch.ones(n) for n in lengths])
    data["minibatch_responses"] = torch.full((len(lengths), 1), float(len(lengths)))
    data["weight_permutation"] = nested([torch.arange(n - 1, -1, -1).int() for n in lengths])
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=sum(lengths), global_batch_size=len(lengths))
    return advantages


def of_a_layer(leaf: Tensor) -> Tensor:
    """[1, N, V] that no one else holds, as the output of a language model's head: a gradient may overwrite it."""
    return (leaf * 1.0).unsqueeze(0)


def processed(config: Any, data: Any, logits: Tensor) -> dict[str, Tensor]:
    """The processor's outputs on response tokens [B, T], on the way on which verl takes them."""
    outputs = trust_region_loss(config, data=data, student_logits=of_a_layer(logits))
    assert all(value.shape == (1, len(logits)) for value in outputs.values())
    return {key: no_padding_2_padding(value.squeeze(0), data).detach() for key, value in outputs.items()}


def topk(measure: str = "tv", k: int = K, convention: str = "union") -> Any:
    return actor("dppo", {"delta": 0.1}, estimator="topk", k=k, convention=convention, measure=measure)


def at_tokens(data: Any, logits: Tensor) -> tuple[Tensor, divergence.Recorded]:
    """Of every response token: log pi [n, V], from the row before its own, and what was recorded of mu."""
    rows, at = [], 0
    for prompt, length in zip(PROMPTS, LENGTHS, strict=True):
        rows += range(at + prompt - 1, at + prompt + length - 1)
        at += prompt + length
    names = ("rollout_topk_ids", "rollout_topk_logp", "responses", "old_log_probs")
    ids, head, sampled, logp = (data[name].values() for name in names)
    mu = divergence.Recorded(sampled, logp.double(), ids.long(), head.double())
    return logits[rows].double().log_softmax(-1), mu


@pytest.mark.parametrize(
    "convention, wire", [("union", torch.float16), ("replace_kth", torch.float32), (None, torch.float32)]
)
@pytest.mark.parametrize("measure", ["tv", "kl"])
def test_every_token_against_its_own_row(measure: str, convention: str | None, wire: torch.dtype) -> None:
    """With mu's Top-K, or the exact divergence from its whole vocabulary."""
    data, logits = recorded(k=K if convention else V, wire=wire)
    exact = actor("dppo", {"delta": 0.1}, estimator="exact", measure=measure)
    outputs = processed(topk(measure, convention=convention) if convention else exact, data, logits)
    pi, mu = at_tokens(data, logits.detach())
    if convention:
        d = divergence.topk(mu, pi, measure=measure, convention=convention)
    else:
        d = divergence.exact(torch.empty_like(pi).scatter_(-1, mu.topk_ids, mu.topk_logp), pi, measure)
    logp, entropy = pi.gather(-1, mu.tokens[:, None])[:, 0], torch.special.entr(pi.exp()).sum(-1)
    valid = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    seen = {name: values[valid].double() for name, values in outputs.items()}
    expected = {"log_probs": logp, "divergence": d, "policy_entropy": entropy}
    torch.testing.assert_close(seen, expected, rtol=1e-5, atol=2e-6)
    assert 0.01 < float(d.max()) < 1 or measure == "kl"


@pytest.mark.parametrize("k", [K, V])
@pytest.mark.parametrize(
    "rule, centering", [("cispo", False), ("cispo", True), ("estr", False), ("estr", True), ("pdm", False)]
)
def test_both_phases_give_the_gradient_of_the_logits_that_the_maths_give(
    rule: str, k: int, centering: bool
) -> None:
    """From the engine's logits to the loss and back, with what a loss asks of tokens that were not sampled."""
    data, logits = recorded(k=k)
    advantages = graded(data)
    constants = (
        CONSTANTS[rule] | {"pdm": {"delta": 0.05}, "estr": {"tau": 0.02}, "cispo": {"clip_high": 0.1}}[rule]
    )
    config = actor(
        rule, constants, estimator="topk", k=k, convention="union", measure="kl", centering=centering
    )
    outputs = trust_region_loss(config, data=data, student_logits=of_a_layer(logits))
    packed = {
        key: torch.nested.nested_tensor_from_jagged(value[0], data["input_ids"].offsets())
        for key, value in outputs.items()
    }
    loss, _ = trust_region_loss(config, packed, data)
    loss.backward()
    gradient, logits.grad = logits.grad, None

    pi, mu = at_tokens(data, logits)
    logp, topk_pi = pi.gather(-1, mu.tokens[:, None])[:, 0], pi.gather(-1, mu.topk_ids)
    at = mu, topk_pi, logp
    values = {
        "logp": logp, "rollout_logp": mu.logp, "advantages": torch.cat(advantages).double(),
        "divergence": divergence.topk_from_logp(*at, measure="kl"), "drift": divergence.drift(*at, measure="kl"),
        "rollout_entropy": divergence.topk_entropy(mu.topk_logp),
    }  # fmt: skip
    values |= {"topk_ids": mu.topk_ids, "topk_logp": mu.topk_logp, "topk_pi_logp": topk_pi}
    tokens = Tokens.packed(data["responses"].offsets(), **values)
    apply = partial(centred, get_rule(rule)) if centering else get_rule(rule)
    output = apply(tokens, **constants)
    touched = output.stats["masked"] + output.stats.get("clipped", 0)
    assert float(output.keep.sum()) > 0 and float(touched) > 0
    expected = -aggregate(output.objective, tokens.valid, "token-mean")
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-6)
    torch.testing.assert_close(gradient, logits.grad, rtol=1e-3, atol=1e-6)


def test_without_top_k() -> None:
    data, logits = recorded()
    del data["rollout_topk_ids"], data["rollout_topk_logp"]
    outputs = processed(actor("dppo", {"delta": 0.1}, estimator="sample", measure="k3"), data, logits)
    assert set(outputs) == {"log_probs", "policy_entropy"}


def test_on_policy_float16_leaves_a_divergence_of_1e_4_per_nat() -> None:
    """It rounds p by p |log p| 2^-11."""
    parts = [
        processed(topk(k=20), *recorded(seed, noise=0.0, wire=torch.float16, k=20)) for seed in range(40)
    ]
    d, entropy = (sum(float(part[key].sum()) for part in parts) for key in ("divergence", "policy_entropy"))
    assert 0.8e-4 < d / entropy < 1.2e-4


def test_the_gradient_may_take_the_logits_place() -> None:
    """Only where verl reads them no more: `distillation_only`, and no entropy of its own.

    Log-probabilities and gradient are verl's, on every packed row, those of prompts too.
    """
    weight = torch.randn(sum(PROMPTS + LENGTHS), generator=torch.Generator().manual_seed(1))
    for flags, reused in (
        ({"distillation_only": True}, True),
        ({"distillation_only": False}, False),
        ({"distillation_only": True, "calculate_entropy": True}, False),
        ({"distillation_only": True, "calculate_sum_pi_squared": True}, False),
    ):
        data, leaf = recorded()
        tu.assign_non_tensor(data, **flags)
        logits = leaf * 1.0
        before = logits.detach().clone()
        outputs = trust_region_loss(topk(), data=data, student_logits=logits.unsqueeze(0))
        assert not outputs["divergence"].requires_grad and not outputs["policy_entropy"].requires_grad
        (outputs["log_probs"][0] * weight).sum().backward()
        assert torch.equal(logits.detach(), before) != reused
        whole = before.requires_grad_()
        expected = logprobs_from_logits(whole * 1.0, torch.roll(data["input_ids"].values(), -1))
        (expected * weight).sum().backward()
        torch.testing.assert_close(outputs["log_probs"][0], expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(leaf.grad, whole.grad, rtol=1e-5, atol=1e-6)


def test_rows_of_the_prompt_too_many() -> None:
    data, _ = recorded()
    data["rollout_topk_ids"] = nested([torch.zeros(n, K).int() for n in (9, 4, 8, 10)])
    with user_error(r"rollout_topk_ids has \[9, 4, 8, 10\] rows"):
        packed_columns(data, True)


def off(function: Any, factor: float) -> Any:
    """A kernel's wrapper whose first result, or the gradient that it writes, is off by a factor."""

    def wrong(*given: Any) -> Any:
        result = function(*given)
        (given[3] if result is None else result[0]).mul_(factor)
        return result

    return wrong


def off_at_the_topk(write: Any) -> Any:
    """A kernel's wrapper that leaves out the gradient at the last of mu's Top-K."""

    def wrong(logits: Tensor, ids: Tensor, factor: Tensor, *given: Any) -> Any:
        return write(logits, ids[:, :5].contiguous(), factor[:, :5].contiguous(), *given)

    return wrong


def test_kernels_are_used_where_they_agree_with_the_eager_code(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    TRITON.demand()
    from cppo_lab.maths import logits_kernel as kernels

    cpu = torch.device("cpu")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert kernel_fault(cpu, dtype, 5003) == ""
    apart = "AssertionError: Tensor-likes are not close!"
    error = RuntimeError("no ptxas\nfor this GPU")
    for name, planted, reason in (
        ("read", off(kernels.read, 1.01), apart),
        ("write_gradient", off(kernels.write_gradient, 1.1), apart),
        ("write_gradient", off_at_the_topk(kernels.write_gradient), apart),
        ("_launch", Mock(side_effect=error), "RuntimeError: no ptxas for this GPU"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(kernels, name, planted)
            assert kernel_fault(cpu, torch.bfloat16, 5003).startswith(reason)
    monkeypatch.setattr("cppo_lab.cores.verl.logits.CODE", recorded_code := {})
    assert not kernels_serve(cpu, torch.bfloat16, 5003)
    for vocabulary, fault in ((1, ""), (2, "RuntimeError: no ptxas")):
        monkeypatch.setattr("cppo_lab.cores.verl.logits.kernel_fault", lambda *_, fault=fault: fault)
        for _ in range(2):
            assert kernels_serve(torch.device("cuda", 0), torch.bfloat16, vocabulary) is not bool(fault)
    warned = capfd.readouterr().err
    assert warned == "the loss takes torch.bfloat16 logits by the eager code: RuntimeError: no ptxas\n"
    code = ["eager code: no GPU", "Triton's kernels", "eager code: RuntimeError: no ptxas"]
    assert list(recorded_code.values()) == code


def test_the_first_phase_by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the same outputs and gradient."""
    TRITON.demand()
    results = []
    for served in (False, True):
        monkeypatch.setattr("cppo_lab.cores.verl.logits.kernels_serve", lambda *_, served=served: served)
        data, leaf = recorded()
        outputs = trust_region_loss(topk(), data=data, student_logits=of_a_layer(leaf))
        outputs["log_probs"].sum().backward()
        results.append([*(value.detach() for value in outputs.values()), leaf.grad])
    assert not torch.equal(results[0][-1], results[1][-1])  # other code
    for eager, kernels in zip(*results, strict=True):
        torch.testing.assert_close(kernels, eager, rtol=1e-5, atol=1e-6)


def test_autocast_changes_neither_phase_of_any_rule() -> None:
    """verl's engine calls both within it. CUDA's list of operators is another: the GPU kit runs the rules there."""
    for (rule, constants), centering in itertools.product(CONSTANTS.items(), (False, True)):
        if centering and RULES[rule].centering_fault:
            continue
        kind = {"measure": "kl" if KL in RULES[rule].needs else "tv", "centering": centering}
        config = actor(rule, constants, estimator="topk", k=K, convention="union", **kind)
        data, logits = recorded()
        graded(data)
        results = []
        for enabled in (False, True):
            leaf = logits.detach().bfloat16().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                outputs = trust_region_loss(config, data=data, student_logits=of_a_layer(leaf))
                given = {name: value.squeeze(0) for name, value in outputs.items()}
                loss, metrics = trust_region_loss(config, given, data)
            loss.backward()
            numbers = torch.tensor([metric.values for metric in metrics.values()], dtype=torch.float64)
            results.append((*given.values(), loss, numbers, leaf.grad))
        for outside, inside in zip(*results, strict=True):
            assert inside.dtype == outside.dtype and torch.equal(inside, outside), rule
        assert float(results[0][-1].abs().sum()) > 0, rule
