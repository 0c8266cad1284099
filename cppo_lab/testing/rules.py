"""Conformance tests of a rule.

They need only the rule's record, and constants with which it drops, clips or down-weights some tokens of
`random_batch`:

    from acme_rules import ONE_SIDED
    from cppo_lab.testing import RuleTests

    class TestOneSided(RuleTests):
        rule = ONE_SIDED
        constants = {"delta": 0.1}

pytest collects the methods; without pytest, `check_rule` calls them all. They assert the invariants on which the cores
rely: a response has the same objective, gradient and statistics, however it is padded, packed or split into
micro-batches.
"""

import importlib.util
import math
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.testing import assert_close

from cppo_lab.maths.rules import AGGREGATIONS, aggregate
from cppo_lab.maths.tokens import RuleOutput, Tokens, common_stats, merge, summarise
from cppo_lab.rules import DIVERGENCE, DRIFT, ENTROPY, MINIBATCH, PERMUTATION, RESPONSE, Rule
from cppo_lab.testing import call_all

SEEDS = range(12)
# Vectorised exp and row sums may round differently depending on memory alignment.
ROUNDED: dict[str, Any] = {"rtol": 1e-14, "atol": 0}
CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


class TokenBatch(NamedTuple):
    """The arguments of a rule, in order; every tensor is [B, T]."""

    logp: Tensor
    rollout_logp: Tensor
    advantages: Tensor
    valid: Tensor
    divergence: Tensor


def random_batch(seed: int, rows: int = 5, width: int = 12, dtype: torch.dtype = torch.float64) -> TokenBatch:
    """Off-policy tokens, ragged lengths (0 and the full width included), some rows with A = 0."""
    generator = torch.Generator().manual_seed(seed)
    wide: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    logp = -3 * torch.rand(rows, width, **wide) - 0.1
    rollout_logp = logp - 0.6 * torch.randn(rows, width, **wide)
    advantages = torch.randn(rows, 1, **wide).expand(rows, width).clone()
    advantages[-1] = 0.0
    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    lengths[0] = width
    divergence = 0.2 * torch.rand(rows, width, **wide)
    valid = torch.arange(width) < lengths[:, None]
    return TokenBatch(
        logp.to(dtype), rollout_logp.to(dtype), advantages.to(dtype), valid, divergence.to(dtype)
    )


def random_permutation(valid: Tensor, seed: int) -> Tensor:
    """[B, T]: a fresh permutation of each response's positions; padding stays in place."""
    generator = torch.Generator().manual_seed(seed)
    permutation = torch.arange(valid.shape[1]).repeat(len(valid), 1)
    for row, length in enumerate(valid.sum(1).tolist()):
        permutation[row, :length] = torch.randperm(length, generator=generator)
    return permutation


def padded(batch: TokenBatch, extra: int, seed: int) -> TokenBatch:
    """The same tokens with `extra` more columns and large finite garbage at every padded position."""
    generator = torch.Generator().manual_seed(seed)
    valid = torch.nn.functional.pad(batch.valid, (0, extra))
    fields = {}
    for name in ("logp", "rollout_logp", "advantages", "divergence"):
        rubbish = 1e30 * torch.randn(valid.shape, generator=generator, dtype=torch.float64)
        values = torch.nn.functional.pad(getattr(batch, name), (0, extra))
        fields[name] = torch.where(valid, values, rubbish)
    return TokenBatch(valid=valid, **fields)


def check_rule(rule: Rule, constants: Mapping[str, Any], **claims: bool) -> None:
    """All tests of `RuleTests`, without pytest; `claims` are its other attributes.

    Raises AssertionError.
    """
    call_all(RuleTests, rule=rule, constants=constants, **claims)


