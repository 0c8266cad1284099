"""The loss in verl's protocol: its config, what it refuses, what it shows, and the losses that are verl's own."""

from typing import Any

import pytest
import torch

pytest.importorskip("verl")

from omegaconf import OmegaConf
from torch import Tensor
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import AggregationType
from verl.workers.utils.losses import ppo_loss

from cppo_lab import schema
from cppo_lab.cores.diagnostics import ObservedTokens
from cppo_lab.cores.verl.loss import (
    TrustRegionLossConfig,
    rule_metrics,
    summarise_mismatch,
    trust_region_loss,
)
from cppo_lab.errors import NotFinite, UserError
from cppo_lab.maths import divergence
from cppo_lab.maths.aggregation import aggregate
from cppo_lab.maths.mismatch import MismatchSums, log_ratios, metrics, mismatch_sums
from cppo_lab.rules import MINIBATCH, RULES
from tests.cores.verl.recorded import actor, by_minibatch, micro_batch, packed_output, plain_actor, reduced
from tests.maths.maths_batches import CONSTANTS, TokenBatch, apply, random_batch

pytestmark = pytest.mark.verl
CPPO = CONSTANTS["cppo"]
TOPK = {"estimator": "topk", "k": 20, "convention": "union"}


class TestConfig:
    @pytest.mark.parametrize(
        "keys, message",
        [
            ({"rule": "cpo"}, "unknown policy_loss.rule 'cpo': did you mean 'cppo'"),
            ({}, "unknown policy_loss.rule ''"),
            ({"loss_mode": "gpso"}, "unknown policy_loss.loss_mode 'gpso': did you mean 'gspo'"),
            ({"loss_mode": "gspo", "rule": "gspo"}, "verl's own loss and takes no rule"),
            ({"rule": "dppo", "constants": {"delta": 0.1, "w_min": 0.5}}, "unknown constant of rule 'dppo' 'w_min'"),
            ({"rule": "dppo"}, "rule 'dppo' lacks the constants delta"),
            ({"rule": "dppo", "constants": {"delta": -0.1}}, "rule 'dppo': delta=-0.1 must be a positive"),
            ({"rule": "dppo", "constants": {"delta": "much"}}, "constants of rule 'dppo'"),
            ({"rule": "cppo", "constants": CPPO | {"delta_b_mode": "adaptve"}}, "delta_b mode='adaptve' is unknown"),
            ({"rule": "cppo", "constants": CPPO | {"permutation": 1}}, "unknown constant"),
            ({"rule": "trm_max", "constants": {"delta_max": 0.1}}, "its thresholds are on KL"),
            ({"rule": "cppo", "constants": CPPO, "estimator": "top-k"}, "unknown policy_loss.estimator 'top-k'"),
            ({"rule": "cppo", "constants": CPPO, "measure": "k3"}, "measure='k3' with estimator 'binary'"),
            ({"rule": "cppo", "constants": CPPO, "estimator": "sample"}, "measure='tv' with estimator 'sample'"),
            ({"rule": "cppo", "constants": CPPO, "estimator": "topk", "k": 20}, "k and convention belong to"),
            ({"rule": "cppo", "constants": CPPO, "estimator": "exact", "k": 20}, "k and convention belong to"),
            ({"rule": "cppo", "constants": CPPO, **TOPK, "convention": "all"}, "policy_loss.convention 'all'"),
            ({"rule": "cppo", "constants": CPPO, **TOPK, "k": 0}, "k=0 must be at least 1"),
            ({"rule": "cppo", "constants": CPPO, "horizon": 0}, "horizon=0 must be at least 1"),
        ],
    )  # fmt: skip
    def test_what_does_not_fit_is_refused(self, keys: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError, match=message):
            TrustRegionLossConfig(**keys)

    @pytest.mark.parametrize("rule", [rule for rule in CONSTANTS if MINIBATCH not in RULES[rule].needs])
    def test_every_rule_is_taken(self, rule: str) -> None:
        measure = "kl" if rule.startswith("trm") else "tv"
        config = TrustRegionLossConfig(rule=rule, constants=CONSTANTS[rule], measure=measure)
        assert not config.needs_topk
        assert config.get("loss_mode") == "trust_region"

    def test_a_rule_over_the_whole_minibatch_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"policy_loss\.rule='m2po' decides over a whole minibatch"):
            TrustRegionLossConfig(rule="m2po", constants=CONSTANTS["m2po"])

    def test_verl_makes_it_from_its_target(self) -> None:
        """As verl's worker does, from a config node with `_target_`."""
        node = OmegaConf.create(
            {
                "_target_": "cppo_lab.cores.verl.loss.TrustRegionLossConfig",
                "rule": "cppo",
                "constants": CPPO,
                **TOPK,
                "clip_cov_ratio": 0.1,
            }
        )
        config = omega_conf_to_dataclass(node)
        assert isinstance(config, TrustRegionLossConfig)
        assert config.constants == CPPO and config.needs_topk and config.clip_cov_ratio == 0.1
        assert config.rollout_correction is not None


