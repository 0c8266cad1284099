"""The verl path against the embedded core's arithmetic and against verl's own losses, on identical tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import PolicyLossConfig

from cppo_lab import rules as records
from cppo_lab.cores.verl.config import verl_config
from cppo_lab.cores.verl.files import planned_files
from cppo_lab.cores.verl.loss import rule_metrics
from cppo_lab.maths import divergence
from cppo_lab.maths.divergence import binary
from cppo_lab.maths.mismatch import relative_logprob_error
from cppo_lab.maths.rules import AGGREGATIONS, aggregate, corrected, get_rule
from cppo_lab.maths.tokens import RuleOutput, Tokens, merge, summarise
from cppo_lab.rules import ENTROPY, MINIBATCH, PERMUTATION
from cppo_lab.sweep.compose import compose
from tests.cores.verl.recorded import Trained, actor, plain_actor, reduced, train
from tests.maths.maths_batches import (
    CONSTANTS,
    TokenBatch,
    apply,
    constants,
    fields,
    random_batch,
    random_permutation,
)
from tests.oracles.authors import authors_loss

pytestmark = pytest.mark.filterwarnings("ignore:Disabled critic")
# A rule over the whole minibatch is refused here.
OF_RESPONSES = [name for name in records.RULES if MINIBATCH not in records.RULES[name].needs]
HORIZON = 20
FOREIGN = {"delta": 0.1, "slack": 0.01}  # constants of the rule of another package
# [rank][micro-batch] -> rows. Row 6 has no token: it pads, once in company and once alone.
CUTS = {1: [[[0, 3], [1, 2, 4, 5], [6]]], 2: [[[5, 0, 1], [2]], [[4, 6], [3]]]}


def responses(seed: int) -> TokenBatch:
    """Seven responses in float64, the last one without a token."""
    batch = random_batch(seed, rows=7)
    lengths = torch.tensor([12, 3, 7, 1, 12, 5, 0])
    return batch._replace(valid=torch.arange(12) < lengths[:, None])


def mini(
    name: str, mode: str, batch: TokenBatch, path: str | None = None, mu: Tensor | None = None, **weights: Any
) -> tuple[Tensor, Tensor, RuleOutput]:
    """Loss, its gradient in logp, and the rule's output, as cores/mini/trainer.py has them.

    In a decoupled run, with `mu`: pi / pi_old in the rule, its direction from mu as D_t, pi_old / mu beside it.
    """
    logp = batch.logp.clone().requires_grad_()
    if mu is None:
        output = apply(name, logp, *batch[1:], path=path, **(FOREIGN if path else constants(name, batch)))
    else:
        given = fields(name, batch)
        if "drift" in given:
            given["drift"] = batch.logp - mu
        tokens = Tokens(logp, *batch[1:], **given, origin_logp=mu)
        output = corrected(get_rule(name)(tokens, **CONSTANTS[name]), tokens, mu, **weights)
    horizon = HORIZON if mode == "seq-mean-token-sum-norm" else None
    loss = -aggregate(output.objective, batch.valid, mode, horizon=horizon)
    loss.backward()
    return loss.detach(), logp.grad, output


def verl_parts(
    name: str, mode: str, batch: TokenBatch, ranks: int, path: str | None = None,
    weights: dict[str, Any] | None = None, **given: Any,
) -> Trained:  # fmt: skip
    """The minibatch as FSDP makes it from the micro-batches."""
    config = actor(name, FOREIGN if path else CONSTANTS[name], mode, path=path,
                   measure="kl" if name.startswith("trm") else "tv", weights=weights,
                   estimator="topk", k=4, convention="union", horizon=HORIZON)  # fmt: skip
    return train(config, batch, CUTS[ranks], **given)


def assert_equal(trained: Trained, loss: Tensor | float, gradient: Tensor) -> None:
    assert trained.loss == pytest.approx(float(loss), rel=1e-12, abs=1e-15)
    torch.testing.assert_close(trained.gradient, gradient, rtol=1e-12, atol=1e-15)


def assert_reported(trained: Trained, output: RuleOutput) -> dict[str, float]:
    """Its metrics, which are those of the rule's output."""
    metrics = rule_metrics(reduced([trained.metrics]))
    expected = {f"rule/{name}": value for name, value in summarise(output.stats).items()}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    return metrics


@pytest.mark.parametrize("mode, ranks", list(zip(AGGREGATIONS, (1, 2, 2, 1), strict=True)))
@pytest.mark.parametrize("name", [*OF_RESPONSES, "one_sided"])
def test_micro_batches_make_the_mini_cores_loss(name: str, mode: str, ranks: int) -> None:
    """The last rule is of another package."""
    batch, path = responses(3), "tests.rules.acme_rules:one_sided" if name == "one_sided" else None
    expected, gradient, output = mini(name, mode, batch, path)
    assert bool((output.keep[batch.valid] < 1).any()) or name in ("cispo", "minpro", "seq_tis")
    trained = verl_parts(name, mode, batch, ranks, path=path)
    assert_equal(trained, expected, gradient)
    torch.testing.assert_close(trained.gradient == 0, gradient == 0)  # the same tokens are dropped


