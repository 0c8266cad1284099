"""A second analysis of the sweeps of single updates that shares no code with the product's: step by step, without bins.

    cppo export metrics one_step --out metrics && python -m dev.one_step_paired metrics

For each pair of rules, process and seed: the log of the first rule's |Delta| over the second's at each step, its mean
over the steps and then over the horizons; a t interval over the seeds, and the share of steps with the smaller error.
From a stale rollout policy also of what the update adds, |Delta - Delta before it|. Then, for each rule: the exponent x
of (T - t)^x in the error per movement by eighth, the share of visits beyond the token limit, and |Delta| before the
update over |Delta|.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t

CONTROLS = ("no_trust_region", "cppo_random_mask", "dppo_lower_learning_rate")
PAIRS = (
    *((rule, "dppo") for rule in ("cppo", "cppo_no_position_weight", "cppo_no_prefix_budget", "cppo_strong")),
    *((control, "dppo") for control in CONTROLS),
    *(("cppo", control) for control in CONTROLS),
    *(("cppo", f"dppo_{amount}") for amount in ("wider", "equal_share_64", "equal_share_256")),
    ("cppo_no_prefix_budget", "cppo_no_prefix_budget_reversed"),
    ("cppo_no_prefix_budget", "cppo_no_prefix_budget_shuffled"),
)
EIGHTHS = range(1, 9)


def main(folder: Path) -> None:
    """Print a line for each process and pair, and for each rule."""
    runs, history = (pd.read_parquet(folder / f"{name}.parquet") for name in ("runs", "history"))
    runs["rule"], runs["horizon"] = runs["variant"].str.split(" ").str[0], runs["rollout.max_response_length"]
    updates = history.loc[history["metric"] == "exact/matched", "run_id"]
    runs = runs[runs["run_id"].isin(updates)]  # not whole trainings
    history = history[history["metric"].str.startswith("exact/")].astype({"metric": str})
    unit = ["rule", "model", "horizon", "seed"]
    rows = history.merge(runs[["run_id", *unit]], on="run_id")
    steps = rows.pivot_table(index=[*unit, "step"], columns="metric", values="value")
    outcomes = {"error": steps["exact/error"].abs()}
    if "exact/error_before" in steps:
        outcomes["what the update adds"] = (steps["exact/error"] - steps["exact/error_before"]).abs()
    for name, values in outcomes.items():
        for model, table in values.unstack("rule").groupby(level="model"):
            for rule, other in PAIRS:
                if rule in table and other in table:
                    both = table[[rule, other]].dropna()
                    ratio = interval(np.log(both[rule] / both[other]), np.exp)
                    smaller = float((both[rule] < both[other]).mean())
                    print(f"{model}, {name}: {rule} / {other}: {ratio}, {smaller:.0%} of steps")
    left = np.log(8.5 - np.array(EIGHTHS))
    left -= left.mean()
    for (rule, model), table in steps.groupby(level=["rule", "model"]):
        error, movement = (
            table[[f"exact/{part}_{i}" for i in EIGHTHS]].abs().groupby(level=["horizon", "seed"]).mean()
            for part in ("error", "movement")
        )
        exponents = np.log(error.to_numpy() / movement.to_numpy()) @ left / (left**2).sum()
        text = f"{model}, {rule}: exponent of T - t {interval(pd.Series(exponents, error.index))}"
        if "exact/premise_visits" in table and table["exact/premise_visits"].notna().any():
            text += f"; visits beyond the token limit {interval(table['exact/premise_visits'])}"
        if "exact/error_before" in table:
            before, after = table[["exact/error_before", "exact/error"]].abs().mean()
            text += f"; |error| before the update / |error| {before / after:.2f}"
        print(text)


def interval(values: pd.Series, shown: Callable[[float], float] = float) -> str:
    """Mean over steps, then horizons, then seeds, with its 95 % interval over the seeds: `0.98 (0.97 to 1.00)`."""
    means = values.groupby(level=["horizon", "seed"]).mean().unstack("horizon").mean(axis=1).dropna()
    mean, half = means.mean(), t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
    value, low, high = (shown(end) for end in (mean, mean - half, mean + half))
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
