"""The exact core's training: its loss over every response, rules, what ends a run, runs together.

The surrogate and its error: test_exact_process.py.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cppo_lab import schema
from cppo_lab.core_records import Resources
from cppo_lab.cores.base import exact_datasets
from cppo_lab.cores.exact import trainer as trainer_module
from cppo_lab.cores.exact.process import returns_by_start, sample, state_probabilities
from cppo_lab.cores.exact.trainer import (
    GradedResponses,
    Learner,
    histories_together,
)
from cppo_lab.errors import NotFinite
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.divergence import Recorded
from cppo_lab.maths.rules import aggregate, centred, corrected, get_rule
from cppo_lab.maths.tokens import Tokens
from cppo_lab.spec import ExactRun
from tests.cores.exact_specs import CPPO, DISTURBED, DPPO, SHUFFLED, exact_run
from tests.cores.test_mini import Rows, attempt, seeded, without_times

REVERSED = {**SHUFFLED, "name": "cppo_no_prefix_budget_reversed"}


def numbers(rows: Rows) -> Rows:
    """`rows` without times."""
    return [(step, without_times(row)) for step, row in rows]


def history(spec: ExactRun) -> Rows:
    """Of a run alone."""
    [(reason, rows)] = histories_together([spec])
    assert not reason
    return numbers(rows)


def sampled(learner: Learner, log_mu: torch.Tensor) -> GradedResponses:
    """A batch of responses; that their places are those of their tokens: test_exact_process.py."""
    given = (part[None].numpy() for part in (log_mu.exp(), *learner.draw()))
    return learner.rollout(log_mu, *(torch.from_numpy(part[0]) for part in sample(learner.process, *given)))


def apart(learner: Learner, seed: int) -> None:
    """Move the policy of a learner."""
    noise = torch.randn(learner.parameters.shape, generator=seeded(seed), dtype=torch.float64)
    learner.parameters.data += 0.3 * noise


TOPK = {"estimator": "topk", "measure": "tv", "k": 6, "convention": "union"}  # the whole vocabulary
CENTRED = {"objective": {"centering": True}}


def decoupled(weigh: str, reject: str, origin: str) -> dict[str, Any]:
    return {
        "rollout": {"correction": "decoupled", "rollout_is": weigh, "rollout_is_threshold": 1.3,
                    "rollout_rs": reject, "rollout_rs_threshold": 1.4},
        "divergence": {"estimator": "exact", "measure": "tv", "origin": origin},
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes, name, constants",
    [
        ({}, "pdm", {"delta": 0.05}),
        ({}, "estr", {"tau": 0.05, "clip_low": 0.2, "clip_high": 0.28}),
        (CENTRED, "cispo", {"clip_high": 0.1}),
        ({**CENTRED, "divergence": TOPK}, "cispo", {"clip_high": 0.1}),
        (decoupled("token", "seq_mean_k1", "mu"), "pdm", {"delta": 0.05}),
        (decoupled("sequence", "token_k1", "old"), "pdm", {"delta": 0.05}),
        (decoupled("sequence", "token_k1", "mu"), "dppo", {"delta": 0.05}),
    ],
)
def test_the_loss_is_that_of_the_maths(
    changes: dict[str, Any], name: str, constants: dict[str, float]
) -> None:
    """With the direction of D_t, the entropy of mu and the mean score, by both policies' distributions at each token.

    In a decoupled run with the weights of pi_old, from which or from mu the divergence is measured.
    """
    learner = Learner(exact_run(rule={"name": name, **constants}, **changes))
    log_mu = learner.log_policy(1.0).detach()
    apart(learner, 1)
    log_old, weights = learner.log_policy(1.0).detach(), learner.spec.rollout.weights
    apart(learner, 2)
    rollout = sampled(learner, log_mu)
    worth = torch.where(torch.arange(len(rollout.keep)) % 2 == 0, 1.0, -1.0).double()
    rollout = replace(rollout, advantages=worth)
    old = None if weights is None else learner.recorded(log_old)
    result = learner.objective(rollout, torch.arange(len(worth)), old)
    states, drawn = rollout.places // 6, rollout.places % 6
    mu, before, pi = (table.flatten(0, 1)[states] for table in (log_mu, log_old, learner.log_policy(1.0)))
    logp, mu_logp, old_logp = (table.gather(-1, drawn[..., None])[..., 0] for table in (pi, mu, before))
    now, of_old = pi.detach(), bool(learner.spec.divergence.origin)
    start, start_logp = (before, old_logp) if of_old else (mu, mu_logp)
    every = torch.arange(6).expand(mu.shape)
    of_start = Recorded(drawn, start_logp, every, start)
    tokens = Tokens(
        logp, mu_logp if weights is None else old_logp, worth[:, None].expand_as(logp), drawn >= 0,
        divergences.exact(start, now), origin_logp=start_logp,
        drift=divergences.drift(of_start, now, logp.detach(), measure="tv"), topk_pi_logp=pi,
        rollout_entropy=divergences.topk_entropy(mu), topk_ids=every, topk_logp=mu,
    )  # fmt: skip
    rule = partial(centred, get_rule(name)) if "objective" in changes else get_rule(name)
    expected = rule(tokens, **constants)
    if weights is not None:
        expected = corrected(expected, tokens, mu_logp, **weights)
        assert 0 < int(expected.stats["rejected"]) < drawn.numel()
    loss = -aggregate(expected.objective, tokens.valid, learner.spec.training.aggregation)
    gradients = [torch.autograd.grad(part, learner.parameters)[0] for part in (result.loss, loss)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-14)
    assert float(gradients[0].abs().max()) > 1e-3
    assert float(result.loss.detach()) == pytest.approx(float(loss.detach()), abs=1e-14)
    stats = {key: float(value) for key, value in result.output.stats.items()}
    assert stats == pytest.approx({key: float(value) for key, value in expected.stats.items()})
    assert 0 < stats["masked"] + stats.get("clipped", 0) < drawn.numel()


def test_a_decoupled_run_measures_from_the_policy_before_its_updates() -> None:
    """Without staleness and noise it is the run of two policies to the bit; with them, pi_old is not mu."""
    weighed = {"correction": "decoupled", "rollout_is": "token", "rollout_is_threshold": 2.0}
    plain, same = (history(exact_run(rollout=rollout)) for rollout in ({}, weighed))
    for _, row in same[1:]:
        assert (row.pop("rule/importance_weight_mean"), row.pop("rule/rejected_fraction")) == (1, 0)
    assert same == plain
    # The only update starts from pi_old.
    late = {"batch": {"minibatch_prompts": 8}, "rollout": weighed | {"staleness": 1}}
    stale = history(exact_run(**late))
    own = history(exact_run(**late, divergence={"estimator": "exact", "measure": "tv", "origin": "old"}))
    assert [row["rule/divergence_mean"] for _, row in own[1:]] == [0.0] * (len(own) - 1)
    assert all(row["rule/divergence_mean"] > 1e-3 for _, row in stale[2:])
    assert "exact/premise_visits" in stale[-1][1]
    assert not any("premise" in name for name in own[-1][1])


@pytest.mark.parametrize(
    "length, tokens", [(4, {1: 1, 3: 1, 5: 1, 7: 1}), (12, {1: 2, 2: 1, 3: 2, 4: 1, 5: 2, 6: 1, 7: 2, 8: 1})]
)
def test_a_token_is_in_the_eighth_of_its_place(length: int, tokens: dict[int, int]) -> None:
    """Also of a response shorter than eight tokens, and of one that eight does not divide."""
    short = {"model": {"stretches": 4, "slips": 2}, "rollout": {"max_response_length": length}}
    row = history(exact_run(**short))[-1][1]
    movement = {
        part: row[name] for part in range(1, 9) if (name := schema.position_metric("movement", part)) in row
    }
    assert movement.keys() == tokens.keys()
    total = sum(movement[part] * count for part, count in tokens.items())
    assert total / length == pytest.approx(row["exact/movement"], abs=1e-12)


@pytest.mark.parametrize("length", [16, 304])
def test_every_step_logs_the_identity_and_known_names(length: int) -> None:
    rollout = DISTURBED["rollout"] | {"max_response_length": length}
    rows = history(exact_run(**DISTURBED | {"rollout": rollout}))
    for _, row in rows:
        assert all(map(schema.is_known_metric, row))
    for _, row in rows[1:]:
        gain = row["exact/return"] - row["exact/rollout_return"]
        assert row["exact/surrogate"] - row["exact/error"] == pytest.approx(gain, abs=1e-10)
        bound, error = row["exact/bound"], abs(row["exact/error"])
        assert error <= row["exact/product_bound"] <= bound <= row["exact/theorem_bound"]
        assert row["exact/bound_slack"] == pytest.approx(bound - error)
        for name, parts in (("error", 1), ("movement", schema.POSITION_BINS)):
            of_parts = [row[schema.position_metric(name, n)] for n in range(1, schema.POSITION_BINS + 1)]
            assert sum(of_parts) / parts == pytest.approx(row[f"exact/{name}"], abs=1e-12)
        assert row["exact/movement_before"] > 0
        assert row["exact/error_before"] != row["exact/error"]
        assert 0 < row["exact/premise_visits"] < row["exact/premise_positions"] <= 1
        assert 0 <= row["exact/premise_prefixes"] <= 1
    scores = [row["val/mean/avg_at_16"] for _, row in rows if "val/mean/avg_at_16" in row]
    assert len(scores) == 4
    assert rows[-1][1]["exact/return"] == pytest.approx(
        sum(rows[-1][1][f"val/{name}/avg_at_16"] * n for name, n in (("a", 2), ("b", 2), ("c", 1))) / 5
    )


def test_a_drawn_order_of_weights_is_not_the_order_of_positions() -> None:
    in_order = {**SHUFFLED, "name": "cppo_no_prefix_budget"}
    assert history(exact_run(rule=SHUFFLED)) != history(exact_run(rule=in_order))


@pytest.mark.parametrize(
    "rule",
    [CPPO, DPPO, SHUFFLED, REVERSED, {**CPPO, "name": "cppo_random_mask"}],
)
def test_what_is_beyond_the_limits_of_a_mask(rule: dict[str, Any]) -> None:
    """Against plain loops: weights, sums and the fixed rate as the paper has them, on a batch that has an order, as
    where the training that is gone along shuffles.
    """
    delta, horizon = 0.03, 16
    learner = Learner(exact_run(rule={**rule, "delta": delta}))
    learner.shuffles = True
    log_mu, generator = learner.log_rollout_policy(), np.random.default_rng(0)
    rollout = sampled(learner, log_mu)
    divergence = torch.from_numpy(generator.exponential(0.01, log_mu.shape[:2]))
    largest = torch.from_numpy(generator.uniform(0.01, 0.05, horizon))
    measured = learner.premise(rollout, divergence, largest)

    w_min = rule.get("w_min", 1.0)
    weights = [1 - (1 - w_min) * t / (horizon - 1) for t in range(horizon)]
    if rule is REVERSED:
        weights = weights[::-1]
    visits, prefixes, positions = [], [], set()
    for i, places in enumerate(rollout.places.tolist()):
        order = rollout.permutation[i].tolist() if rule is SHUFFLED else range(horizon)
        spent = allowed = 0.0
        for t, place in enumerate(places):
            weight, moved = weights[order[t]], float(divergence.flatten()[place // 6])
            visits.append(weight * moved > delta)
            if weight * largest[t] > delta:
                positions.add(t)
            spent += weight * moved
            prefixes.append(spent > delta + rule.get("delta_b", 0) * allowed)
            allowed += weight
    expected = {"exact/premise_visits": np.mean(visits), "exact/premise_positions": len(positions) / horizon}
    if rule["name"] in ("cppo", "cppo_random_mask"):
        expected["exact/premise_prefixes"] = np.mean(prefixes)
    assert measured == pytest.approx(expected)
    assert all(0 < share < 1 for share in measured.values())


@pytest.mark.parametrize("rule", [{"name": "drpo", "delta": 0.1}, {"name": "cfpo", "delta": 0.2}])
def test_a_delta_that_limits_no_divergence_is_no_premise(rule: dict[str, Any]) -> None:
    for _, row in history(exact_run(rule=rule)):
        assert not [name for name in row if name.startswith("exact/premise")]


def test_tokens_of_dropped_groups_are_not_trained() -> None:
    [(_, rows)] = histories_together([exact_run()])
    shares = {row["train/zero_variance_group_share"] for _, row in rows[1:]}
    assert len(shares) > 1
    for _, row in rows[1:]:
        sampled, trained = (
            row[f"perf/{what}_tokens_per_second"] * row[f"perf/{part}_seconds"]
            for what, part in (("sampled", "rollout"), ("trained", "update"))
        )
        assert trained == pytest.approx(sampled * (1 - row["train/zero_variance_group_share"]))


def test_it_learns() -> None:
    rows = history(exact_run(training={"t_stop": 20}))
    assert rows[-1][1]["val/mean/avg_at_16"] > rows[0][1]["val/mean/avg_at_16"] + 0.3


@pytest.mark.parametrize("rule", [CPPO, SHUFFLED])
@pytest.mark.parametrize("changes", [{}, DISTURBED])
def test_runs_together_have_the_numbers_that_they_have_alone(
    rule: dict[str, Any], changes: dict[str, Any]
) -> None:
    """To the bit, whatever the company."""
    specs = [exact_run(rule=rule, seed=seed, **changes) for seed in (3, 0, 7)]
    together = histories_together(specs)
    for spec, (reason, rows) in zip(specs, together, strict=True):
        assert not reason
        assert numbers(rows) == history(spec)
    with pytest.raises(ValueError, match="must differ only in the seed"):
        histories_together([*specs, exact_run(rule=DPPO)])


def test_a_run_that_breaks_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient that is not finite ends its run; the others go on as if alone."""
    specs = [exact_run(seed=seed) for seed in (0, 1)]
    descend, updates = Learner._descend, []

    def broken(self: Learner, loss: torch.Tensor) -> float:
        updates.append(self.spec.seed)
        return descend(self, loss * (math.inf if self.spec.seed == 1 and updates.count(1) > 13 else 1))

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "_descend", broken)
        whole, broke = histories_together(specs)
    assert numbers(whole[1]) == history(specs[0])
    assert "is inf" in broke[0] or "is nan" in broke[0]
    assert 1 < len(broke[1]) < len(whole[1])