@pytest.mark.parametrize("name, ranks", [*((name, 2) for name in OF_RESPONSES), ("cppo", 1)])
def test_metrics_survive_verls_reductions(name: str, ranks: int) -> None:
    """Three minibatches, the last of padding alone; shares and means over a step, as the embedded core's."""
    batches = [responses(3), responses(4), responses(5)]
    batches[2] = batches[2]._replace(valid=torch.zeros_like(batches[2].valid))
    entropies = [torch.rand(7, 12, generator=torch.Generator().manual_seed(i)).double() for i in range(3)]
    pairs = list(zip(batches, entropies, strict=True))
    parts = [verl_parts(name, "token-mean", batch, ranks, entropy=entropy) for batch, entropy in pairs]
    norms = {"actor/grad_norm": (2 + 5 + 0) / 3}
    metrics = rule_metrics(reduced([part.metrics for part in parts]) | norms)
    whole = [mini(name, "token-mean", batch) for batch in batches[:2]]
    expected = {f"rule/{key}": v for key, v in summarise(merge([out.stats for *_, out in whole])).items()}
    flat = [torch.cat([b[i][b.valid] for b in batches]) for i in range(2)]
    error, scale = relative_logprob_error(*flat, torch.ones_like(flat[0]))
    spread = torch.cat([e[b.valid] for b, e in pairs])
    expected |= {
        "train/loss": sum(float(loss) for loss, *_ in whole) / 2,
        "train/grad_norm": 3.5,
        "train/relative_logprob_error": float(error / scale),
        "train/mean_abs_probability_gap": float((flat[0].exp() - flat[1].exp()).abs().mean()),
        "train/entropy": float(spread.mean()),
    }
    assert metrics == pytest.approx(expected, rel=1e-5)
    # Padding alone has no metrics.
    assert (parts[2].loss, bool(parts[2].gradient.any())) == (0, False)
    assert rule_metrics(reduced([parts[2].metrics])) == {}
    assert rule_metrics({"actor/pg_loss": 1.0, "actor/grad_norm": 2.0}) == {}


# Row -> place among those that are kept: rows of two ranks, in another order.
KEPT = {4: 0, 0: 1, 3: 2, 1: 3}


@pytest.mark.parametrize("name", OF_RESPONSES)
def test_the_marked_rows_are_kept_as_the_rule_sees_them(name: str) -> None:
    batch = responses(3)
    batch = batch._replace(advantages=batch.advantages[:, :1].expand_as(batch.advantages))
    whole = apply(name, *batch, **constants(name, batch))
    config = actor(name, CONSTANTS[name], measure="kl" if name.startswith("trm") else "tv")
    first, second = train(config, batch, CUTS[2], marked=KEPT).kept
    assert len(first) == len(second) == 2
    kept = first | second
    columns = {name: getattr(batch, name) for name in ("logp", "rollout_logp", "divergence")} | {
        "keep": whole.keep
    }
    shuffled, reasons = PERMUTATION in records.RULES[name].needs, set[int]()
    for row, place in KEPT.items():
        response, length = kept[place], int(batch.valid[row].sum())
        assert response.columns["token"].tolist() == [100 * row + t for t in range(length)]
        assert response.advantage == pytest.approx(float(batch.advantages[row, 0]))
        for column, values in columns.items():
            expected = values[row, :length].detach()
            np.testing.assert_allclose(response.columns[column], expected, rtol=1e-6, atol=1e-7)
        order = random_permutation(batch.valid, 0)[row, : length * shuffled]
        assert [*response.columns.get("order", [])] == order.tolist()
        for t, reason in enumerate(response.columns["reason"].tolist()):
            touched = [number for number, test in enumerate(whole.tests.values(), 1) if test[row, t]]
            assert reason == (min(touched, default=0) if whole.tests else response.columns["keep"][t] < 1)
            reasons.add(reason)
        assert response.tests == tuple(whole.tests) or not whole.tests
    assert name != "cppo" or reasons == {0, 1, 2}


