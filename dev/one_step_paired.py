"""A second analysis of the sweep `one_step` that shares no code with the product's: step by step, without bins.

    cppo export metrics one_step --out metrics && python -m dev.one_step_paired metrics

For each pair of rules, process and seed: the log of the first rule's |Delta| over the second's at each step, its mean
over the steps and then over the horizons; a t interval over the seeds, and the share of steps with the smaller error.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t

PAIRS = (
    *((rule, "dppo") for rule in ("cppo", "cppo_no_position_weight", "cppo_no_prefix_budget", "cppo_strong")),
    *((control, "dppo") for control in ("no_trust_region", "cppo_random_mask", "dppo_lower_learning_rate")),
    *(("cppo", control) for control in ("no_trust_region", "cppo_random_mask", "dppo_lower_learning_rate")),
    ("cppo_no_prefix_budget", "cppo_no_prefix_budget_reversed"),
    ("cppo_no_prefix_budget", "cppo_no_prefix_budget_shuffled"),
)


def main(folder: Path) -> None:
    """Print a line for each process and pair."""
    runs = pd.read_parquet(folder / "runs.parquet")
    runs = runs.assign(
        rule=runs["variant"].str.split(" ").str[0], horizon=runs["rollout.max_response_length"]
    )
    history = pd.read_parquet(folder / "history.parquet")
    rows = history[history["metric"] == "exact/error"].merge(runs, on="run_id")
    errors = rows.pivot_table(
        index=["model", "horizon", "seed", "step"], columns="rule", values="value"
    ).abs()
    for model, table in errors.groupby(level="model"):
        for rule, other in PAIRS:
            logs = (np.log(table[rule]) - np.log(table[other])).groupby(level=["horizon", "seed"]).mean()
            means = logs.unstack("horizon").mean(axis=1).dropna()
            half = t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
            low, middle, high = np.exp([means.mean() - half, means.mean(), means.mean() + half])
            smaller = float((table[rule] < table[other]).mean())
            print(
                f"{model}: {rule} / {other}: {middle:.3f} ({low:.3f} to {high:.3f}), {smaller:.0%} of steps"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
