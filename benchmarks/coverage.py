"""Coverage and error rates of the statistics in simulated studies: the tables of docs/evidence/coverage.md.

coverage      share of studies whose 95 % interval contains the true value: ours and the percentile bootstrap; for
              normal scores and for scores with a long upper tail (Gumbel, skewness 1.14).
pooling       the same for a low-variance and a high-variance method if the variance is pooled over methods.
selection     bias and standard deviation of the best step's score and of its corrections, relative to the noise-free
              score of the selected step. Runs rise and level off, wander (autocorrelated), and have sampling error.
families      familywise error rate for six methods compared with an equally good baseline.
speed         seconds for all statistics of 28 cells with three seeds and 2,000 resamples.

    python benchmarks/coverage.py [--quick]

The last line is JSON, see `common.py`.
"""

import time
from collections.abc import Iterable

import numpy as np
import pandas as pd
from common import Rows, arguments, result, show
from scipy.special import stdtrit

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.analysis.points import METRIC_COLUMNS, RUN_COLUMNS, SweepData
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.estimate import (
    AGGREGATES,
    Estimate,
    Share,
    bootstrap,
    holm,
    mean_estimate,
    percentile_interval,
    probability_of_improvement,
)
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.analysis.statistics.values import held_out_best

SEEDS = (3, 5, 10)
LEVELS = np.array([0.20, 0.30, 0.40, 0.50])  # four models
SPREADS = np.array([0.01, 0.02, 0.015, 0.03])
GUMBEL_STD, EULER = np.pi / 6**0.5, 0.5772156649015329
RESAMPLES = 400


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Mean 0, variance 1."""
    return rng.standard_normal(shape)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Mean 0, variance 1, a long upper tail."""
    return (rng.gumbel(size=shape) - EULER) / GUMBEL_STD


def holds(found: Estimate | Share | None, truth: float) -> bool:
    """Whether the interval holds the truth; no interval does not."""
    if found is None or found.low is None or found.high is None:
        return False
    return found.low <= truth <= found.high


def share(studies: Iterable[bool]) -> float:
    """Of the studies in which it is true."""
    return float(np.mean([*studies]))


def coverage(studies: int) -> Rows:
    """(row, {column: percent})."""
    for draw in (normal, skewed):
        for n in SEEDS:
            rng = np.random.default_rng(n)
            values = 0.3 + 0.02 * draw(rng, (studies, n))
            ours = share(holds(mean_estimate(row.tolist()), 0.3) for row in values)
            columns = {"ours": ours, "percentile": percentile(values[:, None], "mean", 0.3, rng)}
            yield f"one model, mean, {n} seeds, {draw.__name__}", columns
            pairs = 0.02 * draw(rng, (studies, n)) - 0.01 * draw(rng, (studies, n))
            ours = share(holds(mean_estimate(row.tolist()), 0.0) for row in pairs)
            yield f"one model, paired difference, {n} seeds, {draw.__name__}", {"ours": ours}
        for name, statistic in AGGREGATES.items():
            many = LEVELS[:, None] + SPREADS[:, None] * draw(np.random.default_rng(0), (4, 400_000))
            truth = float(statistic(list(many)))
            for n in SEEDS:
                rng = np.random.default_rng(n)
                drawn = LEVELS[:, None] + SPREADS[:, None] * draw(rng, (studies, 4, n))
                ours = share(holds(bootstrap(list(x), statistic, rng, RESAMPLES), truth) for x in drawn)
                columns = {"ours": ours, "percentile": percentile(drawn, name, truth, rng)}
                yield f"four models, {name}, {n} seeds, {draw.__name__}", columns


def percentile(drawn: np.ndarray, name: str, truth: float, rng: np.random.Generator) -> float:
    """The share of studies [studies, models, seeds] whose percentile bootstrap holds the truth."""
    plain = [percentile_interval(list(x), AGGREGATES[name], rng, RESAMPLES) for x in drawn]
    return share(low <= truth <= high for low, high in plain)


def improvement(studies: int) -> Rows:
    """The interval of the probability of improvement, where the true one is 0.5 and 0.92."""
    for models in (1, 4):
        for n in SEEDS:
            columns = {}
            for shift, truth in ((0.0, 0.5), (2.0, 0.9214)):
                rng, shape = np.random.default_rng(n), (studies, models, n)
                ours, theirs = rng.normal(shift, 1, shape), rng.normal(0, 1, shape)
                pairs = zip(ours, theirs, strict=True)
                estimates = [probability_of_improvement(list(a), list(b)) for a, b in pairs]
                bounded = [each for each in estimates if each.low is not None]
                columns[f"P = {truth:.2f}"] = share(holds(each, truth) for each in bounded)
            yield f"{models} {'model' if models == 1 else 'models'}, {n} seeds", columns


def pooling(studies: int) -> Rows:
    """Seven methods, one of which scatters four times as much as the others."""
    spreads = np.array([0.01] * 6 + [0.04])
    for n in SEEDS:
        x = spreads[:, None] * np.random.default_rng(n).standard_normal((studies, 7, n))
        error = np.sqrt(x.var(axis=-1, ddof=1).mean(axis=-1) / n)[:, None]
        inside = np.abs(x.mean(axis=-1)) <= stdtrit(7 * (n - 1), 0.975) * error
        own = np.sqrt(x.var(axis=-1, ddof=1) / n)
        alone = np.abs(x.mean(axis=-1)) <= stdtrit(n - 1, 0.975) * own
        for which, index in (("low-variance", slice(0, 6)), ("high-variance", slice(6, 7))):
            columns = {"pooled": inside[:, index].mean(), "ours": alone[:, index].mean()}
            yield f"{which} method, {n} seeds", columns


