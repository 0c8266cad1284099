"""The verl path against the embedded core's arithmetic and against verl's own losses, on identical tensors."""

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
from cppo_lab.cores.rule_loss import KeptResponse
from cppo_lab.cores.verl.loss import rule_metrics
from cppo_lab.maths import divergence
from cppo_lab.maths.divergence import binary
from cppo_lab.maths.mismatch import relative_logprob_error
from cppo_lab.maths.rules import AGGREGATIONS, aggregate, corrected
from cppo_lab.maths.tokens import RuleOutput, Tokens, merge, summarise
from cppo_lab.rules import ENTROPY, MINIBATCH, PERMUTATION
from cppo_lab.sweep.compose import compose
from tests.cores.verl.in_process import tree
from tests.cores.verl.recorded import Trained, actor, plain_actor, reduced, train
from tests.maths.maths_batches import (
    CONSTANTS,
    TokenBatch,
    fields,
    random_batch,
    random_permutation,
)
from tests.maths.test_corrected import arguments

pytestmark = pytest.mark.filterwarnings("ignore:Disabled critic")
# A rule over the whole minibatch is refused here.
OF_RESPONSES = [name for name in records.RULES if MINIBATCH not in records.RULES[name].needs]
SHUFFLED = [name for name in OF_RESPONSES if PERMUTATION in records.RULES[name].needs]
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
    name: str,
    mode: str,
    batch: TokenBatch,
    path: str | None = None,
    mu: Tensor | None = None,
    own: Any = None,
    **weights: Any,
) -> tuple[Tensor, Tensor, RuleOutput]:
    """Loss, its gradient in logp, and the rule's output, as cores/mini/trainer.py has them.

    In a decoupled run, with `mu`: pi / pi_old in the rule, its direction from mu as D_t, pi_old / mu beside it.
    """
    logp, given = batch.logp.clone().requires_grad_(), {} if path else fields(name, batch)
    if mu is not None and "drift" in given:
        given["drift"] = batch.logp - mu
    tokens = Tokens(logp, *batch[1:], **given, origin_logp=mu)
    output = records.rule_of(name, path).apply(tokens, **own or (FOREIGN if path else CONSTANTS[name]))
    if mu is not None:
        output = corrected(output, tokens, mu, **weights)
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


# Row -> place among those that are kept: rows of two ranks, in another order.
KEPT = {4: 0, 0: 1, 3: 2, 1: 3}


def assert_kept(name: str, batch: TokenBatch, whole: RuleOutput, kept: dict[int, KeptResponse]) -> None:
    """The marked rows are kept as the rule sees them."""
    columns = {name: getattr(batch, name) for name in ("logp", "rollout_logp", "divergence")} | {
        "keep": whole.keep
    }
    shuffled, reasons = name in SHUFFLED, set()
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


@pytest.mark.parametrize(
    "name, mode, ranks",
    [
        *((name, "token-mean", 2) for name in (*OF_RESPONSES, "one_sided")),
        *((name, mode, ranks) for mode in AGGREGATIONS for name, ranks in (("cppo", 1), ("gspo", 2))),
    ],
)
def test_micro_batches_make_the_mini_cores_loss_and_metrics(name: str, mode: str, ranks: int) -> None:
    """Three minibatches, the last of padding alone; shares and means over a step, as the embedded core's. The rule
    `one_sided` is of another package.
    """
    batches, path = [responses(3), responses(4), responses(5)], None
    worth = batches[0].advantages[:, :1].expand(7, 12)  # of whole responses, as those that are kept have it
    batches[0] = batches[0]._replace(advantages=worth)
    if name == "one_sided":
        path = f"tests.rules.acme_rules:{name}"
    batches[2] = batches[2]._replace(valid=torch.zeros_like(batches[2].valid))
    entropies = [torch.rand(7, 12, generator=torch.Generator().manual_seed(i)).double() for i in range(3)]
    pairs = list(zip(batches, entropies, strict=True))
    parts = [
        verl_parts(name, mode, batch, ranks, path=path, entropy=entropy, marked=KEPT)
        for batch, entropy in pairs
    ]
    whole = [mini(name, mode, batch, path) for batch in batches]
    for part, (loss, gradient, _) in zip(parts, whole, strict=True):
        assert_equal(part, loss, gradient)
        assert torch.equal(part.gradient == 0, gradient == 0)  # the same tokens are dropped
    assert_kept(name, batches[0], whole[0][2], {k: v for rank in parts[0].kept for k, v in rank.items()})
    stats = [output.stats for *_, output in whole]
    assert bool((whole[0][2].keep[batches[0].valid] < 1).any()) or name in ("cispo", "minpro", "seq_tis")
    norms = {"actor/grad_norm": (2 + 5 + 0) / 3}
    metrics = rule_metrics(reduced([part.metrics for part in parts]) | norms)
    expected = {f"rule/{key}": value for key, value in summarise(merge(stats[:2])).items()}
    flat = [torch.cat([b[i][b.valid] for b in batches]) for i in range(2)]
    error, scale = relative_logprob_error(*flat, torch.ones_like(flat[0]))
    expected |= {
        "train/loss": float(whole[0][0] + whole[1][0]) / 2,
        "train/grad_norm": 3.5,
        "train/relative_logprob_error": float(error / scale),
        "train/mean_abs_probability_gap": float((flat[0].exp() - flat[1].exp()).abs().mean()),
        "train/entropy": float(torch.cat([e[b.valid] for b, e in pairs]).mean()),
    }
    assert metrics == pytest.approx(expected, rel=1e-5)
    # Padding alone has no metrics.
    assert rule_metrics(reduced([parts[2].metrics])) == {}
    assert rule_metrics({"actor/pg_loss": 1.0, "actor/grad_norm": 2.0}) == {}


