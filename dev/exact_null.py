"""Type I error of the comparisons in `analysis/statistics/exact_study.py`: two arms that are the same rule.

    python -m dev.exact_null [--runs 100] [--draws 1000] [--model exact_early] [--horizons 16,64]

Trains DPPO of `sweeps/exact.yaml` on one process at some of its horizons, with seeds that no study uses. Draws two
disjoint arms from the runs, gives them the same seed numbers, and counts how often the 95 % interval of the ratio of
errors, and of its change with the horizon, excludes equality: on either side, it should be in 2.5 % of the draws.
"""

import argparse

import numpy as np
import torch

from cppo_lab.analysis.statistics.exact_study import (
    METRICS,
    POSITIONS,
    Curves,
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


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100, help="trained at each horizon; at least 80")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--model", default="exact_early", help="exact_early, exact_late or exact_no_fork")
    parser.add_argument("--horizons", default="16,64", help="two or more; the sweep has 16, 64, 256 and 1024")
    given = parser.parse_args()
    torch.set_num_threads(1)
    horizons = [int(text) for text in given.horizons.split(",")]
    runs = {horizon: trained(given.model, horizon, given.runs) for horizon in horizons}
    generator = np.random.default_rng(0)
    for size in ARMS:
        sides: dict[str, list[float]] = {"ratio": [], "slope": []}
        for _ in range(given.draws):
            rows = generator.permutation(given.runs)
            pairs = {
                horizon: paired(_arm(curves, rows[:size]), _arm(curves, rows[size : 2 * size]))
                for horizon, curves in runs.items()
            }
            for name, estimate in (("ratio", mean_estimate([pairs])), ("slope", slope_estimate([pairs]))):
                if estimate is not None and estimate.low is not None and estimate.high is not None:
                    sides[name].append((estimate.low > 0) - (estimate.high < 0))
        for name, drawn in sides.items():
            below, above = (100 * float(np.mean(np.equal(drawn, side))) for side in (-1, 1))
            print(f"{size} seeds, {name}: below {below:.1f} %, above {above:.1f} % of {len(drawn)} draws")


def trained(model: str, horizon: int, count: int) -> Curves:
    """DPPO on a process."""
    seeds = f"seed={','.join(str(FIRST + i) for i in range(count))}"
    asked = ["core=exact", f"model={model}", "variant=dppo", f"rollout.max_response_length={horizon}", seeds]
    specs = [run.spec for run in make_plan(load_sweep("exact"), asked).runs]
    histories = histories_together([spec for spec in specs if isinstance(spec, ExactRun)])

    def table(metric: str) -> np.ndarray:
        return np.array([[row[metric] for step, row in rows if step] for _, rows in histories])

    by_position = np.stack([table(metric) for metric in POSITIONS], axis=-1)
    tables = {name: table(metric) for name, metric in METRICS.items()}
    return Curves(tuple(range(count)), **tables, by_position=by_position)


def _arm(curves: Curves, rows: np.ndarray) -> Curves:
    parts = {name: value[rows] for name, value in vars(curves).items() if name != "seeds"}
    return Curves(tuple(range(len(rows))), **parts)


if __name__ == "__main__":
    main()
