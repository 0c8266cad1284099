"""Main effects and interactions of a sweep over doses, and falls of runs; shares no code with the product's analysis.

    cppo export metrics drift --out metrics && python -m dev.factorial metrics [--csv FILE]

Each method minus DPPO, seed by seed: in the mean over all doses (`mean`), at the highest dose of a factor minus at the
lowest (main effects), and differences of those differences (interactions). `dppo` itself is not subtracted. Errors are
compared step by step. Seeds are the units of the t intervals. Falls are counted, with exact tests against DPPO's.
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binomtest, fisher_exact, t

FACTORS = {"staleness": "rollout.staleness", "mismatch": "model.mismatch", "T": "rollout.max_response_length"}
REFERENCE = "dppo"
FALLEN = 0.8  # a run has fallen if it ends below this share of its highest return, or is collapsed
COLUMNS = ("model", "outcome", "method", "effect", "value", "low", "high", "seeds")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of `cppo export metrics`")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    runs = pd.read_parquet(given.folder / "runs.parquet").rename(columns={v: k for k, v in FACTORS.items()})
    runs["method"] = runs["variant"].str.split(" ").str[0]
    if "along" in runs:  # single updates and whole trainings in one sweep
        runs["model"] += np.where(runs["along"].isna(), "", " (single updates)")
    history = pd.read_parquet(given.folder / "history.parquet")
    rows = history[history["step"] > 0].merge(runs, on="run_id")
    table = pd.DataFrame(effects(rows), columns=COLUMNS)
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    if given.csv:
        table.to_csv(given.csv, index=False, float_format="%.6g", lineterminator="\n")
    for line in falls(rows):
        print(line)


def effects(rows: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """The rows of the table: returns in points, and logs of |Delta|."""
    for model, of_model in rows.assign(doses="all").groupby("model"):
        factors = [name for name in FACTORS if name in of_model and of_model[name].nunique() > 1]
        doses = ["doses", *factors]
        for outcome, metric in (("return", "exact/return"), ("log error", "exact/error")):
            values = of_model[of_model["metric"] == metric].copy()
            values["value"] = 100 * values["value"] if outcome == "return" else np.log(values["value"].abs())
            steps = values.pivot_table(index=[*doses, "seed", "step"], columns="method", values="value")
            for method in steps:
                apart = steps[method] - (0 if method == REFERENCE else steps[REFERENCE])
                by_seed = apart.groupby(level=[*doses, "seed"]).mean().unstack("seed").dropna(how="all")
                tested = [name for name in factors if by_seed.index.get_level_values(name).nunique() > 1]
                yield from ((model, outcome, method, *effect) for effect in contrasts(by_seed, tested))


def contrasts(table: pd.DataFrame, factors: list[str]) -> Iterator[tuple[object, ...]]:
    """Each effect with its interval over seeds, of `table` with the doses as rows and the seeds as columns."""
    yield "mean", *interval(table.mean())
    places = {name: table.index.get_level_values(name) for name in factors}
    for number in (1, 2):
        for names in itertools.combinations(factors, number):
            effect = 0.0
            for ends in itertools.product((-1, 1), repeat=number):
                chosen = np.ones(len(table), dtype=bool)
                for name, end in zip(names, ends, strict=True):
                    chosen &= places[name] == (places[name].max() if end > 0 else places[name].min())
                effect = effect + np.prod(ends) * table[chosen].mean()
            yield " x ".join(names), *interval(effect)


def interval(values: pd.Series) -> tuple[float, float, float, int]:
    """The mean, its 95 % limits by Student's t, and how many seeds it has."""
    finite = values.dropna()
    half = t.ppf(0.975, len(finite) - 1) * finite.std(ddof=1) / np.sqrt(len(finite))
    return finite.mean(), finite.mean() - half, finite.mean() + half, len(finite)


def falls(rows: pd.DataFrame) -> Iterator[str]:
    """How many runs of each method collapsed, and fell: Fisher's exact test, and McNemar's over doses and seeds."""
    updates = rows.loc[rows["metric"] == "exact/matched", "run_id"]  # runs of single updates do not fall
    returns = rows[(rows["metric"] == "exact/return") & ~rows["run_id"].isin(updates)].sort_values("step")
    runs = returns.drop_duplicates("run_id").set_index("run_id")
    unit = [name for name in (*FACTORS, "seed") if name in runs]
    curve = returns.groupby("run_id")["value"]
    runs["collapsed"] = runs["state"] == "collapsed"
    runs["fell"] = runs["collapsed"] | (curve.last() < FALLEN * curve.max())
    for (model, of_model), what in itertools.product(runs.groupby("model"), ("collapsed", "fell")):
        table = of_model.pivot(index=unit, columns="method", values=what).dropna().astype(bool)
        for method in table.columns.drop(REFERENCE):
            ours, theirs = table[method], table[REFERENCE]
            fisher = fisher_exact([[side.sum(), (~side).sum()] for side in (ours, theirs)]).pvalue
            only, other = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
            mcnemar = binomtest(only, only + other).pvalue if only + other else 1.0
            yield (
                f"{model}: of {len(table)} {method} {what}: {ours.sum()}, DPPO {theirs.sum()}; Fisher p = "
                f"{fisher:.3g}; it alone {only}, DPPO alone {other}, McNemar p = {mcnemar:.3g}"
            )


if __name__ == "__main__":
    main()
