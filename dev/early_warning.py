"""Can a collapse be predicted? Judges warnings of the runs of `sweeps/early_warning.yaml`, which has the design.

    python -m dev.early_warning      # fits on `fit_*`, judges on `rule_*` and `model_*`

docs/evidence/early_warning.csv has a row for each validation of those runs, which `collect` of this file at commit
0f6ac1fe has trained: its score, and the means over the steps since the validation before, of effective sample size and
k3, too, which the exact core does not log. Shares no code with the product's warning.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import chi2
from sklearn.linear_model import LogisticRegression

FILE = Path(__file__).parents[1] / "docs" / "evidence" / "early_warning.csv"
RUN = ["variant", "seed"]
# Each feature alone as a plain threshold; `-`: it warns where the feature is low.
PLAIN = ("-share", "-ess", "k3_early", "k3_middle", "k3_late", "grad_norm", "entropy", "-entropy",
         "logprob_error", "masked", "equal_rewards")  # fmt: skip
# The arms of other rules and processes whose runs were known when the product's share of the best score was chosen.
SEEN = ["rule_cppo", "rule_grpo", "rule_cispo", "model_narrow_free", "model_late_free"]
FEATURES = list(dict.fromkeys(name.lstrip("-") for name in PLAIN))
HORIZON = 3  # validations
FIRST = 5  # step of the first validation that may warn
PER_STEPS = 1000  # one false alarm, in training steps
MARGIN = 0.05  # a score less than this below the best is no sign: the margin of a collapse
RIDGE = 1.0
RESAMPLES = 2000
Array = NDArray[np.float64]


def read(file: Path = FILE) -> pd.DataFrame:
    """The validations that may warn, with FEATURES, and `soon`: whether a collapse follows within HORIZON of them."""
    rows = pd.read_csv(file).sort_values([*RUN, "step"])
    of_run = rows.groupby(RUN)
    best = of_run["score"].cummax()
    rows["share"] = np.where(best - rows["score"] < MARGIN, 1.0, rows["score"] / best)
    for name in ("ess", "k3_early", "k3_middle", "k3_late", "grad_norm", "entropy", "logprob_error"):
        rows[name] = np.log(rows[name].clip(lower=1e-12))
    rows["entropy"] -= of_run["entropy"].transform("first")  # step 0 has none, and is skipped
    every = of_run["step"].transform(lambda steps: steps.diff().median())
    left = rows["end"] - rows["step"]
    rows["soon"] = (rows["collapsed"] == 1) & (left <= HORIZON * every)
    last = (rows["collapsed"] == 1) & (left == 0)
    return rows[(rows["step"] >= FIRST) & ~last].reset_index(drop=True)


Value = Callable[[pd.DataFrame], Array]


def regression(fit: pd.DataFrame) -> Value:
    """The probability of a collapse within HORIZON validations, by a logistic regression on standardised features with
    a ridge; unknown values count as the mean.
    """
    mean, spread = fit[FEATURES].mean(), fit[FEATURES].std()

    def design(rows: pd.DataFrame) -> pd.DataFrame:
        return ((rows[FEATURES] - mean) / spread).fillna(0.0)

    model = LogisticRegression(C=1 / RIDGE, tol=1e-8, max_iter=1000).fit(design(fit), fit["soon"])
    return lambda rows: model.predict_proba(design(rows))[:, 1]


def plain(name: str) -> Value:
    """A feature alone, high where it warns."""
    sign = -1.0 if name.startswith("-") else 1.0
    return lambda rows: (sign * rows[name.lstrip("-")]).fillna(-np.inf).to_numpy(float)


def alarms(rows: pd.DataFrame, values: Array, threshold: float) -> pd.DataFrame:
    """One row a run: `lead`, the steps from its alarm to its end (0: none), `watched` steps, `false` alarm."""
    at = rows["step"].where(values >= threshold)
    runs = (
        rows.assign(at=at)
        .groupby(RUN)
        .agg(at=("at", "min"), end=("end", "first"), fell=("collapsed", "first"))
    )
    runs["watched"] = runs["at"].fillna(runs["end"])
    runs["false"] = runs["at"].notna() & (runs["fell"] == 0)
    runs["lead"] = np.where(runs["fell"] == 1, (runs["end"] - runs["at"]).fillna(0.0), np.nan)
    return runs


def eager(rows: pd.DataFrame, values: Array) -> float:
    """The lowest threshold with at most one false alarm per PER_STEPS watched steps; infinite if there is none."""
    lowest = math.inf
    for threshold in np.unique(values[np.isfinite(values)])[::-1]:
        runs = alarms(rows, values, threshold)
        if runs["false"].sum() * PER_STEPS > runs["watched"].sum():
            break
        lowest = float(threshold)
    return lowest


def summary(runs: pd.DataFrame) -> dict[str, Any]:
    """What the alarms are worth, as text."""
    fell, false = runs[runs["fell"] == 1], int(runs["false"].sum())
    thousand = runs["watched"].sum() / PER_STEPS
    low, high = (
        chi2.ppf(q, 2 * n) / 2 / thousand if n else 0.0 for q, n in ((0.025, false), (0.975, false + 1))
    )
    return {
        "collapsed": f"{len(fell)} of {len(runs)}",
        "alarms": int(false + (fell["lead"] > 0).sum()),
        "true": int((fell["lead"] > 0).sum()),
        "mean lead": f"{fell['lead'].mean():.1f}",
        "false per 1,000": f"{false / thousand:.1f} ({low:.1f} to {high:.1f})",
    }


def judge(file: Path = FILE) -> None:
    """Print what each warning was worth, on the arms of the fit and on those held out, and the design's decision."""
    rows = read(file)
    of_fit = rows["variant"].str.startswith("fit")
    fit, held_out = rows[of_fit], rows[~of_fit]
    warnings: dict[str, Value] = {"regression": regression(fit), **{name: plain(name) for name in PLAIN}}
    table, leads = [], {}
    for name, value in warnings.items():
        threshold = eager(fit, value(fit))
        leads[name] = [alarms(some, value(some), threshold) for some in (fit, held_out)]
        for kind, runs in zip(("fit", "held out"), leads[name], strict=True):
            table.append({"warning": name, "runs of": kind, **summary(runs)})
    print(pd.DataFrame(table).to_string(index=False))
    # Runs that were trained after the share had been chosen.
    later = held_out[~held_out["variant"].isin(SEEN)]
    groups = {"fit": fit, "held out": held_out, "trained later": later, "all": rows}
    low = plain("-share")
    table = [
        {"warning": f"below {share} of the best", "runs of": kind, **summary(alarms(some, low(some), -share))}
        for share in (0.4, 0.2, 0.1)
        for kind, some in groups.items()
    ]
    print(f"\n{pd.DataFrame(table).to_string(index=False)}")
    best = max(PLAIN, key=lambda name: leads[name][0]["lead"].mean())
    ours, theirs = (leads[name][1]["lead"].dropna().to_numpy() for name in ("regression", best))
    gain, generator = ours - theirs, np.random.default_rng(0)
    again = [generator.choice(gain, len(gain)).mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(again, [0.025, 0.975])
    print(f"\nbest feature alone on the fit arms: {best}")
    print(f"lead of the regression over it, held out: {gain.mean():.1f} steps ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    judge()