def test_a_minibatch_in_parts_has_the_authors_loss() -> None:
    """recipe=authors, from the configuration on. That the whole has their loss: maths/test_recipe.py."""
    length = f"rollout.max_response_length={HORIZON}"
    made = compose(["core=verl", "model=qwen3_1_7b_base", length, "recipe=authors"])
    section = tree(made).actor_rollout_ref.actor
    config = plain_actor(omega_conf_to_dataclass(section.policy_loss), loss_agg_mode=section.loss_agg_mode)
    batch = responses(5)
    batch.rollout_logp[0, 0], batch.logp[0, 0] = -6.0, -0.5  # a ratio beyond the cap, kept where A < 0
    batch.advantages[0] = -1.0
    batch = batch._replace(divergence=binary(batch.logp, batch.rollout_logp, "tv"))
    trained = train(config, batch, CUTS[2], measured=False)
    arguments = made.run.rule.arguments(HORIZON)
    loss, gradient, output = mini("cppo", made.run.training.aggregation, batch, own=arguments)
    assert_equal(trained, loss, gradient)
    assert 0 < int(output.stats["masked"]) < int(batch.valid.sum()) and int(output.stats["clipped"]) > 0
    assert_reported(trained, output)


# Of decoupled runs: what verl's own functions take, weights and bands.
CORRECTIONS = [
    (("token", 1.2), None),
    (("sequence", 1.5), ("token_k1", 1.3)),
    (None, ("seq_sum_k1", 2.0)),
    (("token", 2.0), ("seq_mean_k1", 1.1)),
    (None, None),
]


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
    weights = arguments(weigh, reject)
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
    given = batch._replace(divergence=d)
    loss, gradient, output = mini("dppo", "token-mean", given, mu=None if origin else mu, own={"delta": 0.02})
    decoupled = {} if origin == "bypassed" else {"weights": {}, "origin": origin}
    config = actor("dppo", {"delta": 0.02}, estimator=estimator, measure=measure, **decoupled)
    seen = []
    of_mu = mu if decoupled else None
    trained = train(config, batch, CUTS[1], of_mu=of_mu, measured=False, watch=seen.append)
    assert_equal(trained, loss, gradient)
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
    """Its vanilla loss on its own weights and mask; rejected tokens stay in the number of a minibatch's tokens. Other
    losses of verl: tests/testing/test_across.py.
    """
    batch, mu = three(5)
    rows = batch.valid.any(1)
    log_ratio, mask = ((batch.rollout_logp - mu) * batch.valid)[rows], batch.valid[rows].double()
    weights = compute_rollout_correction_weights(log_ratio, mask, *weigh)[0] if weigh else None
    kept = compute_rollout_rejection_mask(log_ratio, mask, *reject)[0] if reject else mask
    clips = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1e9}  # the last where A < 0
    config = plain_actor(PolicyLossConfig(loss_mode="vanilla"), **clips)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=6)
    logp = batch.logp[rows].clone().requires_grad_()
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=batch.rollout_logp[rows], log_prob=logp, advantages=batch.advantages[rows], response_mask=kept,
        loss_agg_mode="token-mean", config=config, rollout_is_weights=weights,
    )  # fmt: skip
    loss.backward()
    ours = actor("grpo", {"clip_low": 0.2, "clip_high": 0.28}, weights=arguments(weigh, reject))
    trained = train(ours, batch, CUTS[2], of_mu=mu, measured=False)
    assert_equal(trained._replace(gradient=trained.gradient[rows]), loss.detach(), logp.grad)
    rejected = int(mask.sum() - kept.sum())
    assert bool(rejected) == bool(reject)
    reported = rule_metrics(reduced([trained.metrics]))
    assert reported["rule/rejected_fraction"] == pytest.approx(rejected / int(mask.sum()))