def wander(
    rng: np.random.Generator, shape: tuple[int, ...], spread: float, memory: float = 0.8
) -> np.ndarray:
    """Autocorrelated steps on the last axis, standard deviation `spread`."""
    noise = rng.standard_normal(shape)
    for step in range(1, shape[-1]):
        noise[..., step] = memory * noise[..., step - 1] + np.sqrt(1 - memory**2) * noise[..., step]
    return spread * noise


def selection(studies: int) -> Rows:
    """Points; one row per kind of curve and estimator. Selection on other seeds uses five seeds, the others one."""
    kinds = {
        "like the paper's": (68, 0.008, 0.005),
        "noise only": (68, 0.0, 0.0),
        "long runs": (112, 0.012, 0.005),
    }
    for kind, (steps, together, own) in kinds.items():
        rng = np.random.default_rng(1)
        rise = 0.1 + 0.25 * (1 - np.exp(-4 * np.linspace(0, 1, steps)))
        shape = (studies, 5, 3, steps)
        true = rise + wander(rng, (studies, 5, 1, steps), together) + wander(rng, shape, own)
        seen = rng.binomial(480, np.clip(true, 0, 1)) / 480
        mean, quality = seen.mean(axis=2), true.mean(axis=2)
        picked = mean.argmax(axis=-1)[..., None]
        truth = np.take_along_axis(quality, picked, -1)[..., 0]
        other = (mean.sum(axis=1, keepdims=True) - mean).argmax(axis=-1)[..., None]
        estimators = {
            "best step": np.take_along_axis(mean, picked, -1)[..., 0],
            "selected on other benchmarks (ours)": held_out_best(np.moveaxis(seen, 2, -1)),
            "selected on other seeds": np.take_along_axis(mean, other, -1)[..., 0],
            "final mean": mean[..., int(0.7 * steps) :].mean(axis=-1),
        }
        for name, values in estimators.items():
            error = 100 * (values - truth)
            yield f"{kind}: {name}", {"bias": float(error.mean()), "standard deviation": float(error.std())}


def families(studies: int) -> Rows:
    """Six methods of equal worth, paired by seed with the baseline."""
    for n in SEEDS:
        rng, counts = np.random.default_rng(n), np.zeros(2)
        for _ in range(studies):
            pairs = 0.02 * (rng.standard_normal((6, n)) - rng.standard_normal(n))
            estimates = [mean_estimate(row.tolist()) for row in pairs]
            p_values = [p for one in estimates if one is not None and (p := one.p_value()) is not None]
            counts += (min(holm(p_values)) <= 0.05, min(p_values) <= 0.05)
        yield f"{n} seeds", dict(zip(("holm (ours)", "no adjustment"), counts / studies, strict=True))


def made_board(seeds: int = 3, points: int = 68) -> Scoreboard:
    """Seven methods on four models with three benchmarks."""
    rng, rows, frames, expected = np.random.default_rng(0), [], [], []
    for model in "abcd":
        for variant in ("grpo", "minpro", "cispo", "dppo", "trm_max", "trm_avg", "cppo"):
            for seed in range(seeds):
                name = f"{model}-{variant}-{seed}"
                rows.append(
                    dict.fromkeys(RUN_COLUMNS, "")
                    | {"mlflow_id": name, "run_id": name, "variant": variant, "model": model, "core": "mini"}
                    | {"seed": seed, "t_stop": 10 * points, "status": schema.DONE, "start": pd.Timestamp(0)}
                )
                expected.append(ExpectedRun(name, model, variant, seed))
                for year in (24, 25, 26):
                    scores = rng.binomial(480, 0.3, points) / 480
                    metric = schema.validation_metric(f"aime{year}")
                    columns = (name, metric, 10 * np.arange(points), scores)
                    frames.append(pd.DataFrame(dict(zip(METRIC_COLUMNS, columns, strict=True))))
    runs = pd.DataFrame(rows, columns=list(RUN_COLUMNS)).astype({"seed": "Int64", "t_stop": "Int64"})
    return score_sweep(SweepData("cppo-mini", "main", runs, pd.concat(frames, ignore_index=True)), expected)


def main() -> None:
    """Prints the tables, then the JSON line."""
    quick = arguments(__doc__, "100 studies instead of 2,000").quick
    studies = 100 if quick else 2000
    covered = show("coverage, %", coverage(studies), 100, 1)
    show("coverage of the probability of improvement, %", improvement(studies), 100, 1)
    show("coverage with pooled variance, %", pooling(studies), 100, 1)
    picked = show("error of the best step's score, points", selection(studies // 4), 1, 2)
    false = show("familywise error rate, %", families(studies), 100, 1)
    board = made_board()
    start = time.perf_counter()
    sweep_statistics(board)
    seconds = time.perf_counter() - start
    print(f"\n28 cells with 3 seeds, all statistics: {seconds:.2f} s")
    gaussian = [row["ours"] for name, row in covered.items() if name.endswith("normal")]
    figures = {
        "coverage_least": min(gaussian),
        "coverage_most": max(gaussian),
        "correction_bias": abs(picked["like the paper's: selected on other benchmarks (ours)"]["bias"]),
        "uncorrected_bias": abs(picked["like the paper's: best step"]["bias"]),
        "false_findings_most": max(row["holm (ours)"] for row in false.values()),
        "seconds": seconds,
    }
    units = {"*_bias": "points", "seconds": "s", "*": "%"}
    most = {
        "coverage_most": 97.0,
        "correction_bias": 0.4,
        "false_findings_most": 6.0,
        "seconds": 1.0,
    }
    least = {"coverage_least": 93.0}
    print(result("coverage", figures, units, at_most=most, at_least=least, quick=quick).line())


if __name__ == "__main__":
    main()
