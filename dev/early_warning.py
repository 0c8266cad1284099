"""Can a collapse be predicted? Judges warnings on the runs of `sweeps/early_warning.yaml`, which has the design.

    python -m dev.early_warning          # thresholds of the runs `fit_*`, judged on `rule_*` and `model_*`

docs/evidence/early_warning.csv has a row for each validation of these runs: its score, and the means over the steps
since the validation before, with the effective sample size and k3 of each update as `maths/mismatch.py` defines them.
Shares no code with the product's warning.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import chi2

FILE = Path(__file__).parents[1] / "docs" / "evidence" / "early_warning.csv"
RUN = ["variant", "seed"]
IN_LOGS = ["ess", "k3_early", "k3_middle", "k3_late", "grad_norm", "entropy", "logprob_error"]
METRICS = [*IN_LOGS, "masked", "equal_rewards"]
FEATURES = ["share", *METRICS]
# Each feature alone as a plain threshold; `-`: it warns where the feature is low.
PLAIN = ("-share", "-ess", *METRICS[1:6], "-entropy", *METRICS[6:])
# The arms of other rules and processes whose runs were known when the product's share of the best score was chosen.
SEEN = ["rule_cppo", "rule_grpo", "rule_cispo", "model_narrow_free", "model_late_free"]
SHARES = (0.4, 0.2, 0.1)  # of the best score: warnings that the product might give
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
    rows[IN_LOGS] = np.log(rows[IN_LOGS].clip(lower=1e-12))
    rows["entropy"] -= of_run["entropy"].transform("first")  # step 0 has none, and is skipped
    every = of_run["step"].transform(lambda steps: steps.diff().median())
    to_end = (rows["end"] - rows["step"]).where(rows["collapsed"] == 1, math.inf)
    rows["soon"] = to_end <= HORIZON * every
    return rows[(rows["step"] >= FIRST) & (to_end > 0)].reset_index(drop=True)


class Regression:
    """Logistic regression on standardised features with a ridge; unknown values count as the mean."""

    def __init__(self, rows: pd.DataFrame, features: Sequence[str] = FEATURES) -> None:
        self.features = list(features)
        self.mean, self.spread = rows[self.features].mean(), rows[self.features].std()
        x, y = self._design(rows), rows["soon"].to_numpy(float)
        penalty = RIDGE * np.diag([0.0, *[1.0] * len(self.features)])
        self.weights = np.zeros(x.shape[1])
        for _ in range(50):
            p = expit(x @ self.weights)
            slope = x.T @ (p - y) + penalty @ self.weights
            self.weights -= np.linalg.solve(x.T @ (x * (p * (1 - p))[:, None]) + penalty, slope)

    def _design(self, rows: pd.DataFrame) -> Array:
        z = ((rows[self.features] - self.mean) / self.spread).fillna(0.0)
        return np.column_stack([np.ones(len(z)), z.to_numpy(float)])

    def __call__(self, rows: pd.DataFrame) -> Array:
        """The probability of a collapse within HORIZON validations."""
        values: Array = expit(self._design(rows) @ self.weights)
        return values


Value = Callable[[pd.DataFrame], Array]


def plain(name: str) -> Value:
    """A feature alone, high where it warns."""
    sign = -1.0 if name.startswith("-") else 1.0
    return lambda rows: (sign * rows[name.lstrip("-")]).fillna(-np.inf).to_numpy(float)


def alarms(rows: pd.DataFrame, values: Array, threshold: float) -> pd.DataFrame:
    """One row a run: `lead`, the steps from its alarm to its end (0: none), `watched` steps, `false` alarm."""
    of_run = rows.assign(at=rows["step"].where(values >= threshold)).groupby(RUN)
    runs = of_run.agg(at=("at", "min"), end=("end", "first"), fell=("collapsed", "first"))
    runs["watched"] = runs["at"].fillna(runs["end"])
    runs["false"] = runs["at"].notna() & (runs["fell"] == 0)
    runs["lead"] = (runs["end"] - runs["watched"]).where(runs["fell"] == 1)
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
    lead, false, thousand = runs["lead"].dropna(), int(runs["false"].sum()), runs["watched"].sum() / PER_STEPS
    low, high = chi2.ppf([0.025, 0.975], [2 * false, 2 * false + 2]) / 2 / thousand
    foretold = int((lead > 0).sum())
    return {
        "collapsed": f"{len(lead)} of {len(runs)}",
        "alarms": false + foretold,
        "true": foretold,
        "foretold": f"{foretold / len(lead):.2f}",
        "mean lead": f"{lead.mean():.1f}",
        "median": f"{lead.median():.0f}",
        "false per 1,000": f"{false / thousand:.1f} ({np.nan_to_num(low):.1f} to {high:.1f})",
    }


def main() -> None:
    """Print what each warning is worth, and the decision by the design."""
    rows = read()
    of_fit = rows["variant"].str.startswith("fit")
    fit, held_out = rows[of_fit], rows[~of_fit]
    later = held_out[~held_out["variant"].isin(SEEN)]
    arms = {"fit": fit, "held out": held_out, "trained later": later, "all": rows}
    values: dict[str, Value] = {"regression": Regression(fit)} | {name: plain(name) for name in PLAIN}
    warnings = {name: (value, eager(fit, value(fit))) for name, value in values.items()}

    def judged(name: str, arm: str) -> pd.DataFrame:
        value, threshold = warnings[name]
        return alarms(arms[arm], value(arms[arm]), threshold)

    best = max(PLAIN, key=lambda name: float(judged(name, "fit")["lead"].mean()))
    warnings |= {f"below {share} of the best": (values["-share"], -share) for share in SHARES}
    table = [{"warning": name, "runs": arm} | summary(judged(name, arm)) for name in warnings for arm in arms]
    print(pd.DataFrame(table).to_string(index=False))
    gains = (judged("regression", "held out")["lead"] - judged(best, "held out")["lead"]).dropna()
    generator = np.random.default_rng(0)
    again = [generator.choice(gains.to_numpy(), len(gains)).mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(again, [0.025, 0.975])
    print(f"\nbest feature alone on the fit arms: {best} (threshold {warnings[best][1]:.4g})")
    print(f"lead of the regression over it, held out: {gains.mean():.1f} steps ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