@pytest.mark.parametrize("horizon", [16, 64])
def test_the_start_slips_as_often_as_it_says(horizon: int) -> None:
    """Without a fork every token slips with the same probability: the reward is a binomial tail."""
    spec = exact_run(
        data={"family": "no_fork"}, model={"start_noise": 0.0}, rollout={"max_response_length": horizon}
    )
    learner = Learner(spec)
    policy = learner.log_policy(1.0).detach().exp()[None].numpy()
    p = 4.0 / horizon
    tail = sum(math.comb(horizon, k) * p**k * (1 - p) ** (horizon - k) for k in range(3))
    assert returns_by_start(learner.process, policy)[0] == pytest.approx([tail] * 5, abs=1e-12)


@pytest.mark.parametrize("family", ["early_fork", "late_fork"])
def test_the_start_forks_as_often_as_it_says(family: str) -> None:
    spec = exact_run(
        data={"family": family},
        model={"start_noise": 0.0, "fork": 0.3},
        rollout={"max_response_length": 64},
    )
    process = Learner(spec).process
    policy = Learner(spec).log_policy(1.0).detach().exp()[None].numpy()
    second = state_probabilities(process, policy)[:, 0, process.states // 2 :].sum(1)
    window = np.flatnonzero(process.forks)
    assert second[window[0]] == 0
    assert second[window[-1] + 1] == pytest.approx(0.3, abs=0.05)  # a second fork, seldom, changes back


def test_datasets_are_named_by_what_decides_them() -> None:
    """The training set by the seed as well."""
    kinds = ({}, {"rule": DPPO}, {"seed": 1}, {"rollout": {"max_response_length": 32}})
    first, rule, seed, longer = (
        exact_datasets(exact_run(**kind), Resources(Path(), Path())) for kind in kinds
    )
    assert [(one.name, one.profile["problems"]) for one in first] == [
        ("early", 48),
        ("a", 2),
        ("b", 2),
        ("c", 1),
    ]
    assert rule == first and seed[1:] == first[1:]
    assert len({one.digest for sets in (first, seed[:1], longer) for one in sets}) == 4 + 1 + 4


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let every run fail in its training step, the first that is tried."""

    def fail(learners: Sequence[Learner], step: int) -> list[Exception]:
        assert step == 1
        return [error for _ in learners]

    monkeypatch.setattr(trainer_module, "step_together", fail)


def test_runs_that_have_all_ended_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, NotFinite("a gradient is infinite"))
    for reason, rows in histories_together([exact_run(), exact_run(seed=1)]):
        assert (reason, [step for step, _ in rows]) == ("a gradient is infinite at step 1", [0])


def test_an_error_that_is_no_collapse_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ZeroDivisionError("no collapse"))
    with pytest.raises(ZeroDivisionError, match="no collapse"):
        histories_together([exact_run()])
    with pytest.raises(ZeroDivisionError, match="no collapse"):
        attempt(exact_run(), tmp_path)
