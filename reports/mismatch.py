"""The section on the sampler-trainer mismatch: the gap between mu and pi before the updates of a step, and over
them.
"""

from collections.abc import Iterable
from itertools import product

import numpy as np
import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.errors import counted
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.figures.palette import PALETTES
from cppo_lab.reports.figures.training import DiagnosticPanel, diagnostics_of, draw, traces_of
from cppo_lab.reports.figures.validation import drawn_variants
from cppo_lab.reports.names import display_name, in_order
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.reports.tables import TextTable, cell_row, completed

# NeMo-RL's test runs fail above it: `max(data["train/token_mult_prob_error"]) < 1.05` in its tests/test_suites.
SUSPICIOUS = 1.05
ERROR = "token_mult_prob_error"
TRUNCATED = "train/truncated_share"
_MOST_LISTED = 20  # runs that are named individually
RELEVANT = 0.1  # of delta_b
_COLUMNS: dict[str, str] = {
    ERROR: "mult. prob. error",
    "k1": "KL, k1",
    "k3": "KL, k3",
    "chi_square": "chi-square",
    "effective_sample_size": "ESS",
    "abs_log_ratio_p99": "|log rho| p99",
    "abs_log_ratio_max": "|log rho| max",
}
_OF_RULE = {schema.DIVERGENCE_BEFORE: "D_t mean", schema.DIVERGENCE_BEFORE_P90: "D_t p90"}
_RATE = "rule/delta_b_mean"
_STATES = {True: "before the first update", False: "over the updates"}
SHOWN = frozenset(
    [schema.mismatch_metric(name, before_update=before) for name in _COLUMNS for before in _STATES]
    + [
        schema.mismatch_metric(ERROR, third, before_update=before)
        for third in schema.THIRDS
        for before in _STATES
    ]
    + [TRUNCATED, _RATE, *_OF_RULE]
)
_BEFORE = schema.mismatch_metric(ERROR, before_update=True)


def mismatch_section(scored: Scored) -> Section | None:
    """The section; None if no run has logged the gap between its engines (runs of older versions have not)."""
    board, title = scored.board, scored.title
    if not len(_values(board, board.models, board.variants, _BEFORE)):
        return None
    verdict, suspicious = _verdict(board)
    tables = _tables(board, title)
    view = {"verdict": verdict, "suspicious": suspicious, "notes": _notes(board), "tables": tables.values()}
    return Section(
        "mismatch",
        "Sampler against trainer",
        view | {"anchors": scored.anchors},
        "",
        tables={f"mismatch_{kind}": table for kind, table in tables.items()},
        pictures=(_picture(board, f"Sampler against trainer ({title})", scored.palette),),
    )


def _values(
    board: Scoreboard, models: Iterable[str], variants: Iterable[str], metric: str
) -> "pd.Series[float]":
    """The finite values of a metric over all runs of these cells and all their steps."""
    pairs = [(model, name) for model in models for name in variants]
    values = pd.concat([board.logged(*pair, metric)["value"] for pair in pairs])
    return values[np.isfinite(values)]


def _verdict(board: Scoreboard) -> tuple[str, bool]:
    """A sentence on which runs exceeded the threshold, and whether any did."""
    crossed, logged = [], 0
    for run in board.runs:
        rows = board.points_of(run, _BEFORE)
        logged += bool(len(rows))
        above = rows[rows["value"] > SUSPICIOUS]
        if len(above):  # `CPPO on chain, seed 1 (3 steps, first 40, worst 1.0812)`
            seed = "" if run.seed is None else f", seed {run.seed}"
            first, worst = int(above["step"].min()), float(above["value"].max())
            name = f"{display_name(run.variant)} on {run.model}{seed}"
            crossed.append(f"{name} ({counted(len(above), 'step')}, first {first}, worst {worst:.4f})")
    said = (
        f"The gap between the engines is suspicious where {ERROR} before the first update of a step is above "
        f"{SUSPICIOUS} (NeMo-RL's threshold)."
    )
    runs = counted(logged, "run")
    if not crossed:
        return f"{said} It was never exceeded in the {runs} that logged it.", False
    more = f"; and {len(crossed) - _MOST_LISTED} more" if len(crossed) > _MOST_LISTED else ""
    listed = "; ".join(crossed[:_MOST_LISTED])
    return f"{said} It was exceeded in {len(crossed)} of {runs}: {listed}{more}.", True


