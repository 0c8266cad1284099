"""The section on the sampler-trainer mismatch: the gap between mu and pi before the updates of a step, and over
them.
"""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.figures.palette import PALETTES, keys_of
from cppo_lab.reports.figures.training import DiagnosticPanel, DiagnosticsInfo, draw, trace_of
from cppo_lab.reports.figures.validation import drawn_variants, left_out_note
from cppo_lab.reports.names import display_name, in_order, origin
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.reports.tables import TextTable, cell_row, core_of, run_ids_of

# NeMo-RL's own test runs fail above it: `max(data["train/token_mult_prob_error"]) < 1.05` in its tests/test_suites.
SUSPICIOUS = 1.05
ERROR = "token_mult_prob_error"
TRUNCATED = "train/truncated_share"
_MOST_LISTED = 20  # runs that are named individually
_COLUMNS: dict[str, str] = {
    ERROR: "mult. prob. error",
    "k1": "KL, k1",
    "k3": "KL, k3",
    "chi_square": "chi-square",
    "effective_sample_size": "ESS",
    "abs_log_ratio_p99": "|log rho| p99",
    "abs_log_ratio_max": "|log rho| max",
}
_STATES = {True: "before the first update", False: "over the updates"}
SHOWN = frozenset(
    [schema.mismatch_metric(name, before_update=before) for name in _COLUMNS for before in _STATES]
    + [
        schema.mismatch_metric(ERROR, third, before_update=before)
        for third in schema.THIRDS
        for before in _STATES
    ]
    + [TRUNCATED]
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
    parts = [board.logged(*pair, metric)["value"] for pair in pairs]
    found = pd.concat(parts) if parts else pd.Series(dtype=float)
    return found[np.isfinite(found)]


def _verdict(board: Scoreboard) -> tuple[str, bool]:
    """A sentence on which runs exceeded the threshold, and whether any did."""
    crossed, logged = [], 0
    for run in board.runs:
        rows = board.logged(run.model, run.variant, _BEFORE)
        own = rows[rows["mlflow_id"] == run.mlflow_id]
        logged += bool(len(own))
        above = own[own["value"] > SUSPICIOUS]
        if len(above):
            crossed.append(_crossing(run, above))
    rule = (
        f"The gap between the engines is suspicious where {ERROR} before the first update of a step is above "
        f"{SUSPICIOUS} (NeMo-RL's threshold)."
    )
    of = f"{logged} run" if logged == 1 else f"{logged} runs"
    if not crossed:
        return f"{rule} It was never exceeded in the {of} that logged it.", False
    more = f"; and {len(crossed) - _MOST_LISTED} more" if len(crossed) > _MOST_LISTED else ""
    return (
        f"{rule} It was exceeded in {len(crossed)} of {of}: {'; '.join(crossed[:_MOST_LISTED])}{more}.",
        True,
    )


def _crossing(run: RunScore, above: pd.DataFrame) -> str:
    """`CPPO on chain, seed 1 (3 steps, first 40, worst 1.0812)`."""
    seed = "" if run.seed is None else f", seed {run.seed}"
    steps = "1 step" if len(above) == 1 else f"{len(above)} steps"
    first, worst = int(above["step"].min()), float(above["value"].max())
    return f"{display_name(run.variant)} on {run.model}{seed} ({steps}, first {first}, worst {worst:.4f})"


def _notes(board: Scoreboard) -> tuple[str, ...]:
    """Notes on these runs."""
    notes = [
        "Before the first update: rollout log-probabilities against the trainer's at the same weights, over the "
        "trained responses of the first minibatch. Over the updates: each minibatch at the weights of its own update."
    ]
    older = [run for run in board.runs if run.mlflow_id and _staleness(board, run.mlflow_id) > 0]
    if older:
        notes.append(
            f"In {len(older)} of {len(board.runs)} runs rollout.staleness is above 0: mu is older than pi, so the gap "
            "before the first update includes that drift."
        )
    return tuple(notes)


def _staleness(board: Scoreboard, mlflow_id: str) -> int:
    text = board.data.params.get(mlflow_id, {}).get("rollout.staleness", "0")
    return int(text) if text.isdigit() else 0


def _tables(board: Scoreboard, title: str) -> dict[str, TextTable]:
    notes = (f"Source: {origin(core_of(board))}.", "Median over steps and runs (worst step in brackets).")
    found = {}
    for before, state in _STATES.items():
        metrics = {
            schema.mismatch_metric(name, before_update=before): text for name, text in _COLUMNS.items()
        }
        if not before:
            metrics[TRUNCATED] = "truncated"
        key = "before_update" if before else "updates"
        found[key] = _table(board, f"Sampler against trainer, {state} ({title})", metrics, notes)
    thirds = {
        schema.mismatch_metric(ERROR, third, before_update=before): f"{state}: {third}"
        for before, state in ((True, "before"), (False, "updates"))
        for third in schema.THIRDS
    }
    heading = f"{ERROR} by third of the response, before the first update and over the updates ({title})"
    found["thirds"] = _table(board, heading, thirds, notes)
    return found


def _table(board: Scoreboard, title: str, metrics: dict[str, str], notes: tuple[str, ...]) -> TextTable:
    rows = []
    for model in board.models:
        for variant in in_order(board.variants):
            found = {name: _values(board, [model], [variant], name) for name in metrics}
            if not any(map(len, found.values())):
                continue
            cells = tuple(_cell(name, values) for name, values in found.items())
            rows.append(cell_row(model, variant, cells, len(board.models) > 1))
    return TextTable(title, core_of(board), "method", tuple(metrics.values()), tuple(rows), notes)


def _cell(metric: str, values: "pd.Series[float]") -> str:
    """`1.0012 (1.0100)`: the median and the worst step."""
    if not len(values):
        return "not logged"
    name = metric.rpartition("/")[2]
    worst = min(values) if name == "effective_sample_size" else max(values, key=abs)
    show = _SHOW.get(name, "{:.2g}".format)
    return f"{show(float(values.median()))} ({show(float(worst))})"


_SHOW: dict[str, Callable[[float], str]] = {
    ERROR: "{:.4f}".format,
    "effective_sample_size": "{:.4f}".format,
    TRUNCATED.rpartition("/")[2]: "{:.1%}".format,
}


def _picture(board: Scoreboard, title: str, palette: str) -> Picture:
    """The curves of each model: the error before the first update, and over the updates."""
    strokes = PALETTES[palette].strokes(drawn_variants(board))
    panels = []
    for model in board.models:
        for before, state in _STATES.items():
            metric = schema.mismatch_metric(ERROR, before_update=before)
            traces = [trace_of(board, (model, name), metric, stroke) for name, stroke in strokes.items()]
            shown = tuple(trace for trace in traces if trace is not None)
            panels.append(
                DiagnosticPanel(model, metric, f"{ERROR}\n{state}", shown, SUSPICIOUS if before else None)
            )
    info = DiagnosticsInfo(
        title=title,
        source=origin(core_of(board)) + left_out_note(board),
        panels=tuple(panels),
        keys=keys_of(strokes, strokes),
        run_ids=run_ids_of(board.runs),
    )
    return Picture("figure_mismatch", "", title, "", info, draw)
