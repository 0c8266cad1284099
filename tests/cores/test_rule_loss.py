"""The loss of the embedded cores: its horizon, a rule whose output is none, and recipe=authors on a sampled batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cppo_lab.cores.rule_loss import RuleLoss
from cppo_lab.maths.divergence import binary
from cppo_lab.maths.rules import aggregate, get_rule
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import Rule
from tests.conftest import user_error
from tests.cores.test_mini import seeded, tiny, trainer_of
from tests.maths.maths_batches import random_batch


def test_norm_aggregation_divides_by_the_runs_horizon() -> None:
    """Trimming a minibatch to its longest response must not change the loss."""
    values, batch = {}, random_batch(0, width=7)
    for mode in ("seq-mean-token-sum", "seq-mean-token-sum-norm"):
        run = tiny("rule=grpo", f"training.aggregation={mode}")
        values[mode] = float(RuleLoss(run)(Tokens(*batch), batch.rollout_logp)[0])
    assert values["seq-mean-token-sum-norm"] * 9 == pytest.approx(values["seq-mean-token-sum"])


RANGE = r"a keep with a value that is NaN or outside \[0, 1\]"


@pytest.mark.parametrize(
    "part, change, said",
    [
        (None, lambda out: None, "a NoneType"),
        (None, tuple, "a tuple"),
        ("keep", lambda keep: keep[:, :1], r"a keep of shape \[5, 1\] and torch.float64"),
        ("keep", Tensor.bool, r"a keep of shape \[5, 12\] and torch.bool"),
        ("keep", lambda keep: keep * torch.nan, RANGE),
        ("keep", lambda keep: 2 * keep, RANGE),
        ("keep", Tensor.neg, RANGE),
        ("objective", lambda objective: objective.sum(1), r"an objective of shape \[5\]"),
        ("objective", Tensor.bfloat16, r"an objective .*torch.bfloat16"),
        ("objective", Tensor.tolist, "an objective of list"),
        ("objective", Tensor.detach, "an objective without a gradient"),
        ("stats", lambda stats: stats | {"masked": 1.0}, "the statistic 'masked' of float"),
        ("stats", lambda stats: stats | {"masked": torch.ones(5)}, "the statistic 'masked' of shape"),
        ("tests", lambda tests: {"mine": torch.ones(12)}, r"the test 'mine' of shape \[12\]"),
    ],
)
def test_what_is_no_output_of_a_rule_is_named(
    part: str | None, change: Callable[[Any], Any], said: str
) -> None:
    """Else it would train on, with statistics that say nothing, or end in an error that names no rule."""
    loss = RuleLoss(tiny("rule=grpo"))
    plain, batch = loss.rule.apply, random_batch(0)
    tokens = Tokens(*batch._replace(logp=batch.logp.requires_grad_()))
    assert loss(tokens, tokens.rollout_logp)[1].keep.any()

    def changed(given: Tokens, **constants: float) -> Any:
        output = plain(given, **constants)
        return output._replace(**{part: change(getattr(output, part))}) if part else change(output)

    loss.rule = Rule(name="grpo", function=changed)
    with user_error(rf"rule 'grpo' returns {said}.*: (return|compute)"):
        loss(tokens, tokens.rollout_logp)


def test_the_authors_loss_of_a_sampled_batch(tmp_path: Path) -> None:
    """The second update of a batch, whose policy has left mu. That the maths are theirs: maths/test_recipe.py."""
    trainer = trainer_of(tmp_path, "recipe=authors", "divergence=binary_tv", "optim.learning_rate=0.01")
    run, rollout = trainer.spec, trainer.collect().rollout
    worth = torch.randn(len(rollout.group), generator=seeded(0))
    trainer._descend(trainer.objective(rollout, worth).loss)
    result = trainer.objective(rollout, worth)
    seen, horizon = result.seen, run.rollout.max_response_length
    d = binary(seen.logp, seen.rollout_logp, "tv")
    tokens = Tokens(seen.logp, seen.rollout_logp, worth[:, None].expand_as(d), seen.valid, d)
    output = get_rule("cppo")(tokens, **run.rule.arguments(horizon))
    expected = -aggregate(output.objective, seen.valid, run.training.aggregation, horizon=horizon)
    assert 0 < int(output.stats["masked"]) < int(seen.valid.sum())
    torch.testing.assert_close(result.loss.detach(), expected, rtol=1e-5, atol=0)


def test_groups_are_centred_and_not_scaled(tmp_path: Path) -> None:
    """Rewards are 0 and 1."""
    batch = trainer_of(tmp_path, "recipe=authors").collect()
    for group in batch.rollout.group.unique():
        own = batch.advantages[batch.rollout.group == group]
        assert float(own.max() - own.min()) in (0.0, pytest.approx(1.0))
