"""Writes `rliable.json`: what rliable makes of a few score matrices. Run it where rliable is installed:

    python -m venv rl && rl/bin/pip install rliable==1.2.0 "pandas<3"
    rl/bin/python tests/oracles/make_rliable.py

It is not a dependency of the tests: rliable 1.2.0 needs arch 7.2, which cannot be imported beside pandas 3. With that
arch it also ignores the `random_state` given to it and draws from NumPy's global generator, seeded here.
"""

import json
from pathlib import Path

import numpy as np
from rliable import library, metrics

REPETITIONS = 20_000
SHAPES = ((3, 4), (5, 4), (10, 4), (5, 1), (4, 7))


def aggregates(scores: np.ndarray) -> np.ndarray:
    """Mean, interquartile mean and median of `[runs, tasks]`."""
    found = (metrics.aggregate_mean, metrics.aggregate_iqm, metrics.aggregate_median)
    return np.array([aggregate(scores) for aggregate in found])


def main() -> None:
    """One entry per shape."""
    rng, entries = np.random.default_rng(7), []
    np.random.seed(11)
    for runs, tasks in SHAPES:
        level = np.linspace(0.2, 0.5, tasks)
        ours = np.round(level + 0.03 * rng.standard_normal((runs, tasks)), 2)  # two decimals: some are ties
        theirs = np.round(level - 0.02 + 0.03 * rng.standard_normal((runs, tasks)), 2)
        values, intervals = library.get_interval_estimates({"ours": ours}, aggregates, reps=REPETITIONS)
        entries.append(
            {
                "ours": ours.tolist(),
                "theirs": theirs.tolist(),
                "aggregates": values["ours"].tolist(),
                "low": intervals["ours"][0].tolist(),
                "high": intervals["ours"][1].tolist(),
                "improvement": float(metrics.probability_of_improvement(ours, theirs)),
            }
        )
    path = Path(__file__).with_name("rliable.json")
    path.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
