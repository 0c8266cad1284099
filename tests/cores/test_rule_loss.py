"""The loss of the embedded cores: its horizon, a rule whose output is none, and recipe=authors on a sampled batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cppo_lab.cores.rule_loss import RuleLoss, measured_divergence
from cppo_lab.maths.divergence import Recorded, binary
from cppo_lab.maths.rules import aggregate, get_rule
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import Rule
from tests.conftest import user_error
from tests.cores.test_mini import tiny, trainer_of
from tests.maths.maths_batches import random_batch


def test_the_loss_of_the_authors_recipe_has_the_runs_horizon() -> None:
    """Trimming a minibatch to its longest response must not change it. The maths are theirs: maths/test_recipe.py."""
    run, batch = tiny("recipe=authors", "divergence=binary_tv"), random_batch(0, width=7)
    of_mu = Recorded(*[batch.rollout_logp] * 4)
    d = measured_divergence(run.divergence, batch.logp, batch.logp, of_mu)
    assert torch.equal(d, binary(batch.logp, batch.rollout_logp, "tv"))
    tokens, horizon = Tokens(*batch._replace(divergence=d)), run.rollout.max_response_length
    loss, output = RuleLoss(run)(tokens, batch.rollout_logp)
    objective = get_rule("cppo")(tokens, **run.rule.arguments(horizon)).objective
    expected = -aggregate(objective, batch.valid, run.training.aggregation, horizon=horizon)
    assert 0 < int(output.stats["masked"]) < int(batch.valid.sum()) and horizon > 7
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)


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


def test_groups_are_centred_and_not_scaled(tmp_path: Path) -> None:
    """Rewards are 0 and 1."""
    batch = trainer_of(tmp_path, "recipe=authors").collect()
    for group in batch.rollout.group.unique():
        own = batch.advantages[batch.rollout.group == group]
        assert float(own.max() - own.min()) in (0.0, pytest.approx(1.0))
