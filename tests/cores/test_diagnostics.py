"""The per-token diagnostics: of plain tensors, padded with empty rows, and of the embedded core."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from cppo_lab.cores.rule_loss import Diagnostics, ObservedTokens
from cppo_lab.maths.masks import budget_terms
from cppo_lab.maths.tokens import Tokens
from cppo_lab.spec import RuleSpec
from tests.cores.test_mini import trainer_of
from tests.maths.maths_batches import apply, random_batch

RULE = RuleSpec(name="cppo", delta=0.1, delta_b=0.01, delta_b_mode="fixed", w_min=0.8)


def watched(lengths: list[int]) -> ObservedTokens:
    """Tokens that all move away from mu and are far from it."""
    shape = (len(lengths), 5)
    valid = torch.arange(5) < torch.tensor(lengths)[:, None]
    return ObservedTokens(
        torch.full(shape, -0.5), torch.full(shape, -1.5), torch.full(shape, 0.3), torch.ones(shape), valid,
        torch.arange(10, 15).expand(shape), torch.full(shape, -1.5),
    )  # fmt: skip


def names(ids: list[int]) -> list[str]:
    return [f"<{i}>" for i in ids]


def test_empty_rows_are_neither_counted_nor_shown() -> None:
    diagnostics = Diagnostics(RULE, horizon=6)
    diagnostics.end_step()
    diagnostics.see(1, watched([0, 0]), names)
    assert diagnostics.tables() == {}
    diagnostics.see(1, watched([0, 3, 0]), names)
    diagnostics.end_step()
    tables = diagnostics.tables()
    assert tables["positions"]["tokens"] == [1, 1, 1]
    assert tables["positions"]["gap_top10"] == tables["positions"]["gap_mean"]
    assert tables["window"]["symbols"] == ["<10>", "<11>", "<12>"]
    diagnostics.see(2, watched([0]), names)
    diagnostics.end_step()
    assert diagnostics.tables()["window"]["step"] == 1


def test_a_long_response_waits_for_the_device_as_often_as_a_short_one() -> None:
    counts = []  # of numbers that leave their device
    for width in (5, 50):
        tokens = ObservedTokens(*(column.repeat(1, width // 5) for column in watched([5])))
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            Diagnostics(RULE, horizon=width).see(1, tokens, names)
        counts.append([event.name for event in seen.events()].count("aten::_local_scalar_dense"))
    assert counts[0] == counts[1] > 0


def test_positions_against_a_slow_sum(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "batch.minibatch_prompts=2")
    trainer.diagnostics.see = see = Mock(wraps=trainer.diagnostics.see)
    trainer.update(trainer.collect(), watched=True)
    seen = [call.args[1] for call in see.mock_calls]
    table = trainer.diagnostics.tables()["positions"]
    for index, position in enumerate(table["position"]):
        gaps = [
            abs(float(tokens.logp[row, index].exp() - tokens.rollout_logp[row, index].exp()))
            for tokens in seen
            if index < tokens.valid.shape[1]
            for row in tokens.valid[:, index].nonzero()[:, 0]
        ]
        top = sorted(gaps)[-math.ceil(len(gaps) / 10) :]
        assert (position, table["tokens"][index]) == (index + 1, len(gaps))
        assert table["gap_mean"][index] == pytest.approx(sum(gaps) / len(gaps), abs=1e-6)
        assert table["gap_top10"][index] == pytest.approx(sum(top) / len(top), abs=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"delta_b_mode": "adaptive"}, {"delta_b_mode": "adaptive", "delta_b_cap": 5.0}, {"position_span": "padded"},
        {"name": "cppo_no_position_weight", "w_min": None},
    ],
)  # fmt: skip
def test_the_window_agrees_with_the_rule(changes: dict[str, Any]) -> None:
    """What it says is masked is what the rule itself drops, and nothing else, by the constants that train."""
    spec = RuleSpec(**RULE.model_dump() | {"delta": 0.15, "delta_b": 0.02} | changes)
    reasons, ids, constants = set(), torch.arange(60).view(5, 12), spec.arguments(14)
    for seed in range(5):
        batch, diagnostics = random_batch(seed), Diagnostics(spec, horizon=14)
        logp, rollout_logp, advantages, valid, divergence = batch
        seen = ObservedTokens(logp, rollout_logp, divergence, advantages, valid, ids, rollout_logp)
        diagnostics.see(1, seen, names)
        window, terms = diagnostics.window, budget_terms(Tokens(*batch), constants)
        masked_by, row = window["masked_by"], int(window["symbols"][0].strip("<>")) // 12
        keep, weight, limit, d = (
            part[row, : len(masked_by)]
            for part in (apply(spec.name, *batch, **constants).keep, terms.weight, terms.limit, divergence)
        )
        assert [reason == "" for reason in masked_by] == (keep > 0).tolist()
        assert window["weighted_divergence"] == pytest.approx((weight * d).tolist())
        assert [min(0.15, c) for c in window["prefix_threshold"]] == pytest.approx(limit.tolist())
        reasons |= {*masked_by}
    assert reasons >= {"", "token", "prefix"}


BUDGET = {"delta": 0.1, "delta_b": 0.02}


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "cppo_soft", "gate": "inverse", **BUDGET},
        {"name": "cppo_random_mask", "delta_b_mode": "fixed", "w_min": 0.8, **BUDGET},
        {"name": "mine", "path": "acme:mine", **BUDGET},
        {"name": "mine", "path": "acme:mine", "delta_b": 0.02},
    ],
)
def test_a_rule_that_does_not_mask_as_cppo_does_keeps_no_window(rule: dict[str, Any]) -> None:
    diagnostics = Diagnostics(RuleSpec(**rule), horizon=6)
    diagnostics.see(1, watched([3]), names)
    diagnostics.end_step()
    assert set(diagnostics.tables()) == {"positions"}
