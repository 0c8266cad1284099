"""Validation curves from the tidy metrics: one row per (run, step), one column per benchmark and one for their mean."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from cppo_lab import schema


@dataclass(frozen=True, eq=False)
class ValidationCurves:
    """Avg@`samples` of every run as fractions in [0, 1].

    `frame`: indexed by (mlflow_id, step), sorted; one column per benchmark and the column MEAN, the
    unweighted mean of the benchmarks of the run's model, i.e. of those that any run on that model has logged (models on
    different tasks have different benchmarks). A run that logged only the mean and no benchmark (the paper's ablation
    curves) keeps the mean it logged. MEAN is NaN at a step where a benchmark is missing.
    """

    frame: pd.DataFrame
    benchmarks: tuple[str, ...]
    samples: int
    of_model: Mapping[str, tuple[str, ...]]  # model -> its benchmarks, sorted by name

    def of(self, mlflow_id: str) -> pd.DataFrame:
        """One run's curves, indexed by step; empty if it has no validation."""
        found = self._of_run.get(mlflow_id)
        return self.frame.iloc[:0].droplevel("mlflow_id") if found is None else found

    @cached_property
    def _of_run(self) -> Mapping[str, pd.DataFrame]:
        """Split once: looking a run up in the whole frame takes longer the more runs there are."""
        parts = self.frame.groupby(level="mlflow_id", sort=False, observed=True)
        return {str(mlflow_id): part.droplevel("mlflow_id") for mlflow_id, part in parts}


def validation_curves(metrics: pd.DataFrame, runs: pd.DataFrame) -> ValidationCurves:
    """The validation curves in the `metrics` and `runs` frames of `reader.SweepData`.

    If benchmarks were evaluated with several sample counts (Avg@1 and Avg@16), the largest is used.
    """
    # Few of very many points are validations: they are picked by category code, before names are expanded.
    names = metrics["metric"].astype("category").cat
    parsed = [schema.parse_validation_metric(name) for name in names.categories]
    known = np.array([found is not None for found in parsed], dtype=bool)
    codes = names.codes.to_numpy()
    picked = known[codes] if len(parsed) else np.zeros(len(codes), dtype=bool)
    # Column by column: selecting rows and columns at once would copy whole columns first.
    columns = ("mlflow_id", "step", "value")
    rows = pd.DataFrame({name: metrics[name].array[picked] for name in columns})
    codes = codes[picked]
    sizes = np.array([0 if found is None else found[1] for found in parsed], dtype=int)[codes]
    samples = int(sizes.max()) if len(sizes) else 0
    benchmark = np.array(["" if found is None else found[0] for found in parsed], dtype=object)
    rows = rows.astype({"mlflow_id": object}).assign(benchmark=benchmark[codes])[sizes == samples]
    wide = rows.pivot(index=["mlflow_id", "step"], columns="benchmark", values="value").sort_index()
    wide.columns.name = None
    benchmarks = tuple(sorted(name for name in wide.columns if name != schema.MEAN))
    logged_mean = wide[schema.MEAN] if schema.MEAN in wide else pd.Series(float("nan"), index=wide.index)
    wide[schema.MEAN] = logged_mean
    model_of = runs.set_index("mlflow_id")["model"]
    logged = rows.assign(model=rows["mlflow_id"].map(model_of)).groupby("model")["benchmark"]
    of_model = {model: tuple(sorted(set(names) - {schema.MEAN})) for model, names in logged}
    models = wide.index.get_level_values("mlflow_id").map(model_of)
    for model, own in of_model.items():
        if own:
            inside = models == model
            parts = wide.loc[inside, list(own)]
            only_mean = parts.isna().groupby(level="mlflow_id").transform("all").all(axis=1)
            mean = parts.mean(axis=1, skipna=False)
            wide.loc[inside, schema.MEAN] = mean.where(~only_mean, wide.loc[inside, schema.MEAN])
    return ValidationCurves(wide[[*benchmarks, schema.MEAN]], benchmarks, samples, of_model)
