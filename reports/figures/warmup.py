"""Figure 7: CPPO's prefix budget over training on the Base models: its effective rate and what it rejects."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.study import OURS
from cppo_lab.reports.figures.diagnostics import DiagnosticPanel, draw_panel, trace_of
from cppo_lab.reports.figures.frame import surround
from cppo_lab.reports.figures.picture import Absent
from cppo_lab.reports.figures.style import COLOURS
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.tables import core_of

METRICS = (
    ("rule/delta_b_mean", "effective δ_b"),
    ("rule/prefix_budget_share", "prefix-budget share"),
)


@dataclass(frozen=True)
class WarmupInfo:
    """Everything the figure shows: a row of `panels` per metric, a column per model."""

    title: str
    source: str
    models: tuple[str, ...]
    panels: tuple[DiagnosticPanel, ...]
    run_ids: tuple[str, ...]


def warmup_info(board: Scoreboard, models: tuple[str, ...], title: str) -> WarmupInfo | Absent:
    """The runs of CPPO on `models`."""
    panels = []
    for metric, label in METRICS:
        for model in models:
            trace = trace_of(board, board.data.metrics, (model, OURS), metric, COLOURS[OURS])
            panels.append(DiagnosticPanel(model, metric, label, () if trace is None else (trace,)))
    if not any(panel.traces for panel in panels):
        names = " and ".join(metric for metric, _ in METRICS)
        return Absent(f"no run of {display_name(OURS)} on {', '.join(models) or 'any model'} logged {names}")
    shown = [run for run in board.runs if run.model in models and run.variant == OURS]
    return WarmupInfo(
        title=title,
        source=origin(core_of(board)),
        models=models,
        panels=tuple(panels),
        run_ids=tuple(sorted(run.run_id for run in shown if run.run_id is not None)),
    )


def draw(info: WarmupInfo, fig: Figure, headed: bool = True) -> None:
    """Metrics as rows, models as columns."""
    rows, columns = len(METRICS), len(info.models)
    size = (max(3.6 * columns, 5.4), 2.4 * rows)
    surround(fig, size, (info.title, info.source) if headed else (), ())
    axes = fig.subplots(rows, columns, squeeze=False, sharex="col")
    for index, (ax, panel) in enumerate(zip(axes.flat, info.panels, strict=True)):
        row, column = divmod(index, columns)
        draw_panel(panel, ax, panel.model if row == 0 else "")
        ax.set_ylabel(panel.label if column == 0 else "")
        ax.set_xlabel("training step" if row == rows - 1 else "")
        if panel.traces:
            ax.set_ylim(bottom=0)