def responses() -> TokenBatch:
    batch = random_batch(5, rows=4, width=6)
    return batch._replace(valid=torch.arange(6) < torch.tensor([6, 2, 4, 0])[:, None])


def call(
    config: Any, batch: TokenBatch, *, measured: bool = True, watch: Any = None, **columns: Tensor
) -> Any:
    """Second phase on one micro-batch that is the whole minibatch; (loss, metrics, gradient in logp)."""
    logp = batch.logp.clone().requires_grad_()
    prompts = [3, 2, 4, 2, *[2] * 8][: len(logp)]
    data, lengths = micro_batch(
        {"old_log_probs": batch.rollout_logp, "advantages": batch.advantages},
        batch.valid, prompts, dp_size=1, batch_num_tokens=int(batch.valid.sum()), global_batch_size=4,
    )  # fmt: skip
    for name, value in columns.items():
        data[name] = value
    output = {"log_probs": packed_output(logp, lengths, prompts)}
    if measured:
        output["divergence"] = packed_output(batch.divergence, lengths, prompts)
    loss, metrics = trust_region_loss(config, output, data, watch=watch)
    loss.backward()
    return loss.detach(), metrics, logp.grad


def counts(batch: TokenBatch) -> Tensor:
    """minibatch_responses, as our columns have it: 0 in rows that pad."""
    return torch.where(batch.valid.any(1), float(batch.valid.any(1).sum()), 0.0)[:, None]


