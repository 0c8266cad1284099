"""The loss of the embedded cores: its horizon, and a rule whose output is none."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cppo_lab.cores.rule_loss import RuleLoss
from cppo_lab.errors import UserError
from cppo_lab.maths.tokens import RuleOutput, Tokens
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY
from tests.maths.maths_batches import random_batch


def test_norm_aggregation_divides_by_the_runs_horizon() -> None:
    """Trimming a minibatch to its longest response must not change the loss."""
    values, batch = {}, random_batch(0, width=7)
    for mode in ("seq-mean-token-sum", "seq-mean-token-sum-norm"):
        run = compose([*TINY, "rule=grpo", f"training.aggregation={mode}"]).run
        values[mode] = float(RuleLoss(run)(Tokens(*batch), batch.rollout_logp)[0])
    assert values["seq-mean-token-sum-norm"] * 9 == pytest.approx(values["seq-mean-token-sum"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda keep: keep[:, :1], r"shape \[5, 1\] and torch.float64"),
        (lambda keep: keep[0], r"shape \[12\]"),
        (lambda keep: keep.bool(), r"shape \[5, 12\] and torch.bool"),
        (lambda keep: keep.float(), r"torch.float32"),
        (lambda keep: keep * torch.nan, r"a value that is NaN or outside \[0, 1\]"),
        (lambda keep: 2 * keep, r"a value that is NaN or outside \[0, 1\]"),
        (lambda keep: -keep, r"a value that is NaN or outside \[0, 1\]"),
    ],
)
def test_a_rule_whose_keep_is_none_is_named(change: Callable[[Tensor], Tensor], said: str) -> None:
    """Else it would train on, with statistics that say nothing."""
    loss = RuleLoss(compose([*TINY, "rule=grpo"]).run)
    plain, tokens = loss.rule, Tokens(*random_batch(0))
    assert loss(tokens, tokens.rollout_logp)[1].keep.any()

    def changed(given: Tokens, **constants: float) -> RuleOutput:
        output = plain(given, **constants)
        return output._replace(keep=change(output.keep))

    loss.rule = changed
    with pytest.raises(
        UserError, match=rf"rule 'grpo' returns a keep with .*{said}.*return a weight in \[0, 1\]"
    ):
        loss(tokens, tokens.rollout_logp)
