"""recipe=authors in the embedded core: its loss on a batch that it sampled is the loop's."""

from pathlib import Path

import pytest
import torch

from cppo_lab.cores.base import Resources
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.spec import MiniRun
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY
from tests.oracles.authors import authors_loss


@pytest.mark.parametrize("recipe", ["authors", "paper"])
def test_the_loss_of_a_sampled_batch(tmp_path: Path, recipe: str) -> None:
    """The second update of a batch, whose policy has left mu. recipe=paper is another loss."""
    run = compose([*TINY, f"recipe={recipe}", "divergence=binary_tv", "optim.learning_rate=0.01"]).run
    assert isinstance(run, MiniRun)
    trainer = Trainer(run, Resources(folder=tmp_path, shared=tmp_path, device="cpu"))
    batch = trainer.collect()
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
    run = compose([*TINY, "recipe=authors"]).run
    assert isinstance(run, MiniRun)
    trainer = Trainer(run, Resources(folder=tmp_path, shared=tmp_path, device="cpu"))
    batch = trainer.collect()
    for group in batch.rollout.group.unique():
        own = batch.advantages[batch.rollout.group == group]
        assert float(own.max() - own.min()) in (0.0, pytest.approx(1.0))