class TestSecondPhase:
    @pytest.mark.parametrize(
        "estimator, measure", [("binary", "tv"), ("binary", "kl"), ("sample", "k2"), ("sample", "k3")]
    )
    def test_divergences_of_log_probabilities(self, estimator: str, measure: str) -> None:
        batch = responses()
        config = actor("dppo", {"delta": 0.01}, estimator=estimator, measure=measure)
        loss, metrics, _ = call(config, batch, measured=False)
        if estimator == "binary":
            d = divergence.binary(batch.logp, batch.rollout_logp, measure)
        else:
            d = getattr(divergence, measure)(batch.logp, batch.rollout_logp)
        output = apply("dppo", *batch[:4], d, delta=0.01)
        assert bool((output.keep[batch.valid] == 0).any())
        assert float(loss) == pytest.approx(-float(aggregate(output.objective, batch.valid, "token-mean")))
        assert metrics["rule_sums/divergence"].values == pytest.approx([float(d[batch.valid].sum())])
        assert metrics["rule_sums/divergence_max"].aggregation == AggregationType.MAX

    def test_no_entropy_is_no_metric(self) -> None:
        _, metrics, _ = call(actor("dppo", {"delta": 0.1}), responses())
        found = rule_metrics(reduced([[[metrics]]]))
        assert "train/entropy" not in found and "train/grad_norm" not in found

    def test_the_watch_sees_the_tokens_of_the_rule(self) -> None:
        seen: list[ObservedTokens] = []
        batch = responses()
        call(actor("dppo", {"delta": 0.1}, **TOPK), batch, watch=seen.append)
        [watched] = seen
        for name in ("logp", "rollout_logp", "divergence", "advantages"):
            value = getattr(watched, name)
            assert not value.requires_grad
            torch.testing.assert_close(value[batch.valid], getattr(batch, name)[batch.valid])
        assert torch.equal(watched.valid, batch.valid)
        assert watched.tokens[0].tolist() == [100, 101, 102, 103, 104, 105]
        assert watched.tokens[1].tolist() == [100, 101, 0, 0, 0, 0]

    def test_padded_columns_are_taken_as_nested_ones(self) -> None:
        """verl's V0 trainer hands on padded columns."""
        batch = responses()
        config = actor("cppo", CPPO, **TOPK)
        nested_loss, _, nested_gradient = call(config, batch)
        loss, _, gradient = call(
            config, batch, old_log_probs=batch.rollout_logp, advantages=batch.advantages,
            response_mask=batch.valid.long(),
        )  # fmt: skip
        assert loss == nested_loss
        assert torch.equal(gradient, nested_gradient)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_log_probabilities_that_are_not_finite(self, value: float) -> None:
        batch = responses()
        batch.logp[0, 3] = value
        with pytest.raises(NotFinite):
            call(actor("grpo", CONSTANTS["grpo"]), batch, measured=False)

    def test_a_ratio_that_overflows(self) -> None:
        batch = responses()
        batch.rollout_logp[0, 3], batch.advantages[0] = -1000.0, -1.0
        with pytest.raises(NotFinite, match="probability ratio of kept token"):
            call(actor("ppo", CONSTANTS["ppo"]), batch, measured=False)

    def test_padding_may_hold_anything(self) -> None:
        batch = responses()
        expected = call(actor("cppo", CPPO, **TOPK), batch)
        batch.logp[~batch.valid] = float("nan")
        batch.advantages[~batch.valid] = float("inf")
        found = call(actor("cppo", CPPO, **TOPK), batch)
        assert found[0] == expected[0]
        torch.testing.assert_close(found[2].nan_to_num(0.0), expected[2])

    @pytest.mark.parametrize(
        "keys, message",
        [
            ({"loss_agg_mode": "token-sum"}, "unknown actor.loss_agg_mode 'token-sum'"),
            ({"loss_agg_mode": "seq-mean-token-sum"}, "needs the column minibatch_responses"),
            ({"loss_agg_mode": "seq-mean-token-sum-norm"}, "without policy_loss.horizon"),
            ({"entropy_coeff": 0.01}, "actor.entropy_coeff=0.01"),
            ({"use_kl_loss": True}, "actor.use_kl_loss=True"),
        ],
    )
    def test_what_the_actor_may_not_ask(self, keys: dict[str, Any], message: str) -> None:
        config = plain_actor(TrustRegionLossConfig(rule="dppo", constants={"delta": 0.1}), **keys)
        with pytest.raises(UserError, match=message):
            call(config, responses())

    def test_the_rule_that_shuffles_needs_a_permutation(self) -> None:
        name = "cppo_no_prefix_budget_shuffled"
        with pytest.raises(UserError, match="needs the column weight_permutation"):
            call(actor(name, CONSTANTS[name], **TOPK), responses())

    def test_a_divergence_that_was_not_measured(self) -> None:
        with pytest.raises(UserError, match="distillation_use_topk"):
            call(actor("dppo", {"delta": 0.1}, **TOPK), responses(), measured=False)