def _notes(board: Scoreboard) -> tuple[str, ...]:
    """Notes on these runs."""
    params = (board.data.params.get(run.mlflow_id or "", {}) for run in board.runs)
    staleness = [of_run.get("rollout.staleness", "0") for of_run in params]
    older = sum(text.isdigit() and int(text) > 0 for text in staleness)
    spent = []  # of budgets, before anything is trained
    for model, variant in product(board.models, in_order(board.variants)):
        mean, high, rate = (
            float(_values(board, [model], [variant], name).median()) for name in (*_OF_RULE, _RATE)
        )
        if rate > 0 and max(mean, high) >= RELEVANT * rate:
            spent.append(
                f"{display_name(variant)} on {model}: its mean {mean:.2g} is {mean / rate:.0%} of delta_b "
                f"({rate:.2g}), its 90th percentile {high / rate:.0%}"
            )
    notes = {
        "Before the first update: rollout log-probabilities against the trainer's at the same weights, over the "
        "trained responses of the first minibatch. Over the updates: each minibatch at the weights of its update."
        "": 1,
        "Before the first update, by noise between the engines or by staleness, D_t takes a good part of a budget "
        f"that is meant for training: {'; '.join(spent)}.": len(spent),
        f"In {older} of {len(board.runs)} runs rollout.staleness is above 0: mu is older than pi, so the gap "
        "before the first update includes that drift.": older,
    }
    return tuple(note for note, runs in notes.items() if runs)


def _tables(board: Scoreboard, title: str) -> dict[str, TextTable]:
    columns: dict[str, tuple[str, dict[str, str]]] = {}
    for before, state in _STATES.items():
        metrics = {
            schema.mismatch_metric(name, before_update=before): text for name, text in _COLUMNS.items()
        }
        metrics |= _OF_RULE if before else {TRUNCATED: "truncated"}
        columns["before_update" if before else "updates"] = (f"Sampler against trainer, {state}", metrics)
    thirds = {
        schema.mismatch_metric(ERROR, third, before_update=before): f"{state}: {third}"
        for before, state in ((True, "before"), (False, "updates"))
        for third in schema.THIRDS
    }
    heading = f"{ERROR} by third of the response, before the first update and over the updates"
    columns["thirds"] = (heading, thirds)
    notes, tables = ("Median over steps and runs (worst step in brackets).",), {}
    for kind, (heading, metrics) in columns.items():
        rows = []
        for model, variant in product(board.models, in_order(board.variants)):
            values = {name: _values(board, [model], [variant], name) for name in metrics}
            if any(map(len, values.values())):
                rows.append(cell_row(model, variant, (_cell(*logged) for logged in values.items())))
        table = TextTable(heading, "method", tuple(metrics.values()), rows, notes)
        tables[kind] = completed(table, board, title)
    return tables


def _cell(metric: str, values: "pd.Series[float]") -> str:
    """`1.0012 (1.0100)`: the median and the worst step."""
    if not len(values):
        return "not logged"
    name = metric.rpartition("/")[2]
    worst = min(values) if name == "effective_sample_size" else max(values, key=abs)
    form = _FORMS.get(name, ".2g")
    return f"{float(values.median()):{form}} ({float(worst):{form}})"


_FORMS = {ERROR: ".4f", "effective_sample_size": ".4f", TRUNCATED.rpartition("/")[2]: ".1%"}


def _picture(board: Scoreboard, title: str, palette: str) -> Picture:
    """The curves of each model: the error before the first update, and over the updates."""
    strokes = PALETTES[palette].strokes(drawn_variants(board))
    panels = []
    for model, (before, state) in product(board.models, _STATES.items()):
        metric = schema.mismatch_metric(ERROR, before_update=before)
        traces, limit = traces_of(board, model, metric, strokes), SUSPICIOUS if before else None
        panels.append(DiagnosticPanel(model, metric, f"{ERROR}\n{state}", traces, limit))
    return Picture("figure_mismatch", "", title, "", diagnostics_of(board, title, panels, strokes), draw)
