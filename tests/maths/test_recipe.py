"""The two readings of the method, recipe=paper and recipe=authors, against loops and against each other."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cppo_lab.maths.divergence import binary
from cppo_lab.maths.rules import aggregate
from cppo_lab.sweep.compose import compose
from tests.maths.maths_batches import CONSTANTS, apply, constants, differentiated, random_batch
from tests.oracles.authors import authors_loss

WIDTH = 24
CAPPED = ("dppo", "pdm", "cppo", "cppo_soft", "trm_max_avg")


def row(*pairs: tuple[float, float]) -> tuple[list[float], list[float]]:
    """(log pi, log mu) of a response from probabilities (mu, pi)."""
    return [math.log(pi) for _, pi in pairs], [math.log(mu) for mu, _ in pairs]


ADVERSARIAL = {
    "a ratio beyond the cap": row((0.001, 0.05), (0.5, 0.6), (1e-6, 0.1)),
    "ratios beyond the clamp, both ways": ([-0.1, -60.0, -0.5], [-60.0, -0.1, -0.5]),
    "a ratio that overflows": ([-0.1, -1.0], [-800.0, -1.2]),
    "no drift at all": row(*[(0.3, 0.3)] * 5),
    "the first token spends the whole budget": row((0.1, 0.9), *[(0.5, 0.53)] * 10),
    "a quiet prefix, one late leap": row(*[(0.5, 0.501)] * 20, (0.2, 0.6)),
    "the quantile hits its cap": row(*[(0.3, 0.7)] * WIDTH),
    "a budget between 2 and 5 times its floor": row(*[(0.3, 0.34)] * WIDTH),
    "a budget that depends on the quantile": row(*[(0.3, 0.345), *[(0.3, 0.32)] * 3] * 6),
    "a last token that only the padded weight drops": row(*[(0.5, 0.5)] * 6, (0.5, 0.56)),
    "one token": row((0.4, 0.7)),
    "back toward mu, far away": row(*[(0.9, 0.1)] * 6),
    "no token": ([], []),
}


def padded(rows: list[list[float]]) -> Tensor:
    values = torch.full((len(rows), WIDTH), 7.0, dtype=torch.float64)  # what pads must never count
    for index, given in enumerate(rows):
        values[index, : len(given)] = torch.tensor(given, dtype=torch.float64)
    return values


# Of the model `mini_base`; what is left has the authors' values.
SETTINGS: dict[str, Any] = {"width": WIDTH, "delta": 0.05, "delta_b": 0.01, "w_min": 0.8}


def test_recipe_authors_has_loss_gradient_and_mask_of_the_authors() -> None:
    """As the configuration has it. The cap, the clamp and the cap of the budget bind somewhere, or they would not be
    tested.
    """
    now, then = zip(*ADVERSARIAL.values(), strict=True)
    run = compose(["model=mini_base", "recipe=authors"]).run
    assert (run.divergence.estimator, run.divergence.measure) == ("binary", "tv")
    valid = torch.arange(WIDTH) < torch.tensor([len(given) for given in now])[:, None]
    logp, rollout_logp = padded(now).requires_grad_(), padded(then)
    d = binary(logp.detach(), rollout_logp, run.divergence.measure)
    for advantage in (-1.0, 0.0, 1e-9, 40.0, 1.0):
        worth, advantages = torch.full_like(d, advantage), [advantage] * len(now)
        wanted = authors_loss(now, then, advantages, **SETTINGS)
        output = apply(run.rule.name, logp, rollout_logp, worth, valid, d, **run.rule.arguments(WIDTH))
        loss = -aggregate(output.objective, valid, run.training.aggregation, horizon=WIDTH)
        (gradient,) = torch.autograd.grad(loss, logp)
        assert float(loss.detach()) == pytest.approx(wanted.loss, rel=1e-10, abs=1e-12), advantage
        for index, given in enumerate(wanted.gradient):
            assert gradient[index, : len(given)].tolist() == pytest.approx(given, rel=1e-10, abs=1e-14)
            assert not gradient[index, len(given) :].any()
            assert output.keep[index, : len(given)].tolist() == wanted.mask[index]
    for other in ({"ratio_cap": math.inf}, {"clamp": 2.0}, {"cap": 2.0}, {"q": 0.5}, {"scale": 0.5}):
        assert authors_loss(now, then, advantages, **SETTINGS | other).loss != wanted.loss, other


@pytest.mark.parametrize("name", CAPPED)
def test_a_cap_and_a_clamp_bound_the_gradient_and_change_no_mask(name: str) -> None:
    """Infinite limits are none, and far off neither changes the gradient."""
    for seed in range(5):
        batch = random_batch(seed)
        log_ratio, own = batch.logp - batch.rollout_logp, constants(name, batch)
        plain, gradient = differentiated(name, batch)
        for cap, clamp in ((math.inf, math.inf), (1e6, 30.0), (1.2, math.inf), (math.inf, 0.3)):
            output, limited = differentiated(name, batch, **own, ratio_cap=cap, log_ratio_clamp=clamp)
            assert torch.equal(output.keep, plain.keep)
            held = log_ratio.clamp(-clamp, min(clamp, math.log(cap)))
            torch.testing.assert_close(limited, gradient * (held - log_ratio).exp(), rtol=1e-12, atol=1e-14)
            beyond = (held != log_ratio) & (plain.keep > 0) & batch.valid & (batch.advantages != 0)
            assert int(output.stats.get("clipped", 0)) == int(beyond.sum())
            if cap == clamp:
                assert torch.equal(output.objective, plain.objective) and "clipped" not in output.stats


def test_a_ratio_that_overflows_behind_a_wide_clamp() -> None:
    logp, rollout_logp = torch.tensor([[-1.0]]), torch.tensor([[-900.0]])
    batch = (logp, rollout_logp, torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1))
    with pytest.raises(ValueError, match=r"overflows: lower log_ratio_clamp=500"):
        apply("dppo", *batch, delta=0.1, log_ratio_clamp=500.0)
    assert float(apply("dppo", *batch, delta=0.1, log_ratio_clamp=500.0, ratio_cap=20.0).objective) == -20.0


def test_soft_weights_take_the_padded_span() -> None:
    """`cppo` with it is the authors' loss above."""
    batch = random_batch(4)._replace(valid=torch.ones(5, 12, dtype=torch.bool))
    own = CONSTANTS["cppo_soft"] | {"w_min": 0.2}
    plain, wide, wider = (apply("cppo_soft", *batch, **own, span=span).keep for span in (None, 12, 99))
    assert torch.equal(wide, plain) and not torch.equal(wider, plain)
