"""Can a collapse be predicted? Trains the runs of `sweeps/early_warning.yaml`, which has the design; judges warnings.

    python -m dev.early_warning collect [VARIANT ...]     # adds to docs/evidence/early_warning.csv; ten seconds a run
    python -m dev.early_warning judge                     # fits on `fit_*`, judges on `rule_*` and `model_*`

The file has a row for each validation: its score, and the means over the steps since the validation before. The exact
core does not log the effective sample size and k3, so they are added here, as `maths/mismatch.py` defines them. Shares
no code with the product's warning.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import chi2

from cppo_lab import schema
from cppo_lab.cores.exact import trainer
from cppo_lab.cores.exact.trainer import GradedResponses, Learner
from cppo_lab.cores.loop import ObjectiveResult
from cppo_lab.cores.rule_loss import mismatch_of_step
from cppo_lab.maths import mismatch
from cppo_lab.maths.divergence import Recorded
from cppo_lab.spec import ExactRun
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan

FILE = Path(__file__).parents[1] / "docs" / "evidence" / "early_warning.csv"
RUN = ["variant", "seed"]
METRICS = {
    "ess": schema.mismatch_metric("effective_sample_size"),
    **{f"k3_{third}": schema.mismatch_metric("k3", third) for third in schema.THIRDS},
    "grad_norm": "train/grad_norm",
    "entropy": "train/entropy",
    "logprob_error": "train/relative_logprob_error",
    "masked": "rule/masked_fraction",
    "equal_rewards": "train/zero_variance_group_share",
}
COLUMNS = [*RUN, "step", "score", *METRICS, "end", "collapsed"]
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


class Watched(Learner):
    """A learner that also logs the mismatch of its updates."""

    def update(self, rollout: GradedResponses, watched: int | None = None) -> dict[str, float]:
        self.seen: list[mismatch.LogRatios] = []
        return super().update(rollout, watched) | mismatch_of_step(self.seen)

    def objective(
        self, rollout: GradedResponses, rows: torch.Tensor, old: Recorded | None = None
    ) -> ObjectiveResult:
        places, before = rollout.places[rows], rollout.logp[rows]
        with torch.no_grad():
            logp = self.log_policy(self.spec.rollout.temperature).flatten()[places]
        zeros, valid = torch.zeros_like(logp), torch.ones_like(places, dtype=torch.bool)
        self.seen.append(mismatch.log_ratios(logp, before, zeros, valid))
        return super().objective(rollout, rows, old)


def collect(variant: str) -> None:
    """Train the runs of a variant, those with equal settings together, and add their validations to the file."""
    plan = make_plan(load_sweep("early_warning"), [f"variant={variant}"])
    specs = [run.spec for run in plan.runs if isinstance(run.spec, ExactRun)]
    with mock.patch.object(trainer, "Learner", Watched):
        histories = trainer.histories_together(specs)
    for spec, (reason, rows) in zip(specs, histories, strict=True):
        steps = pd.DataFrame([row for _, row in rows], index=[step for step, _ in rows])
        score = steps[schema.validation_metric(schema.MEAN, spec.validation.samples)]
        period = score.notna().shift(fill_value=False).cumsum()  # ends with a validation
        means = steps.reindex(columns=METRICS.values()).groupby(period).mean()
        table = pd.DataFrame({"step": steps.index, "score": score}).dropna()
        table[[*METRICS]] = means.to_numpy()[: len(table)]
        table = table.assign(variant=variant, seed=spec.seed, end=rows[-1][0], collapsed=int(bool(reason)))
        table[COLUMNS].to_csv(FILE, mode="a", header=not FILE.exists(), index=False, float_format="%.4g")
    print(variant, flush=True)


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
    warnings: dict[str, Value] = {"regression": Regression(fit), **{name: plain(name) for name in PLAIN}}
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


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["collect", "judge"])
    parser.add_argument("variants", nargs="*", help="of `collect`; all by default")
    given = parser.parse_args()
    if given.what == "judge":
        judge()
        return
    torch.set_num_threads(1)
    plan = make_plan(load_sweep("early_warning"), [])
    for variant in given.variants or dict.fromkeys(run.variant for run in plan.runs):
        collect(variant)


if __name__ == "__main__":
    main()
