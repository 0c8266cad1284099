"""The paper's curves as runs, from the CSV files in `reports/paper/`; imports nothing of MLflow.

Each (model, method) of the main grid is one run; an ablation curve that equals a curve of the main grid point by point
is that same run under another name, every other ablation curve is a separate run.
"""

import contextlib
import csv
import gzip
import io
import math
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.rules import colours

MAIN = "main"
ARTICLE = "https://arxiv.org/abs/2606.10968"
# The curves are given to six decimals, so the same point computed in two ways can differ by the last digit.
SAME_POINT = 2e-6
_MEAN = schema.validation_metric(schema.MEAN)
_FAULTS = (OSError, EOFError, zlib.error, csv.Error, ValueError, LookupError, TypeError, OverflowError)

# Column `metric` of the diagnostics files -> (our metric, factor into our unit). "k" is read as 1000 tokens.
_DIAGNOSTICS = {
    "reward": ("train/reward", 1.0),
    "reward_smoothed": ("train/reward_smoothed", 1.0),
    "response_length_k": ("train/response_length", 1000.0),
    "rel_logprob_error": ("train/relative_logprob_error", 1.0),
    "delta_b_effective_mean": ("rule/delta_b_mean", 1.0),
    "prefix_budget_mask_fraction": ("rule/prefix_budget_share", 1.0),
}


@dataclass
class ReferenceRun:
    """One run to create: its `sweeps` map a sweep's name to the run's variant there; `points` maps metric ->
    step -> value.
    """

    run_id: str
    model: str
    variant: str
    t_stop: int
    sweeps: dict[str, str]
    points: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def rule(self) -> str:
        """The rule's name; the `cppo_db..._w...` variants are the rule `cppo` with other constants."""
        return "cppo" if self.variant.startswith("cppo_db") else self.variant

    def tags(self) -> dict[str, str]:
        """The run's tags, all but the status."""
        tags = {
            schema.TAG_RUN_ID: self.run_id,
            schema.TAG_RULE: self.rule,
            schema.TAG_MODEL: self.model,
            schema.TAG_CORE: schema.PAPER,
            schema.TAG_SEED: "unknown",
            schema.TAG_T_STOP: str(self.t_stop),
            schema.TAG_COLOUR: colours((self.variant,))[self.variant],
            schema.TAG_NOTE: f"{self.variant} on {self.model}, as plotted in the paper ({ARTICLE}).",
        }
        return tags | {schema.sweep_tag(sweep): variant for sweep, variant in self.sweeps.items()}


@contextlib.contextmanager
def reading(name: str) -> Iterator[Iterator[dict[str, str]]]:
    """The rows of one of the reference files (`reports/paper/<name>`), wherever the package is installed.

    Raises UserError if it is damaged, also for what its reader finds wrong with a row: a column or number that is not
    there.
    """
    try:
        raw = resources.files("cppo_lab.reports").joinpath("paper", name).read_bytes()
        text = gzip.decompress(raw) if name.endswith(".gz") else raw
        yield csv.DictReader(io.StringIO(text.decode()))
    except _FAULTS as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        raise UserError(
            f"the paper's curves in reports/paper/{name} are damaged ({reason}): install the package again"
        ) from None


def reference_runs() -> list[ReferenceRun]:
    """What the reference consists of: the main grid in the order of Table 4, then the curves of the
    ablations only.

    Raises UserError if one of its files is damaged.
    """
    runs: dict[tuple[str, str], ReferenceRun] = {}
    with reading("table_full.csv") as rows:
        for row in rows:
            model, method = row["model"], row["method"]
            runs[model, method] = ReferenceRun(
                f"paper-{model}-{method}", model, method, int(row["t_stop"]), {MAIN: method}
            )
    with reading("validation_curves.csv") as rows:
        for row in rows:
            name = schema.validation_metric(row["benchmark"])
            runs[row["model"], row["method"]].points[name][int(row["step"])] = _score(row["avg_at_16"])
        for run in runs.values():
            curves = list(run.points.values())
            steps = [step for step in curves[0] if all(step in curve for curve in curves)]
            run.points[_MEAN] = {step: sum(curve[step] for curve in curves) / len(curves) for step in steps}
    for file, rule in (("training_diagnostics.csv.gz", None), ("warmup_diagnostics.csv", "cppo")):
        with reading(file) as rows:
            for row in rows:
                name, factor = _DIAGNOSTICS[row["metric"]]
                points = runs[row["model"], rule or row["method"]].points[name]
                points[int(row["step"])] = _score(row["value"]) * factor
    return _with_ablations(list(runs.values()))


def _score(text: str) -> float:
    """A finite number. Raises ValueError for anything else."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a score")
    return value


def _same(a: dict[int, float], b: dict[int, float]) -> bool:
    return a.keys() == b.keys() and all(abs(a[step] - b[step]) <= SAME_POINT for step in a)


def _with_ablations(runs: list[ReferenceRun]) -> list[ReferenceRun]:
    """Adds the ablation curves: as a sweep tag where a run has the same curve, else as a run."""
    curves: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    t_stop = {run.model: run.t_stop for run in runs}
    with reading("ablation_curves.csv") as rows:
        for row in rows:
            curve = curves[row["ablation"], row["model"], row["variant"]]
            curve[int(row["step"])] = _score(row["aime24_25_26_avg_at_16"])
            if row["model"] not in t_stop:
                raise ValueError(f"model {row['model']!r} is in no table")

    for (sweep, model, variant), curve in curves.items():
        twin = next((run for run in runs if run.model == model and _same(run.points[_MEAN], curve)), None)
        if twin is not None:
            twin.sweeps[sweep] = variant
            continue
        run_id = f"paper-{model}-{variant}"
        if any(run.run_id == run_id for run in runs):  # a name of two curves: tell them apart by the sweep
            run_id = f"paper-{model}-{sweep}-{variant}"
        run = ReferenceRun(run_id, model, variant, t_stop[model], {sweep: variant})
        run.points[_MEAN] = curve
        runs.append(run)
    return runs