def test_a_minibatch_in_parts_has_the_authors_loss() -> None:
    """recipe=authors, from the configuration on, against the loop."""
    composition = compose(
        ["core=verl", "model=qwen3_1_7b_base", "rollout.max_response_length=40", "recipe=authors"]
    )
    shared = Path("/somewhere/runs")
    files = planned_files(composition.run, composition.paths, shared, shared / composition.run.run_id)
    section = verl_config(composition.run, composition.layout, files).actor_rollout_ref.actor
    config = plain_actor(omega_conf_to_dataclass(section.policy_loss), loss_agg_mode=section.loss_agg_mode)
    batch = responses(5)
    now, then, valid = batch.logp, batch.rollout_logp, batch.valid
    then[0, 0], now[0, 0] = -6.0, -0.5  # a ratio beyond the cap, kept where A < 0
    advantages = torch.tensor([-1.0, 1.0, -0.3, 0.7, 1.5, 0.0, 0.0], dtype=torch.float64)
    each = advantages[:, None].expand(-1, 12)
    batch = batch._replace(advantages=each, divergence=binary(now, then, "tv"))
    trained = train(config, batch, CUTS[2], measured=False)
    rows, before = (
        [row[mask].tolist() for row, mask in zip(part, valid, strict=True)] for part in (now, then)
    )
    expected = authors_loss(rows, before, advantages.tolist(), width=40, delta=0.15, delta_b=0.02, w_min=0.8)
    assert trained.loss == pytest.approx(expected.loss, rel=1e-10)
    for index, row in enumerate(expected.gradient):
        assert trained.gradient[index, : len(row)].tolist() == pytest.approx(row, rel=1e-10, abs=1e-14)
    assert 0 < sum(map(sum, expected.mask)) < int(valid.sum())
    assert_reported(trained, get_rule("cppo")(Tokens(*batch), **composition.run.rule.arguments(40)))


def verls_loss(
    batch: TokenBatch, mask: Tensor, config: Any, rollout_is_weights: Tensor | None
) -> tuple[float, Tensor]:
    """Value and gradient of verl's clipped loss. Its other losses: tests/testing/test_across.py."""
    logp = batch.logp.clone().requires_grad_()
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=batch.rollout_logp, log_prob=logp, advantages=batch.advantages, response_mask=mask,
        loss_agg_mode="token-mean", config=config, rollout_is_weights=rollout_is_weights,
    )  # fmt: skip
    loss.backward()
    return float(loss.detach()), logp.grad


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "rule, constants, weigh, reject",
    [
        ("icepop", {"ratio_low": 0.5, "ratio_high": 1.5}, ("token", "0.5_1.5"), None),
        ("seq_tis", {"ratio_high": 1.3}, ("sequence", 1.3), None),
        ("seq_mis", {"ratio_low": 0.4, "ratio_high": 2.5}, ("sequence", 2.5), ("seq_sum_k1", "0.4_2.5")),
        ("geo_mask", {"ratio_low": 0.8, "ratio_high": 1.25}, None, ("seq_mean_k1", "0.8_1.25")),
    ],
)  # fmt: skip
def test_verls_rollout_correction_has_the_same_policy_gradient(
    rule: str, constants: dict, weigh: tuple | None, reject: tuple | None, seed: int
) -> None:
    """Its weights and masks on log pi A, as verl's bypass mode with the loss `reinforce` puts them together.

    verl bounds the inverse ratio: the same where one bound is the other's inverse.
    """
    batch = responses(seed)
    logp = batch.logp.clone().requires_grad_()
    apply(rule, logp, *batch[1:], **constants).objective.sum().backward()
    log_ratio, mask = (batch.logp - batch.rollout_logp) * batch.valid, batch.valid.double()
    weights = compute_rollout_correction_weights(log_ratio, mask, *weigh)[0] if weigh else mask
    kept = compute_rollout_rejection_mask(log_ratio, mask, *reject)[0] if reject else mask
    expected = torch.where(batch.valid, weights * kept * batch.advantages, 0.0)
    assert bool((expected[batch.valid] != batch.advantages[batch.valid]).any())
    torch.testing.assert_close(logp.grad, expected, rtol=1e-10, atol=1e-12)


# Of decoupled runs: what verl's own functions take, weights and bands.
CORRECTIONS = [
    (("token", 1.2), None),
    (("sequence", 1.5), ("token_k1", 1.3)),
    (None, ("seq_sum_k1", 2.0)),
    (("token", 2.0), ("seq_mean_k1", 1.1)),
    (None, None),
]


def settings_of(weigh: tuple | None, reject: tuple | None) -> dict:
    """In the form of `SamplingSpec.weights`."""
    settings = {}
    for name, choice in (("rollout_is", weigh), ("rollout_rs", reject)):
        if choice:
            settings[name], settings[f"{name}_threshold"] = choice
    return settings


