"""Checks of the exact core's studies: claims where there is no effect.

    python -m dev.exact_checks twins [--runs 100] [--model exact_early] [--horizons 16,64]
    python -m dev.exact_checks simulated

`twins` trains DPPO of `sweeps/exact.yaml` on one process at some of its horizons, with seeds that no study uses. Draws
two disjoint arms from the runs, gives them the same seed numbers, and counts how often the 95 % interval of the ratio
of errors, and of its change with the horizon, excludes equality: on either side, it should be in 2.5 % of the draws.

`simulated` draws errors of two arms that follow one law of movement and step, so that at equal movement there is no
effect, where the second arm moves less and errors fall over time: of whole runs, matched as in `sweeps/exact.yaml`, and
of single updates that are brought to equal movement, as in `sweeps/one_step.yaml`. Spreads are those of DPPO on the
early fork at T = 64 (32 seeds, `sweeps/one_step.yaml`): |error| ~ movement^3, with standard deviations of the logs of
1.0 (seeds) and 1.3 (steps), of movement's 0.3 and 0.57, while movement falls by 12 % a step.
"""

import argparse
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch

from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.exact_study import (
    METRICS,
    METRICS_READ,
    Curves,
    curves_of,
    log_ratio_slope,
    mean_log_ratio,
    paired,
)
from cppo_lab.cores.exact.trainer import histories_together
from cppo_lab.spec import ExactRun
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan

FIRST = 1000  # no study uses the seeds from here on
DRAWS = 1000
ARMS = (40, 20, 8)  # seeds of an arm
# Movement of the second arm over the first's, and the factor of both arms' errors from step to step.
SIMULATED = ((1.0, 1.0), (0.7, 1.0), (1.0, 0.955), (0.7, 0.955))
STEPS, LENGTHS = 20, 4


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("twins", "simulated"))
    parser.add_argument("--runs", type=int, default=100, help="of twins, at each horizon; at least 80")
    parser.add_argument("--model", default="exact_early", help="exact_early, exact_late or exact_no_fork")
    parser.add_argument("--horizons", default="16,64", help="two or more; the sweep has 16, 64, 256 and 1024")
    given = parser.parse_args()
    if given.runs < 2 * max(ARMS):
        parser.error(f"--runs {given.runs}: at least {2 * max(ARMS)}, since two arms have no run in common")
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    if given.what == "twins":
        twins(generator, given.runs, given.model, given.horizons)
    else:
        cases = itertools.product(SIMULATED, ("whole runs", "single updates"), ARMS[:2])
        for (further, falling), design, size in cases:
            drawn = [simulated(generator, size, further, falling, design) for _ in range(DRAWS)]
            print_sides(f"{design}, {further} as far, errors x {falling} a step, {size} seeds", drawn)


def twins(generator: np.random.Generator, count: int, model: str, horizons: str) -> None:
    """Two arms of one rule, drawn from so many runs."""
    seeds = f"seed={','.join(map(str, range(FIRST, FIRST + count)))}"
    runs = {
        int(horizon): trained(f"model={model}", seeds, f"rollout.max_response_length={horizon}")
        for horizon in horizons.split(",")
    }
    for size in ARMS:
        ratios, slopes = [], []
        for _ in range(DRAWS):
            first, second = generator.permutation(count)[: 2 * size].reshape(2, size)
            pairs = {
                horizon: paired(_arm(curves, first), _arm(curves, second)) for horizon, curves in runs.items()
            }
            ratios.append(mean_log_ratio([pairs]))
            slopes.append(log_ratio_slope([pairs]))
        print_sides(f"{size} seeds, ratio", ratios)
        print_sides(f"{size} seeds, slope", slopes)


def print_sides(label: str, estimates: Sequence[Estimate | None]) -> None:
    """How often an interval lies on either side of equality."""
    known = [e for e in estimates if e is not None and e.low is not None and e.high is not None]
    ends = np.array([(e.low, e.high) for e in known]).reshape(-1, 2)
    below, above = 100 * (ends[:, 1] < 0).mean(), 100 * (ends[:, 0] > 0).mean()
    print(f"{label}: below {below:.1f} %, above {above:.1f} % of {len(ends)} draws", flush=True)


def simulated(
    generator: np.random.Generator, size: int, further: float, falling: float, design: str
) -> Estimate | None:
    """The log ratio of the second arm's errors to the first's, mean over the lengths."""
    step, pairs = np.arange(STEPS), {}
    seeds = generator.standard_normal((2, LENGTHS, size, 1))
    for length in range(LENGTHS):
        arms: list[Curves] = []
        for factor in (1.0, further):
            log_movement = -4.6 - 0.13 * step + 0.3 * seeds[0, length] + math.log(factor)
            log_movement = log_movement + 0.57 * generator.standard_normal((size, STEPS))
            if design == "single updates" and arms:
                log_movement = np.log(arms[0].movement)
            log_error = 3.0 * log_movement + step * math.log(falling) + seeds[1, length]
            log_error = log_error + 1.3 * generator.standard_normal((size, STEPS))
            tables = dict.fromkeys(METRICS_READ, np.full((size, STEPS), np.nan))
            tables |= {METRICS["movement"]: np.exp(log_movement), METRICS["error"]: np.exp(log_error)}
            arms.append(curves_of(tuple(range(size)), tables))
        pairs[length] = paired(arms[1], arms[0])
    return mean_log_ratio([pairs])


def trained(*overrides: str) -> Curves:
    """Train the runs of one condition together; the seeds are numbered from 0."""
    plan = make_plan(load_sweep("exact"), ["core=exact", "variant=dppo", *overrides])
    histories = histories_together([run.spec for run in plan.runs if isinstance(run.spec, ExactRun)])
    tables = {
        metric: np.array([[row.get(metric, np.nan) for step, row in rows if step] for _, rows in histories])
        for metric in METRICS_READ
    }
    return curves_of(tuple(range(len(histories))), tables)


def _arm(curves: Curves, rows: np.ndarray) -> Curves:
    parts = {name: value[rows] for name, value in vars(curves).items() if name != "seeds"}
    return Curves(tuple(range(len(rows))), **parts)


if __name__ == "__main__":
    main()
