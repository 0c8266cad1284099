"""verl's validation metrics in the names of the schema."""

import re
from collections.abc import Mapping, Sequence

from cppo_lab import schema
from cppo_lab.spec import VerlRun

_METRIC = re.compile(
    r"val-(?:core|aux)/(?P<source>[^/]+)/(?P<variable>acc|answer_rule)/mean@(?P<samples>\d+)"
)


def score_name(spec: VerlRun) -> str:
    """The metric by which a run's checkpoints are compared and its collapse is seen."""
    return schema.validation_metric(schema.MEAN, spec.validation.samples)


def validation_metrics(
    found: Mapping[str, float], benchmarks: Sequence[str], samples: int
) -> dict[str, float]:
    """Avg@`samples` on every benchmark and their unweighted mean; and, where graded, the share by the `Answer:` rule.

    Raises ValueError if verl reports no score for a benchmark: an incomplete validation does not count.
    """
    metrics: dict[str, float] = {}
    for name, value in found.items():
        match = _METRIC.fullmatch(name)
        if match is None or match["source"] not in benchmarks or int(match["samples"]) != samples:
            continue
        if match["variable"] == "acc":
            metrics[schema.validation_metric(match["source"], samples)] = float(value)
        else:
            metrics[schema.answer_rule_metric(match["source"], samples)] = float(value)
    names = [schema.validation_metric(benchmark, samples) for benchmark in benchmarks]
    missing = [name for name in names if name not in metrics]
    if missing:
        raise ValueError(f"verl's validation has no {', '.join(missing)} among {', '.join(sorted(found))}")
    scores = [metrics[name] for name in names]
    return metrics | {schema.validation_metric(schema.MEAN, samples): sum(scores) / len(scores)}
