"""One update of a rule from each state of another training: against plain training, and against numbers by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from cppo_lab import schema
from cppo_lab.cores.exact.process import state_probabilities
from cppo_lab.cores.exact.trainer import Learner, equal_length, histories_together, learner_of, step_together
from cppo_lab.rules import PERMUTATION
from cppo_lab.spec import ExactRun
from tests.cores.exact_specs import CPPO, DPPO, NO_TRUST_REGION, SHUFFLED, exact_run
from tests.cores.test_exact import REVERSED, history
from tests.cores.test_mini import without_times
from tests.maths.maths_batches import CONSTANTS, apply, random_batch, random_permutation

TIGHT = {**DPPO, "delta": 0.01}
ALONG = {"rule": TIGHT, "learning_rate": 0.05, "match": "scale"}


STALE: dict[str, Any] = {"rollout": {"staleness": 4}, "model": {"mismatch": 0.02}}


def along(rule: dict[str, Any], along: dict[str, Any] = ALONG, **changes: Any) -> ExactRun:
    return exact_run(rule=rule, along=along, **changes)


def step(learner: Learner, number: int) -> dict[str, float]:
    [metrics] = step_together([learner], number)
    return without_times(metrics)


def exact_rows(spec: ExactRun) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k.startswith("exact/")} for _, row in history(spec)[1:]]


def test_the_rule_that_trains_measures_its_own_training() -> None:
    """And another learning rate changes the measured update alone."""
    measured = exact_rows(along(TIGHT))
    plain = exact_rows(exact_run(rule=TIGHT))
    slower = exact_rows(along(TIGHT, optim={"learning_rate": 0.01}))
    assert slower[0]["exact/update_length"] > 1 and slower[0]["exact/error"] != measured[0]["exact/error"]
    assert [r["exact/rollout_return"] for r in slower] == [r["exact/rollout_return"] for r in measured]
    assert all(map(schema.is_known_metric, measured[0]))
    for row, other in zip(measured, plain, strict=True):
        assert row.pop("exact/matched") == 1
        # By bisection, whose last bit depends on the processor.
        assert row.pop("exact/update_length") == pytest.approx(1, rel=1e-12)
        assert row.pop("exact/update_movement") == pytest.approx(row["exact/movement"], rel=1e-9)
        assert row == pytest.approx(other, rel=1e-9, abs=1e-12)


LATER = STALE | {"training": {"t_stop": 8}}


@pytest.mark.parametrize(
    "rule, match, changes",
    [
        *((rule, "scale", {}) for rule in (CPPO, NO_TRUST_REGION, SHUFFLED, REVERSED)),
        *((rule, "scale", LATER) for rule in (CPPO, NO_TRUST_REGION)),
        (NO_TRUST_REGION, "update", LATER | {"model": {"mismatch": 0.2}}),
    ],
)
def test_every_rule_is_measured_on_the_same_training_at_the_same_movement(
    rule: dict[str, Any], match: str, changes: dict[str, Any]
) -> None:
    """From a stale mu by what the update itself moves: its start is further from mu than its end may be. That of the
    policy itself has no part of mu's noise.
    """
    (_, reference), (_, rows) = (
        histories_together([along(name, {**ALONG, "match": match}, **changes)])[0] for name in (TIGHT, rule)
    )
    for (_, expected), (_, row) in zip(reference, rows, strict=True):
        same = [name for name in expected if name.startswith("val")]
        if "exact/movement" in expected:
            same += ["exact/rollout_return", "train/reward", *["exact/error_before"] * bool(changes)]
            assert row["exact/matched"] == 1
            moved = "exact/update_movement" if changes else "exact/movement"
            assert row[moved] == pytest.approx(expected[moved], rel=1e-9)
            assert expected["exact/update_length"] == pytest.approx(1, rel=1e-12)
        assert [row[name] for name in same] == [expected[name] for name in same]
    nearer = [row["exact/movement"] < row["exact/movement_before"] for _, row in reference[1:]]
    assert any(nearer) or not changes


def test_the_measured_update_is_the_first_of_a_training_with_that_rule_but_for_its_length() -> None:
    measured, plain = (learner_of(spec) for spec in (along(NO_TRUST_REGION), exact_run(rule=NO_TRUST_REGION)))
    start = plain.parameters.detach().clone()
    length = step(measured, 1)["exact/update_length"]
    step(plain, 1)
    assert 0.01 < length < 0.99
    moved = length * (plain.parameters.detach() - start)
    torch.testing.assert_close(measured.measured - start, moved, rtol=1e-9, atol=1e-12)


def test_matched_by_its_threshold_an_update_needs_less_change_of_length() -> None:
    scaled = exact_rows(along(NO_TRUST_REGION))
    chosen = exact_rows(along(NO_TRUST_REGION, {**ALONG, "match": "delta"}))
    for row, other in zip(chosen, scaled, strict=True):
        assert row["exact/movement"] == pytest.approx(other["exact/movement"], rel=1e-9)
        assert abs(np.log(row["exact/update_length"])) < abs(np.log(other["exact/update_length"]))
    # By the threshold of the measured update, and not by the rule's own, 1.
    assert any(row["exact/premise_visits"] for row in chosen)
    assert not any(row["exact/premise_visits"] for row in scaled)


@pytest.mark.parametrize("match", ["scale", "update"])
def test_the_movement_of_an_update_by_its_definition(match: str) -> None:
    """Where mu goes: from what mu would be of the policy before the update, or from that policy itself."""
    learner = learner_of(along(NO_TRUST_REGION, {**ALONG, "match": match}, **STALE))
    for number in range(1, 6):
        start = learner.parameters.detach().clone()
        oldest = [*learner.past, start][0]
        row = step(learner, number)
    unmoved = learner.sampler(start) if match == "scale" else learner.log_policy(1.0, start)
    process, pi = learner.process, learner.log_policy(1.0, learner.measured)
    visits = state_probabilities(process, learner.sampler(oldest).exp()[None].numpy())[:-1, 0]
    sampled, before = learner.sampler(oldest), learner.log_policy(1.0, start)
    for name, (here, there) in {
        "update_movement": (unmoved, pi),
        "movement_before": (sampled, before),
    }.items():
        apart = 0.5 * (here.exp() - there.exp()).abs().sum(-1).detach().numpy()[process.stretch]
        assert row[f"exact/{name}"] == pytest.approx((visits * apart).sum() / process.horizon, rel=1e-9)


def test_a_step_that_no_length_matches_says_so_and_has_no_error() -> None:
    # Every response is dropped: no update but that of the optimiser's momentum, which may be too short to scale.
    nothing = {"name": "geo_mask", "ratio_low": 1.0, "ratio_high": 1.0}
    rows = exact_rows(along(nothing, model={"mismatch": 0.5}))
    assert rows[0]["exact/matched"] == 0
    assert {row["exact/matched"] for row in rows} == {0.0, 1.0}
    for row in rows:
        assert ("exact/error" in row) == ("exact/update_length" in row) == (row["exact/matched"] == 1)


@pytest.mark.parametrize(
    "beyond, length",
    [
        (lambda s: s**2 - 9, 3.0),
        (lambda s: s - 0.001, 0.001),
        (lambda s: (s - 1) ** 2 - 0.25, 1.5),  # a stale mu: too far at 0, nearer, too far again
        (lambda _: -1.0, None),  # an update of length 0
        (lambda s: 1 + s, None),  # further from the start than wanted
    ],
)
def test_the_length_at_which_an_update_moves_as_far(beyond: Any, length: float | None) -> None:
    assert equal_length(beyond) == (None if length is None else pytest.approx(length, rel=1e-12))


@pytest.mark.parametrize("delta_b", [0.01, math.inf])  # with the prefix test, and without it
def test_a_random_mask_drops_as_many_tokens_that_move_away(delta_b: float) -> None:
    """The first ones in the drawn order."""
    batch, constants = random_batch(3), CONSTANTS["cppo"] | {"delta_b": delta_b, "delta_b_mode": "fixed"}
    order = random_permutation(batch.valid, 0)
    plain, random = (
        (apply(name, *batch, **drawn, **constants).keep == 0) & batch.valid
        for name, drawn in (("cppo", {}), ("cppo_random_mask", {PERMUTATION: order}))
    )
    away = (batch.advantages * (batch.logp - batch.rollout_logp) > 0) & batch.valid
    assert not torch.equal(plain, random)
    for row, count in enumerate(plain.sum(1).tolist()):
        drawn = [place for place in order[row].tolist() if away[row, place]]
        assert sorted(drawn[:count]) == random[row].nonzero()[:, 0].tolist()
    with pytest.raises(ValueError, match="permutation"):
        apply("cppo", *batch, random_mask=True, **constants)
