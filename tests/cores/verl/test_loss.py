"""The loss in verl's protocol: what is not finite, the losses that are verl's own, and the metrics `mismatch/*`."""

from typing import Any

import pytest
import torch
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.utils.losses import ppo_loss

from cppo_lab import schema
from cppo_lab.cores.rule_loss import mismatch_metrics
from cppo_lab.cores.verl.loss import rule_metrics, summarise_mismatch, trust_region_loss
from cppo_lab.errors import NotFinite
from cppo_lab.maths import divergence
from cppo_lab.maths.mismatch import log_ratios, mismatch_sums
from tests.cores.verl.recorded import (
    Trained,
    actor,
    by_minibatch,
    micro_batch,
    packed_output,
    reduced,
    train,
)
from tests.maths.maths_batches import CONSTANTS, TokenBatch, random_batch

CPPO = CONSTANTS["cppo"]
TOPK = {"estimator": "topk", "k": 20, "convention": "union"}


def responses() -> TokenBatch:
    batch = random_batch(5, rows=4, width=6)
    return batch._replace(valid=torch.arange(6) < torch.tensor([6, 2, 4, 0])[:, None])


def call(config: Any, batch: TokenBatch, **options: Any) -> Trained:
    """The loss of one micro-batch that is the whole minibatch."""
    return train(config, batch, [[range(len(batch.logp))]], **options)


def test_what_is_not_finite_ends_the_run_but_for_padding() -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        batch = responses()
        batch.logp[0, 3] = value
        with pytest.raises(NotFinite):
            call(actor("grpo", CONSTANTS["grpo"]), batch, measured=False)
    batch = responses()
    batch.rollout_logp[0, 3], batch.advantages[0] = -1000.0, -1.0
    with pytest.raises(NotFinite, match="probability ratio of kept token"):
        call(actor("ppo", CONSTANTS["ppo"]), batch, measured=False)
    batch, config = responses(), actor("cppo", CPPO, **TOPK)
    expected = call(config, batch)
    batch.logp[~batch.valid], batch.advantages[~batch.valid] = float("nan"), float("inf")
    trained = call(config, batch)
    assert trained.loss == expected.loss
    torch.testing.assert_close(trained.gradient.nan_to_num(0.0), expected.gradient)


@pytest.mark.parametrize(
    "loss_mode",
    ["vanilla", "gspo", "sapo", "geo_mean", "clip_cov", "kl_cov", "dro", "cispo", "dppo_tv", "dppo_kl"],
)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_value_and_gradient_are_verls(loss_mode: str, mode: str) -> None:
    """A loss of verl's own with our diagnostics, and on columns that are padded already."""
    batch = responses()
    config = actor(mode=mode, loss_mode=loss_mode, dro_beta=0.1, clip_cov_lb=-1.0, **TOPK)
    results = []
    for ours in (True, False):
        torch.manual_seed(0)  # clip_cov draws tokens
        logp = batch.logp.clone().requires_grad_()
        given = {"old_log_probs": batch.rollout_logp, "advantages": batch.advantages}
        given["responses"] = torch.arange(6).expand(4, 6)
        # The row that pads counts for verl, and not for us.
        prompts = [torch.arange(2)] * 4
        data, lengths = micro_batch(
            given, batch.valid, prompts, dp_size=1, batch_num_tokens=12, global_batch_size=4 if ours else 3
        )
        output = {"log_probs": packed_output(logp, lengths, prompts)}
        if ours:
            data["old_log_probs"] = batch.rollout_logp
            output["divergence"] = packed_output(batch.divergence, lengths, prompts)
            data["minibatch_responses"] = torch.tensor([[3.0], [3.0], [3.0], [0.0]])
        loss, reported = (trust_region_loss if ours else ppo_loss)(config, output, data)
        loss.backward()
        results.append((loss.detach(), logp.grad, reported))
    (loss, gradient, reported), (expected, expected_gradient, verls) = results
    assert loss == expected
    assert torch.equal(gradient, expected_gradient)
    assert set(verls) <= set(reported)
    own = {name: value for name, value in reported.items() if name.startswith("rule_sums")}
    summary = rule_metrics(reduced([[[own]]]))
    d, ratio = batch.divergence[batch.valid], (batch.logp - batch.rollout_logp)[batch.valid].exp()
    assert "rule/masked_fraction" not in summary
    wanted = {
        "rule/divergence_mean": d.mean(), "rule/divergence_max": d.max(), "rule/ratio_mean": ratio.mean(),
        "train/loss": expected,
    }  # fmt: skip
    assert {name: summary[name] for name in wanted} == pytest.approx({n: float(v) for n, v in wanted.items()})


# -- The metrics between sampler and trainer, through verl's reductions ------------------------------------------------


LENGTHS = torch.tensor([9, 1, 2, 0, 3, 4, 9, 0, 5, 6, 7, 8])  # of twelve responses, some of them empty
WIDE = random_batch(3, rows=12, width=9)._replace(valid=torch.arange(9) < LENGTHS[:, None])
FOUR, TWO = ([range(i, i + n) for i in range(0, 12, n)] for n in (4, 2))
SEVERAL = [[[FOUR[0]], [FOUR[1]]], [[TWO[4]], [TWO[5]]]]
DPPO = {"rule": "dppo", "constants": {"delta": 0.1}}


def step(minibatches: Any, **keys: Any) -> dict[str, float]:
    """The row of a step whose minibatches are cut into [minibatch][rank][micro-batch] -> rows."""
    parts = [train(actor(**keys), WIDE, cuts, measured=False).metrics for cuts in minibatches]
    summarise_mismatch(reported := by_minibatch(parts))
    return rule_metrics(reduce_metrics(rename_dict(reported, "actor/")))


def mismatches(row: dict[str, float]) -> dict[str, float]:
    of_mismatch = (schema.MISMATCH, schema.DIVERGENCE_BEFORE, schema.DIVERGENCE_BEFORE_P90)
    return {name: value for name, value in row.items() if name.startswith(of_mismatch)}


def whole(rows: int = 12, **options: Any) -> dict[str, float]:
    """The metrics of the first `rows` at once."""
    apart = divergence.binary(WIDE.logp, WIDE.rollout_logp, "tv")
    columns = (WIDE.logp, WIDE.rollout_logp, apart, WIDE.valid)
    return mismatch_metrics([mismatch_sums(log_ratios(*(column[:rows] for column in columns)))], **options)


@pytest.mark.parametrize(
    "minibatches, first, keys",
    [
        ([[FOUR]], 12, DPPO),  # one rank, two, and one for each
        ([[TWO[:3], TWO[3:]]], 12, DPPO),
        ([[[rows] for rows in FOUR]], 12, DPPO),
        (SEVERAL, 8, DPPO),
        ([[[range(3, 4)]], *SEVERAL], 8, DPPO),
        ([[TWO]], 12, {"loss_mode": "vanilla"}),
    ],
)
def test_mismatch_however_it_is_cut(minibatches: Any, first: int, keys: dict[str, Any]) -> None:
    """Minibatches weigh by their tokens; the first is the state before, if it is not of padding alone."""
    row = step(minibatches, **keys)
    assert keys is not DPPO or all(map(schema.is_known_metric, row))  # no sum is left
    assert mismatches(row) == pytest.approx(whole() | whole(first, before_update=True), rel=1e-6)
    assert mismatches(step(minibatches, mismatch=False, **keys)) == {}
