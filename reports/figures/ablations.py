"""Figures 5 and 6: three ablations side by side, each from a separate sweep with its own variants."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.study import MAIN, OURS, StudyResults
from cppo_lab.reports.figures import curves
from cppo_lab.reports.figures.frame import above, as_they_are, handle_length, handles_and_labels, surround
from cppo_lab.reports.figures.palette import PAPER, Key
from cppo_lab.reports.figures.picture import Absent
from cppo_lab.reports.names import origin
from cppo_lab.reports.tables import core_of

# The paper's two rows of panels: (sweep, heading).
MECHANISMS = (
    ("single_mechanism", "Single mechanism"),
    ("position_weight_ordering", "Position-weight ordering"),
    ("mask_vs_soft", "Mask or soft gate"),
)
SETTINGS = (
    ("sensitivity", "Sensitivity to δ_b and w_min"),
    ("kl_vs_tv", "KL or TV"),
    ("binary_vs_topk", "Binary or Top-K"),
)


@dataclass(frozen=True)
class AblationPanel:
    """One sweep. If `panel` is None it cannot be drawn, and `absent` says why. `keys`: labels with scores."""

    sweep: str
    heading: str
    panel: curves.Panel | None
    absent: str
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class AblationsInfo:
    """Everything the figure shows."""

    title: str
    source: str
    y_label: str
    panels: tuple[AblationPanel, ...]
    run_ids: tuple[str, ...]


def ablations_info(
    study: StudyResults, title: str, sweeps: Sequence[tuple[str, str]], palette: str = PAPER
) -> AblationsInfo | Absent:
    """One panel for each of `sweeps` (name, heading), on the first model of the sweep."""
    run_ids: set[str] = set()
    panels, y_label, sources = [], "", []
    for name, heading in sweeps:
        board = study.board(name)
        if board is None:
            panels.append(AblationPanel(name, heading, None, study.why_absent(name), ()))
            continue
        info = curves.curves_info(board, heading, board.models[:1], full_method(study, board), palette)
        panel = info.panels[0]
        panels.append(AblationPanel(name, heading, panel, "", curves.scored_keys(board, panel)))
        run_ids.update(info.run_ids)
        sources.append(origin(core_of(board)))
        y_label = info.y_label
    if not sources:
        return Absent("; ".join(dict.fromkeys(panel.absent for panel in panels)))
    source = "; ".join(dict.fromkeys(sources))
    return AblationsInfo(title, source, y_label, tuple(panels), tuple(sorted(run_ids)))


def full_method(study: StudyResults, board: Scoreboard) -> dict[str, str]:
    """The variants of an ablation, under any name, whose runs are those of the main sweep's CPPO."""
    main = study.board(MAIN)
    if main is None:
        return {}
    ours = {run.mlflow_id for run in main.runs if run.variant == OURS and run.mlflow_id}
    own: dict[str, set[str]] = {}
    for run in board.runs:
        if run.mlflow_id:
            own.setdefault(run.variant, set()).add(run.mlflow_id)
    return {variant: OURS for variant, ids in own.items() if ids <= ours}


def draw_ablation(entry: AblationPanel, ax: Axes, y_label: str) -> None:
    """The curves of one sweep with its legend below."""
    if entry.panel is None:
        ax.set_title(entry.heading, loc="left")
        ax.set_axis_off()
        ax.text(0.5, 0.5, "no results yet", ha="center", va="center", color="#777777")
        return
    curves.draw_panel(entry.panel, ax, y_label)
    ax.set_title(f"{entry.heading}\n", loc="left")
    ax.text(0, 1.02, entry.panel.model, transform=ax.transAxes, fontsize=8, color="#555555", parse_math=False)
    legend = ax.legend(
        *handles_and_labels(entry.keys),
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.17),
        fontsize=8,
        borderpad=0,
        handlelength=handle_length(entry.keys),
    )
    as_they_are(legend)


def draw(info: AblationsInfo, fig: Figure, headed: bool = True) -> None:
    """The panels in a row."""
    bands = [line.band for entry in info.panels if entry.panel for line in entry.panel.lines]
    longest = max(len(panel.keys) for panel in info.panels)
    surround(fig, (11.4, 3.4 + 0.17 * longest), above(info.title, info.source, bands) if headed else (), ())
    axes = fig.subplots(1, len(info.panels), squeeze=False)[0]
    for index, (ax, panel) in enumerate(zip(axes, info.panels, strict=True)):
        draw_ablation(panel, ax, info.y_label if index == 0 else "")
