"""Type I error of the comparisons in `analysis/statistics/exact_study.py`: two arms that are the same rule.

    python -m dev.exact_null [--runs 100] [--draws 1000] [--model exact_early] [--horizons 16,64]

Trains DPPO of `sweeps/exact.yaml` on one process at some of its horizons, with seeds that no study uses. Draws two
disjoint arms from the runs, gives them the same seed numbers, and counts how often the 95 % interval of the ratio of
errors, and of its change with the horizon, excludes equality: on either side, it should be in 2.5 % of the draws.
"""

import argparse

import numpy as np
import torch

from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.exact_study import (
    METRICS,
    POSITIONS,
    Curves,
    Pair,
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
        found = [drawn(runs, size, generator) for _ in range(given.draws)]
        for name, estimates in zip(("ratio", "slope"), zip(*found, strict=True), strict=True):
            print(f"{size} seeds, {name}: {outside(estimates)}")


def trained(model: str, horizon: int, count: int) -> Curves:
    """DPPO on a process."""
    seeds = ",".join(str(FIRST + i) for i in range(count))
    asked = [
        "core=exact",
        f"model={model}",
        "variant=dppo",
        f"rollout.max_response_length={horizon}",
        f"seed={seeds}",
    ]
    specs = [run.spec for run in make_plan(load_sweep("exact"), asked).runs]
    histories = histories_together([spec for spec in specs if isinstance(spec, ExactRun)])
    tables = {
        metric: np.array([[row[metric] for step, row in rows if step] for _, rows in histories])
        for metric in (*METRICS.values(), *POSITIONS)
    }
    return Curves(
        tuple(range(count)),
        **{name: tables[metric] for name, metric in METRICS.items()},
        by_position=np.stack([tables[metric] for metric in POSITIONS], axis=-1),
    )


def drawn(
    runs: dict[int, Curves], size: int, generator: np.random.Generator
) -> tuple[Estimate | None, Estimate | None]:
    """Two arms of `size` seeds: the log ratio of their errors, and its slope."""
    rows = generator.permutation(len(next(iter(runs.values())).seeds))[: 2 * size]
    pairs: dict[int, Pair] = {
        h: paired(_arm(own, rows[:size]), _arm(own, rows[size:])) for h, own in runs.items()
    }
    return mean_estimate([pairs]), slope_estimate([pairs])


def _arm(curves: Curves, rows: np.ndarray) -> Curves:
    parts = {name: value[rows] for name, value in vars(curves).items() if name != "seeds"}
    return Curves(tuple(range(len(rows))), **parts)


def outside(estimates: tuple[Estimate | None, ...]) -> str:
    """How often the interval lies on each side of 0."""
    known = [(one.low, one.high) for one in estimates if one is not None and one.low is not None]
    below = sum(high < 0 for _, high in known if high is not None)
    above = sum(low > 0 for low, _ in known)
    count = len(known)
    return f"below {100 * below / count:.1f} %, above {100 * above / count:.1f} % of {count} draws"


if __name__ == "__main__":
    main()
