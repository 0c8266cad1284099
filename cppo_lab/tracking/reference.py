"""The paper's curves, from the CSV files in `reports/paper/`: as runs, and those in the tracking store.

Each (model, method) of the main grid is a run; an ablation curve that equals a curve of the main grid point by point is
that same run under another name, every other ablation curve is a separate run. One report serves the paper and our own
sweeps, since each becomes a run of the experiment `paper`, under a parent for each sweep as our runs are.

A report of the paper itself asks no store: MLflow is imported by the functions that write to a store.
"""

import contextlib
import csv
import gzip
import io
import math
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.rules import colours
from cppo_lab.tracking import address
from cppo_lab.tracking.history import HISTORY, from_columns, pack, recorded_status

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from cppo_lab.tracking.page import SweepText

MAIN = "main"
_ARTICLE = "https://arxiv.org/abs/2606.10968"
# The curves are given to six decimals, so the same point computed in two ways can differ by the last digit.
SAME_POINT = 2e-6
_MEAN = schema.validation_metric(schema.MEAN)
_FAULTS = (OSError, EOFError, zlib.error, csv.Error, ValueError, LookupError, TypeError, OverflowError)
BATCH = 1000  # MLflow's limit on the metrics of a log_batch call
_EXPERIMENT = schema.experiment_name(schema.PAPER)
_EXPERIMENT_NOTE = f"""\
# The paper's own curves

These runs were **not trained here**. They hold the values that the paper plots
("Beyond Uniform Token-Level Trust Region in LLM Reinforcement Learning", [arXiv 2606.10968]({_ARTICLE})),
read off the vector figures of its public PDF: the validation curves of the main grid and of the ablations,
and the training and warm-up diagnostics. Accuracies and rewards are fractions, response lengths are tokens
(the paper plots thousands). The paper does not give seeds, hence `{schema.TAG_SEED} = unknown`.

Written by `cppo reference import`; importing again adds nothing.
"""

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
            schema.TAG_NOTE: f"{self.variant} on {self.model}, as plotted in the paper ({_ARTICLE}).",
        }
        return tags | {schema.sweep_tag(sweep): variant for sweep, variant in self.sweeps.items()}


@contextlib.contextmanager
def reading(name: str) -> Iterator[Iterator[dict[str, str]]]:
    """The rows of a reference file (`reports/paper/<name>`), wherever the package is installed.

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

    Raises UserError if any of its files is damaged.
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
        twins = (
            run
            for run in runs
            if run.model == model and run.points[_MEAN].keys() == curve.keys()
            if all(abs(run.points[_MEAN][step] - score) <= SAME_POINT for step, score in curve.items())
        )
        if (twin := next(twins, None)) is not None:
            twin.sweeps[sweep] = variant
            continue
        run_id = f"paper-{model}-{variant}"
        if any(run.run_id == run_id for run in runs):  # a name of two curves: tell them apart by the sweep
            run_id = f"paper-{model}-{sweep}-{variant}"
        run = ReferenceRun(run_id, model, variant, t_stop[model], {sweep: variant})
        run.points[_MEAN] = curve
        runs.append(run)
    return runs


# In the tracking store


def import_reference(uri: str, progress: Callable[[str], None] = lambda line: None) -> int:
    """Writes the paper's curves into the store at `uri`, and returns how many runs it added.

    A run counts as present only if its status tag says so: what an interrupted import left is deleted and redone, and a
    second import adds nothing (one import at a time: it cannot tell a leftover from another import's run). `progress`
    gets a line per run added and a line at the end. Raises UserError if the experiment `paper` of that store was
    deleted.
    """
    from cppo_lab.tracking.client import ensure_experiment, open_client

    curves = reference_runs()  # before anything is written
    if (path := address.sqlite_file(uri)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    client = open_client(uri)
    experiment_id = ensure_experiment(client, _EXPERIMENT, _EXPERIMENT_NOTE)
    present = set()
    for run in _imported(client):
        if recorded_status(run.data.tags) == schema.DONE:
            present.add(run.data.tags[schema.TAG_RUN_ID])
        else:
            client.delete_run(run.info.run_id)
    missing = [curve for curve in curves if curve.run_id not in present]
    for number, curve in enumerate(missing, start=1):
        points = _write(client, experiment_id, curve)
        progress(f"reference {number}/{len(missing)}: {curve.variant} on {curve.model}, {points} points")
    progress(f"reference: {len(missing)} runs added, {len(curves) - len(missing)} were there already")
    return len(missing)


def _imported(client: "MlflowClient") -> "list[Run]":
    """The runs of an import; all pages at once, since deleting would shift the later ones."""
    from cppo_lab.tracking.read import newest_runs

    return list(newest_runs(client, _EXPERIMENT, f"tags.`{schema.TAG_RUN_ID}` LIKE 'paper-%'"))


def _write(client: "MlflowClient", experiment_id: str, run: ReferenceRun) -> int:
    """Creates a run with all its points, also in one file as other runs; the paper gives no times. The status tag comes
    last.
    """
    from mlflow.entities import Metric, RunTag

    tags = run.tags() | {schema.TAG_STATUS: schema.RUNNING}
    created = client.create_run(experiment_id, tags=tags, run_name=f"{run.variant} on {run.model} (paper)")
    mlflow_id = created.info.run_id
    metrics = [
        Metric(name, value, 0, step) for name, curve in run.points.items() for step, value in curve.items()
    ]
    for start in range(0, len(metrics), BATCH):
        client.log_batch(mlflow_id, metrics=metrics[start : start + BATCH])
    columns = {name: ([*curve], [*curve.values()], [0] * len(curve)) for name, curve in run.points.items()}
    with tempfile.TemporaryDirectory(prefix="cppo-") as folder:
        history = Path(folder, HISTORY)
        history.write_bytes(pack(from_columns(columns)))
        client.log_artifact(mlflow_id, str(history))
    client.set_terminated(mlflow_id, "FINISHED")
    client.log_batch(mlflow_id, tags=[RunTag(schema.TAG_STATUS, schema.DONE)])
    return len(metrics)


def nest_reference(uri: str, texts: "Mapping[str, SweepText]") -> None:
    """Give the sweeps of the experiment `paper` their parents, descriptions and view. Idempotent.

    `texts` are the descriptions of sweeps, by name; a sweep without a description is shown by its name. A run of
    several sweeps is put under the main grid first.
    """
    from cppo_lab.tracking.client import ensure_experiment, open_client
    from cppo_lab.tracking.page import SweepText, ensure_parent, nest, save_view, update_parent

    client = open_client(uri)
    experiment_id = ensure_experiment(client, _EXPERIMENT, _EXPERIMENT_NOTE)
    orphans: dict[str, list[str]] = {}  # by sweep
    for run in _imported(client):
        prefix, tags = schema.TAG_SWEEP_PREFIX, run.data.tags
        sweeps = [tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix)]
        for sweep in sweeps:
            orphans.setdefault(sweep, [])
        if sweeps and schema.TAG_PARENT not in tags:
            orphans[min(sweeps, key=lambda sweep: (sweep != MAIN, sweep))].append(run.info.run_id)
    for sweep, runs in sorted(orphans.items()):
        parent = ensure_parent(client, experiment_id, sweep)
        nest(client, dict.fromkeys(runs, parent))
        update_parent(client, parent, texts.get(sweep, SweepText(sweep, sweep, "")))
    save_view(client, experiment_id)
