"""The responses that are kept of a step: from marked rows of micro-batches on two ranks, without Ray."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("verl")

from cppo_lab import rules as records
from cppo_lab.cores.verl.kept_responses import PLACE, Decided, KeptResponse, in_places, kept_responses
from cppo_lab.cores.verl.loss import trust_region_loss
from cppo_lab.maths.rules import RULES
from cppo_lab.rules import MINIBATCH
from tests.cores.verl.recorded import actor, micro_batch, nested, packed_output
from tests.maths.maths_batches import (
    CONSTANTS,
    TokenBatch,
    apply,
    constants,
    random_batch,
    random_permutation,
)
from tests.oracles.loops import cppo_response

pytestmark = pytest.mark.verl
OF_RESPONSES = [name for name in RULES if MINIBATCH not in records.RULES[name].needs]
LENGTHS = (12, 3, 7, 1, 12, 5, 0)
MICRO_BATCHES = [[[5, 0, 1], [2]], [[4, 6], [3]]]  # [rank][micro-batch] -> rows; row 6 pads
KEPT = {4: 0, 0: 1, 3: 2, 1: 3}  # row -> place


def responses() -> TokenBatch:
    """Seven responses in float64; an advantage for each, as training has them."""
    batch = random_batch(3, rows=len(LENGTHS))
    advantages = batch.advantages[:, :1].expand_as(batch.advantages)
    valid = torch.arange(12) < torch.tensor(LENGTHS)[:, None]
    return batch._replace(valid=valid, advantages=advantages)


def kept(name: str, batch: TokenBatch, marked: dict[int, int] | None = None) -> list[KeptResponse]:
    """What the ranks keep of a minibatch under a rule."""
    marked = KEPT if marked is None else marked
    config = actor(name, CONSTANTS[name], measure="kl" if name.startswith("trm") else "tv", estimator="topk",
                   k=4, convention="union", horizon=20)  # fmt: skip
    of_ranks = []
    for cuts in MICRO_BATCHES:
        of_rank: list[KeptResponse] = []
        for index in cuts:
            given = {"old_log_probs": batch.rollout_logp, "advantages": batch.advantages}
            if config.policy_loss.needs_permutation:
                given["weight_permutation"] = random_permutation(batch.valid, 0).int()
            columns: dict[str, Any] = {key: value[index] for key, value in given.items()}
            data, lengths = micro_batch(
                columns, batch.valid[index], [2] * len(index), dp_size=2,
                batch_num_tokens=int(batch.valid.sum()), global_batch_size=7,
            )  # fmt: skip
            data["responses"] = nested(
                [torch.arange(n) + 100 * row for row, n in zip(index, lengths, strict=True)]
            )
            data["minibatch_responses"] = torch.full((len(index), 1), 6.0)
            if marked:
                data[PLACE] = nested([torch.tensor([marked.get(row, -1)]) for row in index])
            output = {
                "log_probs": packed_output(batch.logp[index], lengths, [2] * len(index)),
                "divergence": packed_output(batch.divergence[index], lengths, [2] * len(index)),
            }

            def keep(decided: Decided, of_rank: list[KeptResponse] = of_rank) -> None:
                of_rank += kept_responses(decided)

            trust_region_loss(config, output, data, keep=keep)
        of_ranks.append(of_rank)
    assert [len(of_rank) for of_rank in of_ranks] == ([2, 2] if marked else [0, 0])
    return in_places(of_ranks)


@pytest.mark.parametrize("name", OF_RESPONSES)
def test_the_marked_rows_are_kept_as_the_rule_sees_them(name: str) -> None:
    batch = responses()
    whole = apply(name, *batch, **constants(name, batch))
    found = kept(name, batch)
    assert [one.place for one in found] == [0, 1, 2, 3]
    for row, one in zip(KEPT, found, strict=True):
        length = LENGTHS[row]
        assert one.token.tolist() == [100 * row + t for t in range(length)]
        assert one.advantage == pytest.approx(float(batch.advantages[row, 0]))
        columns = {"logp": batch.logp, "rollout_logp": batch.rollout_logp, "divergence": batch.divergence}
        for column, values in (columns | {"keep": whole.keep}).items():
            np.testing.assert_allclose(
                getattr(one, column), values[row, :length].detach().numpy(), rtol=1e-6, atol=1e-7
            )
        shuffled = name == "cppo_no_prefix_budget_shuffled"
        order = random_permutation(batch.valid, 0)[row, :length].tolist() if shuffled else []
        assert one.order.tolist() == order
        touched = {test: failed[row, :length] for test, failed in whole.tests.items()}
        if touched:
            assert one.tests == tuple(touched)
        for t in range(length):
            first = next((n for n, test in enumerate(touched, 1) if touched[test][t]), 0)
            assert one.reason[t] == (first if touched else int(one.keep[t] < 1))


def test_cppos_reasons_are_those_of_a_plain_loop() -> None:
    batch = responses()
    own = {key: value for key, value in CONSTANTS["cppo"].items() if key != "delta_b_mode"}
    by_token = by_prefix = 0
    for row, one in zip(KEPT, kept("cppo", batch), strict=True):
        length = LENGTHS[row]
        log_ratio = (batch.logp - batch.rollout_logp)[row, :length].tolist()
        advantages, divergence = batch.advantages[row, :length], batch.divergence[row, :length]
        mask, token, prefix = cppo_response(
            log_ratio, advantages.tolist(), divergence.tolist(), adaptive=True, **own
        )
        assert one.keep.tolist() == mask
        assert one.tests == ("threshold", "budget")
        assert [int((one.reason == number).sum()) for number in (1, 2)] == [token, prefix]
        assert ((one.reason > 0) == (one.keep == 0)).all()
        by_token, by_prefix = by_token + token, by_prefix + prefix
    assert by_token and by_prefix


def test_without_marks_nothing_is_kept() -> None:
    assert kept("cppo", responses(), {}) == []