def three(seed: int) -> tuple[TokenBatch, Tensor]:
    """Responses with the log-probabilities of pi and pi_old, and log mu."""
    batch = responses(seed)
    noise = torch.randn(7, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return batch, (batch.rollout_logp - 0.2 * noise).clamp(max=-1e-3)


@pytest.mark.parametrize(
    "name, weigh, reject, ranks",  # what is weighed and rejected does not depend on the rule
    [
        *((name, *CORRECTIONS[1], 2) for name in OF_RESPONSES if ENTROPY not in records.RULES[name].needs),
        *(("cppo", *CORRECTIONS[place], ranks) for place in (0, 2) for ranks in CUTS),
    ],
)
def test_micro_batches_make_the_mini_cores_decoupled_loss(
    name: str, weigh: tuple | None, reject: tuple | None, ranks: int
) -> None:
    batch, mu = three(3)
    weights = settings_of(weigh, reject)
    loss, gradient, output = mini(name, "token-mean", batch, mu=mu, **weights)
    trained = verl_parts(name, "token-mean", batch, ranks, weights=weights, of_mu=mu, marked=KEPT)
    assert_equal(trained, loss, gradient)
    assert not any(trained.kept)  # a record of pi and one other policy would be replayed as if mu were pi_old
    metrics = assert_reported(trained, output)
    error, scale = relative_logprob_error(batch.logp, mu, batch.valid)
    assert metrics["train/relative_logprob_error"] == pytest.approx(float(error / scale), rel=1e-5)


@pytest.mark.parametrize(
    "estimator, measure", [("binary", "tv"), ("binary", "kl"), ("sample", "k2"), ("sample", "k3")]
)
@pytest.mark.parametrize("origin", ["bypassed", None, "old"])
def test_a_divergence_of_sampled_tokens_from_mu_or_pi_old(
    origin: str | None, estimator: str, measure: str
) -> None:
    batch, mu = three(4)
    start = batch.rollout_logp if origin else mu
    own = {"binary": lambda now, then: divergence.binary(now, then, measure)}
    d = own.get(estimator, getattr(divergence, measure, None))(batch.logp, start)
    logp = batch.logp.clone().requires_grad_()
    output = get_rule("dppo")(Tokens(logp, *batch[1:4], d, origin_logp=start), delta=0.02)
    loss = -aggregate(output.objective, batch.valid, "token-mean")
    loss.backward()
    decoupled = {} if origin == "bypassed" else {"weights": {}, "origin": origin}
    config = actor("dppo", {"delta": 0.02}, estimator=estimator, measure=measure, **decoupled)
    seen = []
    of_mu = mu if decoupled else None
    trained = train(config, batch, CUTS[1], of_mu=of_mu, measured=False, watch=seen.append)
    assert_equal(trained, loss.detach(), logp.grad)
    assert 0 < int(output.stats["masked"]) < int(batch.valid.sum())
    metrics = rule_metrics(reduced([trained.metrics]))
    assert metrics["rule/divergence_mean"] == pytest.approx(float(d[batch.valid].mean()))
    assert "train/entropy" not in metrics
    assert len(seen) == len(CUTS[1][0]) and not any(part.logp.requires_grad for part in seen)
    for part in seen:
        origins = part.logp - (part.origin_logp if decoupled else part.rollout_logp)
        assert bool(((part.divergence > 0) == ((origins != 0) & part.valid))[part.valid].all())


@pytest.mark.parametrize("weigh, reject", CORRECTIONS)
def test_verls_decoupled_ppo_has_the_loss_of_ours(weigh: tuple | None, reject: tuple | None) -> None:
    """Its vanilla loss on its own weights and mask; rejected tokens stay in the number of a minibatch's tokens."""
    batch, mu = three(5)
    rows = batch.valid.any(1)
    log_ratio, mask = ((batch.rollout_logp - mu) * batch.valid)[rows], batch.valid[rows].double()
    weights = compute_rollout_correction_weights(log_ratio, mask, *weigh)[0] if weigh else None
    kept = compute_rollout_rejection_mask(log_ratio, mask, *reject)[0] if reject else mask
    clips = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1e9}  # the last where A < 0
    config = plain_actor(PolicyLossConfig(loss_mode="vanilla"), **clips)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=6)
    present = TokenBatch(*(column[rows] for column in batch))
    loss, gradient = verls_loss(present, kept, config, weights)
    ours = actor("grpo", {"clip_low": 0.2, "clip_high": 0.28}, weights=settings_of(weigh, reject))
    trained = train(ours, batch, CUTS[2], of_mu=mu, measured=False)
    assert_equal(trained._replace(gradient=trained.gradient[rows]), loss, gradient)
    rejected = int(mask.sum() - kept.sum())
    assert bool(rejected) == bool(reject)
    reported = rule_metrics(reduced([trained.metrics]))
    assert reported["rule/rejected_fraction"] == pytest.approx(rejected / int(mask.sum()))