class TestRegisteredLoss:
    """`trust_region` through verl's own ppo_loss."""

    def stock(self, config: Any, batch: TokenBatch, weights: Tensor | None) -> Any:
        logp = batch.logp.clone().requires_grad_()
        prompts = [3, 2, 4, 2]
        given = {"old_log_probs": batch.rollout_logp, "advantages": batch.advantages}
        if weights is not None:
            given["rollout_is_weights"] = weights
        data, lengths = micro_batch(
            given,
            batch.valid,
            prompts,
            dp_size=1,
            batch_num_tokens=int(batch.valid.sum()),
            global_batch_size=3,
        )
        loss, metrics = ppo_loss(config, {"log_probs": packed_output(logp, lengths, prompts)}, data)
        loss.backward()
        return loss.detach(), metrics, logp.grad

    @pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
    @pytest.mark.parametrize("given", [True, False])
    def test_equal_to_the_two_phase_loss(self, given: bool, mode: str) -> None:
        batch = responses()
        config = actor("cppo", CPPO, mode, **(TOPK if given else {"estimator": "binary"}))
        loss, metrics, gradient = self.stock(config, batch, batch.divergence if given else None)
        expected, reported, expected_gradient = call(
            config, batch, measured=given, minibatch_responses=counts(batch)
        )
        assert loss == expected
        assert torch.equal(gradient, expected_gradient)
        share = rule_metrics(reduced([[[reported]]]))["rule/masked_fraction"]
        assert share > 0
        assert metrics["actor/rule/masked_fraction"].values == pytest.approx([share])

    def test_what_it_cannot_do_is_said(self) -> None:
        with pytest.raises(UserError, match="did not measure D_t"):
            self.stock(actor("cppo", CPPO, **TOPK), responses(), None)
        from verl.workers.config import PolicyLossConfig

        with pytest.raises(
            UserError, match=r"set policy_loss._target_ to cppo_lab\.cores\.verl\.loss\.TrustRegionLossConfig"
        ):
            self.stock(plain_actor(PolicyLossConfig(loss_mode="trust_region")), responses(), None)


class TestVerlsLosses:
    """A loss of verl's own with our diagnostics."""

    @pytest.mark.parametrize(
        "loss_mode",
        ["vanilla", "gspo", "sapo", "geo_mean", "clip_cov", "kl_cov", "dro", "cispo", "dppo_tv", "dppo_kl"],
    )
    @pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
    def test_value_and_gradient_are_verls(self, loss_mode: str, mode: str) -> None:
        batch = responses()
        keys = {"dro_beta": 0.1, "clip_cov_lb": -1.0}
        config = actor(mode=mode, loss_mode=loss_mode, **keys, **TOPK)
        found = []
        for ours in (True, False):
            torch.manual_seed(0)  # clip_cov draws tokens
            logp = batch.logp.clone().requires_grad_()
            data, lengths = micro_batch(
                {"old_log_probs": batch.rollout_logp, "advantages": batch.advantages}, batch.valid, [2] * 4,
                dp_size=1, batch_num_tokens=12, global_batch_size=4 if ours else 3,
            )  # fmt: skip
            output = {"log_probs": packed_output(logp, lengths, [2] * 4)}
            if ours:  # the row that pads counts for verl, and not for us
                output["divergence"] = packed_output(batch.divergence, lengths, [2] * 4)
                data["minibatch_responses"] = counts(batch)
            loss, metrics = (trust_region_loss if ours else ppo_loss)(config, output, data)
            loss.backward()
            found.append((loss.detach(), logp.grad, metrics))
        (loss, gradient, metrics), (expected, expected_gradient, verls) = found
        assert loss == expected
        assert torch.equal(gradient, expected_gradient)
        assert set(verls) <= set(metrics)
        summary = rule_metrics(reduced([[[{k: v for k, v in metrics.items() if k.startswith("rule_sums")}]]]))
        d, ratio = batch.divergence[batch.valid], (batch.logp - batch.rollout_logp)[batch.valid].exp()
        assert summary["rule/divergence_mean"] == pytest.approx(float(d.mean()))
        assert summary["rule/divergence_max"] == pytest.approx(float(d.max()))
        assert summary["rule/ratio_mean"] == pytest.approx(float(ratio.mean()))
        assert "rule/masked_fraction" not in summary
        assert summary["train/loss"] == pytest.approx(float(expected))


def sums_of(batch: TokenBatch) -> MismatchSums:
    return mismatch_sums(log_ratios(batch.logp, batch.rollout_logp, batch.valid))


