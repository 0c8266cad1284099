"""How many runs of each method collapsed, and fell, against DPPO's, with exact tests; shares no code with the product.

    cppo export metrics falls --out metrics && python -m dev.falls metrics

Effects of doses on returns and errors are in the reports of sweeps with `analysis: factorial`.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from scipy.stats import binomtest, fisher_exact

DOSES = ("rollout.staleness", "model.mismatch", "rollout.max_response_length")
REFERENCE = "dppo"
FALLEN = 0.8  # a run has fallen if it ends below this share of its highest return, or is collapsed


def main() -> None:
    """See the module's docstring."""
    folder = Path(sys.argv[1])
    runs, history = (pd.read_parquet(folder / f"{name}.parquet") for name in ("runs", "history"))
    runs["method"] = runs["variant"].str.split(" ").str[0]
    for line in falls(history[history["step"] > 0].merge(runs, on="run_id")):
        print(line)


def falls(rows: pd.DataFrame) -> Iterator[str]:
    """How many runs of each method collapsed, and fell: Fisher's exact test, and McNemar's over doses and seeds."""
    updates = rows.loc[rows["metric"] == "exact/matched", "run_id"]  # runs of single updates do not fall
    returns = rows[(rows["metric"] == "exact/return") & ~rows["run_id"].isin(updates)].sort_values("step")
    runs = returns.drop_duplicates("run_id").set_index("run_id")
    unit = [name for name in (*DOSES, "seed") if name in runs]
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
