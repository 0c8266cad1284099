"""A second analysis of the sweeps of single updates that shares no code with the product's: step by step, without bins.

    cppo export metrics one_step --out metrics && python -m dev.one_step_paired metrics

For each pair of rules, process and seed: the log of the first rule's |Delta| over the second's at each step, its mean
over the steps and then over the horizons; a t interval over the seeds, and the share of steps with the smaller error.
From a stale rollout policy also of what the update adds, |Delta - Delta before it|. Then, for each rule: the exponent x
of (T - t)^x in the error per movement by eighth, the share of visits beyond the token limit, and |Delta| before the
update over |Delta|.
"""

import sys
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
    runs = pd.read_parquet(folder / "runs.parquet")
    runs = runs.assign(
        rule=runs["variant"].str.split(" ").str[0], horizon=runs["rollout.max_response_length"]
    )
    history = pd.read_parquet(folder / "history.parquet")
    updates = history.loc[history["metric"] == "exact/matched", "run_id"]
    runs = runs[runs["run_id"].isin(updates)]  # not whole trainings
    history = history[history["metric"].str.startswith("exact/")]
    history = history.assign(metric=history["metric"].astype(str))
    rows = history.merge(runs[["run_id", "rule", "model", "horizon", "seed"]], on="run_id")
    steps = rows.pivot_table(
        index=["rule", "model", "horizon", "seed", "step"], columns="metric", values="value"
    )
    outcomes = {"error": steps["exact/error"].abs()}
    if "exact/error_before" in steps:
        outcomes["what the update adds"] = (steps["exact/error"] - steps["exact/error_before"]).abs()
    for name, values in outcomes.items():
        for model, table in values.unstack("rule").groupby(level="model"):
            for rule, other in PAIRS:
                if rule in table and other in table:
                    both = table[[rule, other]].dropna()
                    logs = np.log(both[rule] / both[other])
                    smaller = float((both[rule] < both[other]).mean())
                    print(f"{model}, {name}: {rule} / {other}: {ratio(logs)}, {smaller:.0%} of steps")
    for (rule, model), table in steps.groupby(level=["rule", "model"]):
        left = np.log(8.5 - np.array(EIGHTHS))
        parts = [
            table[[f"exact/{part}_{i}" for i in EIGHTHS]].abs().groupby(level=["horizon", "seed"]).mean()
            for part in ("error", "movement")
        ]
        exponents = np.log(parts[0].to_numpy() / parts[1].to_numpy()) @ (left - left.mean())
        exponents = pd.Series(exponents / ((left - left.mean()) ** 2).sum(), parts[0].index)
        text = f"{model}, {rule}: exponent of T - t {interval(exponents)}"
        if "exact/premise_visits" in table and table["exact/premise_visits"].notna().any():
            text += f"; visits beyond the token limit {interval(table['exact/premise_visits'])}"
        if "exact/error_before" in table:
            before = (table["exact/error_before"].abs().mean(), table["exact/error"].abs().mean())
            text += f"; |error| before the update / |error| {before[0] / before[1]:.2f}"
        print(text)


def by_seed(values: pd.Series) -> tuple[float, float]:
    """Mean over steps, then horizons, then seeds, and half its 95 % interval over the seeds."""
    means = values.groupby(level=["horizon", "seed"]).mean().unstack("horizon").mean(axis=1).dropna()
    half = t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
    return float(means.mean()), float(half)


def interval(values: pd.Series) -> str:
    """`0.98 (0.97 to 1.00)`."""
    mean, half = by_seed(values)
    return f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f})"


def ratio(logs: pd.Series) -> str:
    """The same of logs of ratios."""
    mean, half = by_seed(logs)
    return f"{np.exp(mean):.3f} ({np.exp(mean - half):.3f} to {np.exp(mean + half):.3f})"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