class TestMismatch:
    """The metrics between sampler and trainer through verl's reductions."""

    def parts(self, batch: TokenBatch, cuts: list[list[list[slice]]], **keys: Any) -> dict[str, list[float]]:
        """The metrics of a step whose minibatches are cut into [minibatch][rank][micro-batch]."""
        config = actor("dppo", {"delta": 0.1}, **keys)
        minibatches = [
            [
                [
                    call(config, TokenBatch(*(each[rows] for each in batch)), measured=False)[1]
                    for rows in rank
                ]
                for rank in minibatch
            ]
            for minibatch in cuts
        ]
        found = by_minibatch(minibatches)
        summarise_mismatch(found)
        return found

    def values(self, found: dict[str, list[float]]) -> dict[str, float]:
        own = {name: each for name, each in found.items() if name.startswith("mismatch/")}
        assert all(len(each) == 1 for each in own.values())
        return {name: value for name, [value] in own.items()}

    def wide(self) -> TokenBatch:
        """Twelve responses, some of them empty."""
        batch = random_batch(3, rows=12, width=9)
        lengths = torch.tensor([9, 1, 2, 0, 3, 4, 9, 0, 5, 6, 7, 8])
        return batch._replace(valid=torch.arange(9) < lengths[:, None])

    def test_one_minibatch_however_it_is_cut(self) -> None:
        batch = self.wide()
        four = [slice(i, i + 4) for i in (0, 4, 8)]
        two = [slice(i, i + 2) for i in range(0, 12, 2)]
        whole = metrics([sums_of(batch)])
        ways = [
            [[four]],
            [[two]],
            [[two[:3], two[3:]]],
            [[[each] for each in four]],
            [[[each] for each in two]],
        ]
        for cuts in ways:
            found = self.values(self.parts(batch, cuts))
            assert {n: v for n, v in found.items() if "before_update" not in n} == pytest.approx(
                whole, rel=1e-6
            )
            names = {name: name.replace("mismatch/", "mismatch/before_update/") for name in whole}
            assert {n: found[names[n]] for n in whole} == pytest.approx(whole, rel=1e-6)

    def test_minibatches_weigh_by_their_tokens_and_the_first_is_the_state_before(self) -> None:
        batch = self.wide()
        cuts = [[[slice(0, 4)], [slice(4, 8)]], [[slice(8, 10)], [slice(10, 12)]]]
        found = self.values(self.parts(batch, cuts))
        first = TokenBatch(*(each[:8] for each in batch))
        expected = metrics([sums_of(batch)]) | metrics([sums_of(first)], before_update=True)
        assert found == pytest.approx(expected, rel=1e-6)

    def test_a_minibatch_of_padding_alone_is_not_the_first(self) -> None:
        batch = self.wide()
        empty = slice(3, 4)
        plain = self.values(self.parts(batch, [[[slice(0, 2)]], [[slice(4, 6)]]]))
        padded = self.values(self.parts(batch, [[[empty]], [[slice(0, 2)]], [[slice(4, 6)]]]))
        assert padded == pytest.approx(plain)

    def test_no_sum_is_left_and_rule_metrics_has_them(self) -> None:
        found = self.parts(self.wide(), [[[slice(0, 12)]]])
        assert not any("/gap/" in name for name in found)
        from verl.utils.metric import reduce_metrics
        from verl.utils.py_functional import rename_dict

        row = rule_metrics(reduce_metrics(rename_dict(dict(found), "actor/")))
        assert {n: v for n, v in row.items() if n.startswith("mismatch/")} == self.values(found)
        assert all(schema.is_known_metric(name) for name in row)

    def test_switched_off(self) -> None:
        found = self.parts(self.wide(), [[[slice(0, 12)]]], mismatch=False)
        assert not self.values(found) and not any("/gap/" in name for name in found)

    def test_verls_own_losses_have_them(self) -> None:
        batch = responses()
        _, reported, _ = call(actor(loss_mode="vanilla"), batch, measured=False)
        found = by_minibatch([[[reported]]])
        summarise_mismatch(found)
        whole = metrics([sums_of(batch)])
        assert {n: self.values(found)[n] for n in whole} == pytest.approx(whole, rel=1e-6)
