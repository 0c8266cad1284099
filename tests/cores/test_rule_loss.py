"""The loss of the embedded cores: its horizon, a rule whose output is none, and recipe=authors on a sampled batch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cppo_lab.cores.rule_loss import RuleLoss
from cppo_lab.errors import UserError
from cppo_lab.maths.tokens import RuleOutput, Tokens
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY
from tests.cores.test_mini import trainer_of
from tests.maths.maths_batches import random_batch
from tests.oracles.authors import authors_loss


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
        (lambda keep: keep.bool(), r"shape \[5, 12\] and torch.bool"),
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


@pytest.mark.parametrize("recipe", ["authors", "paper"])
def test_the_loss_of_a_sampled_batch(tmp_path: Path, recipe: str) -> None:
    """The second update of a batch, whose policy has left mu. recipe=paper is another loss."""
    trainer = trainer_of(tmp_path, f"recipe={recipe}", "divergence=binary_tv", "optim.learning_rate=0.01")
    run, batch = trainer.spec, trainer.collect()
    rows = torch.arange(len(batch.keep))
    generator = torch.Generator().manual_seed(0)
    advantages = torch.randn(len(rows), generator=generator)
    trainer._descend(trainer.objective(batch.rollout.select(rows), advantages).loss)
    result = trainer.objective(batch.rollout.select(rows), advantages)
    valid = result.rollout.valid()
    now, then = (
        [row[mask].double().tolist() for row, mask in zip(values, valid, strict=True)]
        for values in (result.logp, result.rollout.logp)
    )
    assert len({len(row) for row in now}) > 1
    rule = run.rule
    assert rule.delta is not None and rule.delta_b is not None and rule.w_min is not None
    wanted = authors_loss(
        now, then, advantages.double().tolist(), width=run.rollout.max_response_length,
        delta=rule.delta, delta_b=rule.delta_b, w_min=rule.w_min,
    )  # fmt: skip
    assert any(not kept for row in wanted.mask for kept in row)
    found = float(result.loss.detach())
    assert (found == pytest.approx(wanted.loss, rel=1e-4)) == (recipe == "authors")


def test_groups_are_centred_and_not_scaled(tmp_path: Path) -> None:
    """Rewards are 0 and 1."""
    batch = trainer_of(tmp_path, "recipe=authors").collect()
    for group in batch.rollout.group.unique():
        own = batch.advantages[batch.rollout.group == group]
        assert float(own.max() - own.min()) in (0.0, pytest.approx(1.0))