class RuleTests:
    """Tests of `rule` with `constants`.

    on_policy_identity: on policy (rho = 1, D = 0) the gradient in log pi is the advantage.
    pulls_back: a term of the objective has a gradient even where `keep` or A is 0.

    A rule that needs the whole minibatch is not tested on parts of it.
    """

    rule: Rule
    constants: Mapping[str, Any]
    on_policy_identity: bool = True
    pulls_back: bool = False

    def test_the_function_takes_the_constants(self) -> None:
        """The function accepts all constants, and none is missing."""
        self.rule.check(self.constants, "kl")

    def test_the_constants_make_a_difference(self) -> None:
        """Otherwise the other tests would not exercise the rule."""
        outputs = [self._call(random_batch(seed)) for seed in SEEDS]
        changed = sum(float(output.stats["masked"]) for output in outputs)
        clipped = sum(float(output.stats.get("clipped", torch.zeros(()))) for output in outputs)
        assert changed + clipped > 0, f"{dict(self.constants)} drop, clip and weaken no token: tighten them"

    def test_shapes_and_dtypes(self) -> None:
        """Outputs are [B, T] in at least float32, gradients have the dtype of logp, and weights are in [0, 1]."""
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            batch = random_batch(5, dtype=dtype)
            output, gradient = self._differentiated(batch)
            wide = torch.float32 if dtype == torch.bfloat16 else dtype
            for tensor in (output.objective, output.keep):
                assert tensor.shape == batch.valid.shape, f"shape {list(tensor.shape)}"
                assert tensor.dtype == wide, f"{tensor.dtype} from {dtype}"
            assert gradient.dtype == dtype, f"a gradient in {gradient.dtype} for {dtype}"
            assert bool(((output.keep >= 0) & (output.keep <= 1)).all()), "keep leaves [0, 1]"
            assert all(value.ndim == 0 for value in output.stats.values()), "statistics are scalars"

    def test_gradients_are_finite_and_zero_where_there_is_nothing_to_learn(self) -> None:
        """Gradients are 0 at padding, where A = 0 and where `keep` is 0, unless a term pulls back there."""
        for seed in SEEDS:
            batch = random_batch(seed)
            output, gradient = self._differentiated(batch)
            assert bool(output.objective.isfinite().all() and gradient.isfinite().all()), "not finite"
            padding = ~batch.valid
            assert bool((gradient[padding] == 0).all()), "padding has a gradient"
            if not self.pulls_back:
                assert bool((gradient[batch.advantages == 0] == 0).all()), "a gradient of nothing"
                assert bool((gradient[output.keep == 0] == 0).all()), "a masked token has a gradient"
            assert not output.objective[padding].any() and not output.keep[padding].any(), "padding counts"

    def test_keep_and_statistics_say_what_is_learned(self) -> None:
        """A kept token with A != 0 has a gradient, the sums that every rule reports are those of `keep`, and a token
        that is dropped or weakened has failed a test, if there are any.
        """
        for seed in SEEDS:
            batch = random_batch(seed)
            output, gradient = self._differentiated(batch)
            tokens = Tokens(*batch, **self._drawn(batch))
            if not self.pulls_back:
                silent = tokens.active & (output.keep > 0) & (gradient == 0)
                assert not silent.any(), "a kept token has no gradient"
            for name, value in common_stats(tokens, output.keep).items():
                assert name in output.stats, f"the statistic {name} is missing: see maths.tokens.rule_output"
                assert_close(output.stats[name], value, msg=f"not {name} of keep", **CLOSE)
            failed = torch.zeros_like(batch.valid)
            for test in output.tests.values():
                failed |= test
            if output.tests:
                assert not (tokens.active & (output.keep < 1) & ~failed).any(), "dropped by no test"

    def test_a_batch_without_tokens_gives_zeros(self) -> None:
        """Some ranks and micro-batches hold padding alone."""
        batch = random_batch(3)
        batch = batch._replace(valid=torch.zeros_like(batch.valid))
        output, gradient = self._differentiated(batch)
        assert not output.objective.any() and not output.keep.any() and not gradient.any()
        assert all(number == 0 for number in summarise(output.stats).values()), "statistics of nothing"

    def test_a_call_leaves_nothing_behind(self) -> None:
        """Tokens and torch's random numbers stay as they are; an earlier batch, of another run in the same process,
        does not matter: the rule agrees with itself imported afresh, where that is possible.
        """
        for seed in SEEDS:
            batch = random_batch(seed)
            tokens = Tokens(*batch, **self._drawn(batch))
            torch.rand(1)  # else a rule that seeds them would leave the state that its last call left
            drawing, values = torch.get_rng_state(), _tensors(tokens)
            output = self.rule.apply(tokens, **self.constants)
            assert torch.equal(torch.get_rng_state(), drawing), "it uses torch's global random numbers"
            for name, value in _tensors(tokens).items():
                assert torch.equal(value, values[name]), f"it changes tokens.{name}"
            if (fresh := _imported_afresh(self.rule)) is not None:
                other = fresh(Tokens(*batch, **self._drawn(batch)), **self.constants)
                for here, there in zip(output[:2], other[:2], strict=True):
                    assert torch.allclose(here, there, **ROUNDED), "it depends on earlier calls"

    def test_only_logp_carries_a_gradient(self) -> None:
        """Masks, coefficients, divergences and statistics are detached."""
        batch = random_batch(6)
        names = ("rollout_logp", "advantages", "divergence")
        inputs = {name: getattr(batch, name).clone().requires_grad_() for name in names}
        logp = batch.logp.clone().requires_grad_()
        output = self._call(batch._replace(logp=logp, **inputs))
        gradients = torch.autograd.grad(output.objective.sum(), list(inputs.values()), allow_unused=True)
        assert all(gradient is None for gradient in gradients), (
            "the objective has a gradient in more than logp"
        )
        assert not output.keep.requires_grad, "keep carries a gradient"
        assert not any(value.requires_grad for value in output.stats.values()), "statistics carry a gradient"

    def test_on_policy_gradient_is_the_advantage(self) -> None:
        """If rollout policy and current policy are equal, the gradient is the policy gradient."""
        if not self.on_policy_identity:
            return
        batch = random_batch(4)
        same = batch._replace(rollout_logp=batch.logp.clone(), divergence=torch.zeros_like(batch.divergence))
        _, gradient = self._differentiated(same)
        assert_close(gradient, batch.advantages * batch.valid, **CLOSE)

    def test_padding_does_not_matter(self) -> None:
        """Additional columns change nothing, whatever they contain."""
        for seed in SEEDS:
            batch = random_batch(seed)
            wide = padded(batch, seed % 5, seed)
            drawn = self._drawn(batch)
            wider = {
                key: torch.nn.functional.pad(value, (0, seed % 5), value=-7) for key, value in drawn.items()
            }
            plain, output = self._call(batch, **drawn), self._call(wide, **wider)
            width = batch.valid.shape[1]
            for padded_values, values in zip(output[:2], plain[:2], strict=True):
                assert_close(padded_values[:, :width], values, **ROUNDED)
                assert not padded_values[:, width:].any()
            assert_close(output.stats, plain.stats, **CLOSE)
            for mode in AGGREGATIONS:
                horizon = width if mode == "seq-mean-token-sum-norm" else None
                assert_close(
                    aggregate(output.objective, wide.valid, mode, horizon=horizon),
                    aggregate(plain.objective, batch.valid, mode, horizon=horizon),
                    **CLOSE,
                )

    def test_micro_batches_make_the_whole(self) -> None:
        """A response does not depend on the others, their order or their presence."""
        if MINIBATCH in self.rule.needs:
            return
        for seed in SEEDS:
            batch = random_batch(seed)
            drawn = self._drawn(batch)
            whole = self._call(batch, **drawn)
            order = torch.randperm(len(batch.valid), generator=torch.Generator().manual_seed(seed))
            parts = []
            for index in (order, order[:2], order[2:]):
                rows = TokenBatch(*(tensor[index] for tensor in batch))
                part = self._call(rows, **{key: value[index] for key, value in drawn.items()})
                assert_close(part[:2], (whole.objective[index], whole.keep[index]), **ROUNDED)
                parts.append(part.stats)
            assert_close(summarise(merge(parts[1:])), summarise(whole.stats), **CLOSE)

    def test_packed_is_padded(self) -> None:
        """`Tokens.packed` gives the same numbers, including gradients."""
        for seed in SEEDS:
            batch = random_batch(seed)
            drawn = self._drawn(batch)
            plain, gradient = self._differentiated(batch, **drawn)
            mask = batch.valid
            ends = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
            values = {
                name: value[mask] for name, value in (batch._asdict() | drawn).items() if name != "valid"
            }
            values["logp"].requires_grad_()
            tokens = Tokens.packed(ends, **values)
            output = self.rule.apply(tokens, **self.constants)
            (packed,) = torch.autograd.grad(output.objective.sum(), values["logp"])
            assert_close(output.keep[tokens.valid], plain.keep[mask], rtol=1e-13, atol=0)
            assert_close(output.objective[tokens.valid], plain.objective[mask], **CLOSE)
            assert_close(packed, gradient[mask], **CLOSE)
            assert_close(summarise(output.stats), summarise(plain.stats), **CLOSE)

    def test_needs_are_declared(self) -> None:
        """DIVERGENCE is declared if it is required; without RESPONSE, the order of a response's tokens does not
        matter.
        """
        batch = random_batch(7)
        refused = False
        try:
            self.rule.apply(Tokens(*batch[:4], **self._drawn(batch)), **self.constants)
        except ValueError:
            refused = True
        declared = DIVERGENCE in self.rule.needs
        assert refused == declared, f"without a divergence: refused={refused}, declared={declared}"
        if RESPONSE in self.rule.needs:
            return
        order = random_permutation(batch.valid, 1)
        moved = TokenBatch(*(tensor.gather(1, order) for tensor in batch))
        drawn = {key: value.gather(1, order) for key, value in self._drawn(batch).items()}
        for here, there in zip(self._call(batch)[:2], self._call(moved, **drawn)[:2], strict=True):
            assert_close(here.gather(1, order), there, **ROUNDED)

    def test_a_centred_rule_weighs_each_token_alone(self) -> None:
        """If the loss can be centred, the log-ratios of other tokens do not enter a token's gradient."""
        if self.rule.centering_fault:
            return
        batch, other = random_batch(9), random_batch(10)
        first = torch.arange(batch.valid.shape[1]) == 0
        changed = torch.where(first, batch.rollout_logp, other.rollout_logp)
        (_, gradient), (_, same) = (
            self._differentiated(batch._replace(rollout_logp=values))
            for values in (batch.rollout_logp, changed)
        )
        assert_close(gradient[:, 0], same[:, 0], **CLOSE)

    def test_unusable_arguments_are_refused(self) -> None:
        """A ValueError is raised for NaN at a valid token, mismatched shapes, and padding before a token."""
        batch = random_batch(8)
        hole = batch.valid.clone()
        hole[0, 3] = False
        broken = batch.logp.clone()
        broken[0, 2] = math.nan
        for change in ({"logp": broken}, {"advantages": batch.advantages[:, :1]}, {"valid": hole}):
            try:
                self._call(batch._replace(**change), **self._drawn(batch))
            except ValueError:
                continue
            raise AssertionError(f"{next(iter(change))} that cannot be used is not refused")

    def _drawn(self, batch: TokenBatch) -> dict[str, Tensor]:
        """What the rule needs besides the batch, at random."""
        generator = torch.Generator().manual_seed(11)
        given = {
            PERMUTATION: random_permutation(batch.valid, 0),
            DRIFT: torch.randn(batch.valid.shape, generator=generator, dtype=torch.float64),
            ENTROPY: 2 * torch.rand(batch.valid.shape, generator=generator, dtype=torch.float64),
        }
        return {name: values for name, values in given.items() if name in self.rule.needs}

    def _call(self, batch: TokenBatch, **drawn: Tensor) -> RuleOutput:
        tokens = Tokens(*batch, **(drawn or self._drawn(batch)))
        before = _process()
        output: RuleOutput = self.rule.apply(tokens, **self.constants)
        after = _process()
        assert not (changed := [name for name in after if after[name] != before[name]]), (
            f"it changes {changed}"
        )
        return output

    def _differentiated(self, batch: TokenBatch, **drawn: Tensor) -> tuple[RuleOutput, Tensor]:
        """The output, and d sum(objective) / d logp [B, T]."""
        logp = batch.logp.clone().requires_grad_()
        output = self._call(batch._replace(logp=logp), **drawn)
        return output, torch.autograd.grad(output.objective.sum(), logp)[0]


def _tensors(tokens: Tokens) -> dict[str, Tensor]:
    """Copies of the tensors of `tokens` by their names."""
    return {name: value.clone() for name, value in vars(tokens).items() if isinstance(value, Tensor)}


def _process() -> dict[str, object]:
    """What a rule must not change of the process, which the run and other runs go on in."""
    return {
        "the working folder": Path.cwd(),
        "os.environ": dict(os.environ),
        "the state of random": random.getstate(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's threads": torch.get_num_threads(),
        "whether torch records gradients": torch.is_grad_enabled(),
    }


def _imported_afresh(rule: Rule) -> Callable[..., RuleOutput] | None:
    """The rule from another copy of its module, without what calls have left in the first; None: no module has it
    under its name, such as a function within a function, a partial, or a function of the script that runs.
    """
    function = rule.function
    module, name = (
        function.split(":")
        if isinstance(function, str)
        else (getattr(function, "__module__", ""), getattr(function, "__qualname__", ""))
    )
    if module == "__main__" or not name.isidentifier():
        return None
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.loader is not None, f"{module} is not found"
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    loaded: Callable[..., RuleOutput] = replace(rule, function=getattr(copy, name)).apply
    return loaded
