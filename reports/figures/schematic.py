"""Figure 1: what each masking rule does to one synthetic response (left), and the curves of the largest model with
the best score of every method (right).
"""

import json
from dataclasses import dataclass, field
from importlib import resources

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.reports.figures import validation
from cppo_lab.reports.figures.data import APPEARANCE, Info
from cppo_lab.reports.figures.drawing import key_legend, say, sized, surround
from cppo_lab.reports.figures.palette import PALETTES, PAPER, Key, Palette
from cppo_lab.reports.names import display_name

MEASURES = {
    "grpo": "ratio ρ",
    "dppo": "TV D",
    "trm_max": "KL D",
    "cppo": "w D",
}
SAYS = {
    "grpo": "clips the ratio, whatever the divergence",
    "dppo": "one threshold for every token",
    "trm_max": "one token over the limit drops the response",
    "cppo": "weighted, and the prefix has a budget",
}
LEGEND = (
    ("kept, moves away from μ", "away"),
    ("kept, moves toward μ", "toward"),
    ("masked by its threshold", "token"),
    ("masked by the prefix budget", "prefix"),
    ("masked with its response", "response"),
)


@dataclass(frozen=True)
class RulePanel:
    """One rule on the synthetic response: for each token its value, the limit, and the kind of bar (a key of
    `Palette.reasons`).
    """

    rule: str
    heading: str
    measure: str
    values: tuple[float, ...]
    limit: tuple[float, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class SchematicInfo(Info):
    """Everything the figure shows. If `panel` is None there are no curves, and `absent` says why. `scores` is the
    legend of the curves: labels with best scores.
    """

    y_label: str
    rules: tuple[RulePanel, ...]
    panel: validation.Panel | None
    absent: str
    scores: tuple[Key, ...]
    palette: str = field(metadata=APPEARANCE)


def rule_panels() -> tuple[RulePanel, ...]:
    """The panels of the left half, computed by the rules (`tests/reports/test_schematic.py`)."""
    path = resources.files("cppo_lab.reports").joinpath("schematic", "masking_rules.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    panels = []
    for entry in data["rules"]:
        kinds = [
            reason or ("away" if away else "toward")
            for reason, away in zip(entry["masked_by"], data["moves_away"], strict=True)
        ]
        rule = entry["rule"]
        heading = f"{display_name(rule)}: {SAYS[rule]}"
        values, limit = tuple(entry["values"]), tuple(entry["limit"])
        panels.append(RulePanel(rule, heading, MEASURES[rule], values, limit, tuple(kinds)))
    return tuple(panels)


def schematic_info(
    board: Scoreboard | None, model: str | None, title: str, absent: str, palette: str = PAPER
) -> SchematicInfo:
    """The figure with the curves of `model`; `absent` says why there is no board or no such model."""
    rules = rule_panels()
    if board is None or model is None:
        source = "the rules on a made-up response"
        return SchematicInfo(title, source, (), "", rules, None, absent, (), palette)
    info = validation.curves_info(board, title, [model], palette=palette)
    keys = validation.scored_keys(board, info.panels[0])
    return SchematicInfo(
        title, info.source, info.run_ids, info.y_label, rules, info.panels[0], "", keys, palette
    )


def draw_rule(panel: RulePanel, ax: Axes, palette: Palette) -> None:
    """Draw one rule: a bar per token, coloured by the token's fate, and the limit as a line."""
    places = range(1, len(panel.values) + 1)
    base = 1.0 if panel.rule == "grpo" else 0.0
    top = max(*panel.values, *panel.limit) * 1.12
    if panel.rule == "grpo":
        top = 2.0  # the rarest token triples; its bar is cut, so that the others remain visible
    ax.bar(
        places,
        [value - base for value in panel.values],
        bottom=base,
        width=0.72,
        color=[palette.reasons[kind] for kind in panel.kinds],
        hatch=[palette.hatches.get(kind, "") for kind in panel.kinds],
        zorder=2,
    )
    for place, value in zip(places, panel.values, strict=True):
        if value > top:
            ax.annotate(f"{value:g}", (place + 0.42, top), va="top", fontsize=sized(7), color="#555555")
    ax.stairs(
        panel.limit, [0.5, *(place + 0.5 for place in places)], baseline=None, color="#222222", zorder=3
    )
    ax.axhline(base, color="#555555", linewidth=0.8, zorder=3)
    bottom = min(*panel.values, *panel.limit, base)
    ax.set_ylim(bottom - 0.04 * (top - bottom) if bottom < base else base, top)
    ax.set_xlim(0.4, len(panel.values) + 0.6)
    ax.set_title(panel.heading, loc="left", fontsize=sized(9), pad=3)
    ax.set_ylabel(panel.measure, fontsize=sized(8))
    ax.tick_params(labelsize=7)
    ax.grid(False)


def draw(info: SchematicInfo, fig: Figure) -> None:
    """The rules on the left, one under the other; the curves on the right."""
    surround(fig, (11.4, 5.4), (info.title, info.source), ())
    palette = PALETTES[info.palette]
    left, right = fig.subfigures(1, 2, squeeze=False, width_ratios=(1.0, 1.1))[0]
    axes = left.subplots(len(info.rules), 1, sharex=True)
    for ax, rule in zip(axes, info.rules, strict=True):
        draw_rule(rule, ax, palette)
    left.align_ylabels(axes)
    axes[-1].xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes[-1].set_xlabel("token of a made-up response, advantage > 0", fontsize=sized(8))
    handles = [palette.bar(kind, label) for label, kind in LEGEND]
    limit = Line2D([], [], color="#222222", label="limit")
    left.legend(handles=[*handles, limit], loc="outside lower center", ncols=2, fontsize=sized(8))
    ax = right.subplots()
    if info.panel is None:
        say(ax, info.absent, wrap=True)
        return
    validation.draw_panel(info.panel, ax, info.y_label)
    key_legend(right, info.scores, loc="outside lower center", ncols=3, fontsize=sized(8))
