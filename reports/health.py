"""Whether training was sound: the section on collapses, and that on the gap between sampler and trainer, mu and pi,
before the updates of a step and over them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import median

import numpy as np
import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.inputs import integer
from cppo_lab.analysis.scoring import RunScore, Scoreboard, SelectionState, describe_gap
from cppo_lab.analysis.statistics.collapse import cell_collapses
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.errors import counted
from cppo_lab.reports.figures.curves import (
    DiagnosticPanel,
    diagnostics_of,
    draw_diagnostics,
    draw_survival,
    drawn_variants,
    survival_info,
    traces_of,
)
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.names import (
    ABSENT,
    baseline_name,
    display_name,
    estimate_text,
    in_order,
    score_text,
)
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.reports.tables import TextTable, cell_row, completed


def collapse_section(scored: Scored) -> Section | None:
    """The collapses of a scored sweep; None if no run is finished."""
    board, title, baseline = scored.board, scored.title, scored.statistics.baseline
    cells = cell_collapses(board, run_values(board), baseline)
    if not cells:
        return None
    single = [cell for (model, _), cell in cells.items() if model]
    runs, collapsed = sum(cell.runs for cell in single), sum(cell.collapsed for cell in single)
    summary = f"{collapsed} of {counted(runs, 'finished run')} collapsed."
    if not collapsed:
        summary = f"None of {counted(runs, 'finished run')} collapsed; "
        summary += "the table bounds the probability of rare collapses."
    base, rows, steps, marked = baseline_name(baseline), [], [], False
    for (model, variant), cell in cells.items():
        test, p = cell.test, ABSENT
        row = cell_row(model, variant, ())
        row = row if model else replace(row, label=f"all models: {row.label}", pair=None)
        if test is not None:
            marked |= not test.exact
            p = ("p < 0.001" if test.p < 0.001 else f"p = {test.p:.3f}") + " (normal)" * (not test.exact)
        means = score_text(cell.surviving), estimate_text(cell.mean if model else None)
        counts = str(cell.runs), str(cell.collapsed), estimate_text(cell.share)
        rows.append(replace(row, cells=(*counts, *means, p)))
        for point in cell.curve:
            at = map(str, (point.step, point.at_risk, point.collapses))
            steps.append(replace(row, cells=(*at, estimate_text(point.share))))
    ways = "over all ways to assign the runs to the two methods"
    ways += ", or, where marked, by the normal approximation" * marked
    headings = (
        "runs",
        "collapsed",
        "probability",
        "final mean of the others",
        "final mean of all",
        f"against {base}",
    )
    notes = (
        "Percent. probability: that a run collapses, with Wilson's 95 % interval. final mean of the others: of the "
        "runs that did not collapse, with the 95 % interval (Student's t; of two runs their range). final mean of all: "
        "with a 95 % interval that allows for unseen collapses, too; a collapse counts as score 0 if none was seen.",
        f"against {base}: two-sided p of the log-rank test of the steps at which runs collapse, {ways}; over all "
        "models it is stratified by model. A dash for the baseline, and without a collapse.",
    )
    table = completed(TextTable("Collapses", "method", headings, rows, notes), board, title)
    survival = None
    if collapsed:
        survival = TextTable(
            "Steps of the collapses",
            "method",
            ("step", "runs before it", "collapses", "share that lasts"),
            steps,
            (
                "The share of runs that survive the step (Kaplan and Meier, percent), with a 95 % interval "
                "(Greenwood's, on the scale log(-log)). A collapse is dated by the run's last validation; finished "
                "runs are censored at the end of the window.",
            ),
        )
        survival = completed(survival, board, title)
    figure = survival_info(board, cells, f"Runs that have not collapsed ({title})", scored.palette)
    view = {
        "summary": " ".join([summary, *_early(board)]),
        "table": table,
        "steps": survival,
        "figure": figure,
        "anchors": scored.anchors,
    }
    return Section(
        "collapses",
        "Collapses",
        view,
        tables={f"collapses{scored.suffix}": table, f"collapse_steps{scored.suffix}": survival},
        pictures=(Picture.of("survival", figure, draw_survival),) if figure else (),
    )


# Of the best score so far, the usual share of a collapse: a sign before a score of so much was of none.
_RECOVERED = 0.4


def _early(board: Scoreboard) -> Iterator[str]:
    """How early the warning came in the finished runs, and which other runs have early signs now, in words."""
    leads, false, now = [], [], []
    for run in board.runs:
        curve = board.curves.of(run.mlflow_id)[schema.MEAN].dropna()
        scores = [*zip(curve.index, curve, curve.cummax(), strict=True)]
        signs = [step for step, score, best in scores if schema.early_signs(score, best)]
        if run.state is SelectionState.COLLAPSE:
            recovered = max((step for step, score, best in scores if score >= _RECOVERED * best), default=0)
            leads.append(max((int(curve.index[-1]) - step for step in signs if step > recovered), default=0))
        elif run.state is SelectionState.SCORED:
            false.append(bool(signs))
        elif signs and signs[-1] == curve.index[-1]:
            now.append(describe_gap(run))
    if leads:
        warned = [lead for lead in leads if lead]
        lead = median(warned) if warned else 0
        ahead = f", {lead:g} step{'s' * (lead != 1)} ahead in the median" if warned else ""
        yield f"The early warning came before {len(warned)} of {counted(len(leads), 'collapse')}{ahead}."
    if any(false):
        yield f"It also came in {sum(false)} of {counted(len(false), 'run')} without a collapse."
    if now:
        yield f"Early signs of a collapse: {'; '.join(now)}."


# The gap between sampler and trainer.

# NeMo-RL's test runs fail above it: `max(data["train/token_mult_prob_error"]) < 1.05` in its tests/test_suites.
_SUSPICIOUS = 1.05
_ERROR = "token_mult_prob_error"
_TRUNCATED = "train/truncated_share"
_MOST_LISTED = 20  # runs that are named individually
_RELEVANT = 0.1  # of delta_b
_COLUMNS: dict[str, str] = {
    _ERROR: "mult. prob. error",
    "k1": "KL, k1",
    "k3": "KL, k3",
    "chi_square": "chi-square",
    "effective_sample_size": "ESS",
    "abs_log_ratio_p99": "|log rho| p99",
    "abs_log_ratio_max": "|log rho| max",
}
_FORMS = {_ERROR: ".4f", "effective_sample_size": ".4f", _TRUNCATED.rpartition("/")[2]: ".1%"}
_OF_RULE = {schema.DIVERGENCE_BEFORE: "D_t mean", schema.DIVERGENCE_BEFORE_P90: "D_t p90"}
_RATE = "rule/delta_b_mean"
_STATES = {True: "before the first update", False: "over the updates"}
# Kind of table -> its title, and its metrics with their headings.
_TABLES: dict[str, tuple[str, dict[str, str]]] = {
    "before_update" if before else "updates": (
        f"Sampler against trainer, {state}",
        {schema.mismatch_metric(name, before_update=before): text for name, text in _COLUMNS.items()}
        | (_OF_RULE if before else {_TRUNCATED: "truncated"}),
    )
    for before, state in _STATES.items()
}
_TABLES["thirds"] = (
    f"{_ERROR} by third of the response, before the first update and over the updates",
    {
        schema.mismatch_metric(_ERROR, third, before_update=before): f"{state}: {third}"
        for before, state in ((True, "before"), (False, "updates"))
        for third in schema.THIRDS
    },
)
SHOWN = frozenset([_RATE, *(metric for _, metrics in _TABLES.values() for metric in metrics)])
_BEFORE = schema.mismatch_metric(_ERROR, before_update=True)


def mismatch_section(scored: Scored) -> Section | None:
    """The section; None if no run has logged the gap between its engines (runs of older versions have not)."""
    board, title = scored.board, f"Sampler against trainer ({scored.title})"
    cells = [pair for pair in product(board.models, in_order(board.variants)) if pair in board.cells]
    if not any(len(_values(board, *pair, _BEFORE)) for pair in cells):
        return None
    tables, notes = {}, ("Median over steps and runs (worst step in brackets).",)
    for kind, (heading, metrics) in _TABLES.items():
        rows = []
        for pair in cells:
            values = {name: _values(board, *pair, name) for name in metrics}
            if any(map(len, values.values())):
                rows.append(cell_row(*pair, (_cell(*logged) for logged in values.items())))
        table = TextTable(heading, "method", tuple(metrics.values()), rows, notes)
        tables[kind] = completed(table, board, scored.title)
    # The curves of each model: the error before the first update, and over the updates.
    strokes, panels = scored.palette.strokes(drawn_variants(board)), []
    for model, (before, state) in product(board.models, _STATES.items()):
        metric = schema.mismatch_metric(_ERROR, before_update=before)
        traces, limit = traces_of(board, model, metric, strokes), _SUSPICIOUS if before else None
        panels.append(DiagnosticPanel(model, metric, f"{_ERROR}\n{state}", traces, limit))
    crossed, count = [], 0
    for run in board.runs:
        points = board.points(_BEFORE, run)
        if not len(points) or _is_stale(board, run):
            continue
        count += 1
        above = points[points["value"] > _SUSPICIOUS]
        if len(above):  # `CPPO on chain, seed 1 (3 steps, first 40, worst 1.0812)`
            first, worst = int(above["step"].min()), float(above["value"].max())
            crossed.append(
                f"{run.describe(display_name)} ({counted(len(above), 'step')}, first {first}, worst {worst:.4f})"
            )
    runs = counted(count, "run")
    verdict = f"It was never exceeded in the {runs} that logged it." if count else ""
    if crossed:
        more = f"; and {len(crossed) - _MOST_LISTED} more" if len(crossed) > _MOST_LISTED else ""
        verdict = f"It was exceeded in {len(crossed)} of {runs}: {'; '.join(crossed[:_MOST_LISTED])}{more}."
    view = {
        "verdict": f"The gap between the engines is suspicious where {_ERROR} before the first update of a step is "
        f"above {_SUSPICIOUS} (NeMo-RL's threshold). {verdict}",
        "suspicious": bool(crossed),
        "notes": [*_notes(board, cells)],
        "tables": tables.values(),
        "anchors": scored.anchors,
    }
    return Section(
        "mismatch",
        "Sampler against trainer",
        view,
        "",
        tables={f"mismatch_{kind}": table for kind, table in tables.items()},
        pictures=(Picture.of("mismatch", diagnostics_of(board, title, panels, strokes), draw_diagnostics),),
    )


def _values(board: Scoreboard, model: str, variant: str, metric: str) -> "pd.Series[float]":
    """The finite values of a metric over all runs of a cell and all their steps."""
    values = board.logged(model, variant, metric)["value"]
    return values[np.isfinite(values)]


def _notes(board: Scoreboard, cells: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Notes on these runs."""
    yield (
        "Before the first update: rollout log-probabilities against the trainer's, over the trained responses of the "
        "first minibatch. Over the updates: each minibatch at the weights of its update."
    )
    spent = []  # of budgets, before anything is trained
    for model, variant in cells:
        logged = (_values(board, model, variant, name) for name in (*_OF_RULE, _RATE))
        mean, high, rate = (float(values.median()) for values in logged)
        if rate > 0 and max(mean, high) >= _RELEVANT * rate:
            spent.append(
                f"{display_name(variant)} on {model}: its mean {mean:.2g} is {mean / rate:.0%} of delta_b "
                f"({rate:.2g}), its 90th percentile {high / rate:.0%}"
            )
    if spent:
        yield (
            "Before the first update, by noise between the engines or by staleness, D_t takes a good part of a budget "
            f"that is meant for training: {'; '.join(spent)}."
        )
    if older := sum(_is_stale(board, run) for run in board.runs):
        yield (
            f"In {older} of {len(board.runs)} runs rollout.staleness is above 0: mu is older than pi, so the gap "
            "before the first update includes that drift, and is not judged."
        )


def _is_stale(board: Scoreboard, run: RunScore) -> bool:
    """Whether its mu is older than pi."""
    return (integer(board.params_of(run).get("rollout.staleness", "0")) or 0) > 0


def _cell(metric: str, values: "pd.Series[float]") -> str:
    """`1.0012 (1.0100)`: the median and the worst step."""
    if not len(values):
        return "not logged"
    name = metric.rpartition("/")[2]
    worst = min(values) if name == "effective_sample_size" else max(values, key=abs)
    form = _FORMS.get(name, ".2g")
    return f"{float(values.median()):{form}} ({float(worst):{form}})"
