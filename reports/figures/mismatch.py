"""The curves of the section on the sampler-trainer mismatch."""

from matplotlib.figure import Figure

from cppo_lab.reports.figures.diagnostics import DiagnosticPanel, draw_panel

_COLOUR = "#8a1c1c"


def draw_mismatch(panel: DiagnosticPanel, threshold: float | None, fig: Figure) -> None:
    """Draw the curves of an error whose ideal value is 1, and the threshold (if there is one) if they come near it."""
    ax = fig.subplots()
    draw_panel(panel, ax, "")
    if threshold is not None and max(max(trace.high) for trace in panel.traces) > (1 + threshold) / 2:
        ax.axhline(threshold, color=_COLOUR, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        place = (1, threshold)
        ax.annotate(
            f"{threshold}", place, xycoords=("axes fraction", "data"), color=_COLOUR, ha="right", va="bottom",
            fontsize="small",
        )  # fmt: skip
