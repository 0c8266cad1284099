"""False claims of the comparisons in `analysis/statistics/exact_study.py` where there is no effect.

    python -m dev.exact_null twins [--runs 100] [--draws 1000] [--model exact_early] [--horizons 16,64]
    python -m dev.exact_null simulated [--draws 2000]

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
import math
from collections.abc import Sequence

import numpy as np
import torch

from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.exact_study import (
    METRICS,
    READ,
    Curves,
    curves_of,
    mean_estimate,
    paired,
    slope_estimate,
)
from cppo_lab.cores.exact.trainer import histories_together
from cppo_lab.spec import ExactRun
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan

FIRST = 1000  # no study uses the seeds from here on
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
    parser.add_argument("--runs", type=int, default=100, help="trained at each horizon; at least 80")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--model", default="exact_early", help="exact_early, exact_late or exact_no_fork")
    parser.add_argument("--horizons", default="16,64", help="two or more; the sweep has 16, 64, 256 and 1024")
    given = parser.parse_args()
    generator = np.random.default_rng(0)
    if given.what == "simulated":
        for further, falling in SIMULATED:
            for design in ("whole runs", "single updates"):
                for size in ARMS[:2]:
                    drawn = [simulated(generator, size, further, falling, design) for _ in range(given.draws)]
                    print_sides(f"{design}, {further} as far, errors x {falling} a step, {size} seeds", drawn)
        return
    torch.set_num_threads(1)
    horizons = [int(text) for text in given.horizons.split(",")]
    runs = {horizon: trained(given.model, horizon, given.runs) for horizon in horizons}
    for size in ARMS:
        estimates: dict[str, list[Estimate | None]] = {"ratio": [], "slope": []}
        for _ in range(given.draws):
            rows = generator.permutation(given.runs)
            pairs = {
                horizon: paired(_arm(curves, rows[:size]), _arm(curves, rows[size : 2 * size]))
                for horizon, curves in runs.items()
            }
            for name, value in (("ratio", mean_estimate([pairs])), ("slope", slope_estimate([pairs]))):
                estimates[name].append(value)
        for name, drawn in estimates.items():
            print_sides(f"{size} seeds, {name}", drawn)


def print_sides(label: str, estimates: Sequence[Estimate | None]) -> None:
    """How often an interval lies on either side of equality."""
    ends = [(e.low, e.high) for e in estimates if e is not None and e.low is not None and e.high is not None]
    below, above = (
        100 * float(np.mean(hits)) for hits in ([high < 0 for _, high in ends], [low > 0 for low, _ in ends])
    )
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
            tables = dict.fromkeys(READ, np.full((size, STEPS), np.nan))
            tables |= {METRICS["movement"]: np.exp(log_movement), METRICS["error"]: np.exp(log_error)}
            arms.append(curves_of(tuple(range(size)), tables))
        pairs[length] = paired(arms[1], arms[0])
    return mean_estimate([pairs])


def trained(model: str, horizon: int, count: int) -> Curves:
    """DPPO on a process."""
    seeds = f"seed={','.join(str(FIRST + i) for i in range(count))}"
    asked = ["core=exact", f"model={model}", "variant=dppo", f"rollout.max_response_length={horizon}", seeds]
    specs = [run.spec for run in make_plan(load_sweep("exact"), asked).runs]
    return trained_curves([spec for spec in specs if isinstance(spec, ExactRun)])


def trained_curves(specs: Sequence[ExactRun]) -> Curves:
    """Train the runs of one condition together; the seeds are numbered from 0."""
    histories = histories_together(specs)
    tables = {
        metric: np.array([[row.get(metric, np.nan) for step, row in rows if step] for _, rows in histories])
        for metric in READ
    }
    return curves_of(tuple(range(len(specs))), tables)


def _arm(curves: Curves, rows: np.ndarray) -> Curves:
    parts = {name: value[rows] for name, value in vars(curves).items() if name != "seeds"}
    return Curves(tuple(range(len(rows))), **parts)


if __name__ == "__main__":
    main()
