"""Why shuffled position weights make larger errors than ordered ones: other orders, in a pilot.

    python -m dev.shuffled_orders [--model exact_no_fork] [--horizon 1024] [--seeds 24]

Runs of `sweeps/one_step.yaml` on seeds from 0, which test nothing, where the weights of a response stand in the right
order, shuffled anew in each response, in one order of the tokens for the whole run, or with whole eighths of the
response shuffled, anew or once for the run. Prints the ratio of errors of each two.
"""

import argparse
from itertools import combinations
from unittest.mock import patch

import numpy as np
import torch
from torch import Generator, Tensor

from cppo_lab.analysis.statistics.exact_study import Curves, mean_estimate, paired
from cppo_lab.cores.rule_loss import own_permutation
from cppo_lab.spec import ExactRun
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from dev.exact_null import trained_curves

PARTS = 8


def fixed(generator: Generator) -> Generator:
    """Draws the same in each batch of a run."""
    return Generator().manual_seed(generator.initial_seed() + 7)


def once(valid: Tensor, generator: Generator) -> Tensor:
    """One order of the tokens for the whole run."""
    return torch.rand(valid.shape[1], generator=fixed(generator)).argsort().expand(valid.shape).contiguous()


def eighths(valid: Tensor, generator: Generator) -> Tensor:
    """Whole eighths in another order in each response."""
    order = torch.rand(len(valid), PARTS, generator=generator).argsort(1)
    return torch.arange(valid.shape[1]).view(PARTS, -1)[order].reshape(valid.shape)


def eighths_once(valid: Tensor, generator: Generator) -> Tensor:
    """One order of whole eighths for the whole run."""
    return eighths(valid[:1], fixed(generator)).expand(valid.shape).contiguous()


ORDERS = {
    "ordered": None,
    "anew": own_permutation,
    "once": once,
    "eighths": eighths,
    "eighths once": eighths_once,
}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="exact_no_fork")
    parser.add_argument("--horizon", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=24)
    given = parser.parse_args()
    torch.set_num_threads(1)
    curves: dict[str, Curves] = {}
    for name, order in ORDERS.items():
        variant = "cppo_no_prefix_budget" if order is None else "cppo_no_prefix_budget_shuffled"
        seeds = f"seed={','.join(map(str, range(given.seeds)))}"
        asked = [
            f"model={given.model}",
            f"variant={variant}",
            f"rollout.max_response_length={given.horizon}",
            seeds,
        ]
        specs = [run.spec for run in make_plan(load_sweep("one_step"), asked).runs]
        with patch("cppo_lab.cores.exact.learner.own_permutation", order or own_permutation):
            curves[name] = trained_curves([spec for spec in specs if isinstance(spec, ExactRun)])
    for first, second in combinations(curves, 2):
        ratio = mean_estimate([{given.horizon: paired(curves[first], curves[second])}])
        if ratio is not None and ratio.low is not None and ratio.high is not None:
            value, low, high = np.exp([ratio.value, ratio.low, ratio.high])
            print(f"{first} / {second}: {value:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
