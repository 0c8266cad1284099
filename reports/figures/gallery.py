"""The paper's Figures 1 to 11 from a study, each of them drawn or with the reason why it cannot be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import GAPS
from cppo_lab.analysis.statistics.estimate import FEWEST
from cppo_lab.analysis.study import MAIN, OURS, ROLES, StudyResults
from cppo_lab.reports.figures import model_curves, schematic, tokens, training, validation
from cppo_lab.reports.figures.data import Info
from cppo_lab.reports.figures.drawing import Absent, Picture, above, key_legend, panel_grid, say, sized
from cppo_lab.reports.figures.palette import PAPER, Key

# The paper's two rows of panels: (sweep, heading).
MECHANISMS = (
    ("single_mechanism", "Single mechanism"),
    ("position_weight_ordering", "Position-weight ordering"),
    ("mask_vs_soft", "Mask or soft gate"),
)
_GREY = "#555555"
SETTINGS = (
    ("sensitivity", "Sensitivity to δ_b and w_min"),
    ("kl_vs_tv", "KL or TV"),
    ("binary_vs_topk", "Binary or Top-K"),
)


def gallery(study: StudyResults, palette: str = PAPER) -> tuple[Picture, ...]:
    """All eleven figures in order, in the colours of `palette` (one of PALETTES)."""
    board, seeds = study.board(MAIN), _seeds(study)
    roles = [_role(study, index) for index in range(ROLES)]
    base_models = tuple(role for role in roles[1:] if isinstance(role, str))
    missing = [role.reason for role in roles[1:] if isinstance(role, Absent)]
    left_out = f" Not shown: {'; '.join(missing)}." if base_models and missing else ""
    pictures: list[Picture] = []

    def add(
        title: str, caption: str, make: Callable[[str], Any], draw: Callable[[Any, Figure], None]
    ) -> None:
        number = len(pictures) + 1
        label = f"Figure {number}"
        pictures.append(Picture(f"figure_{number}", label, title, caption, make(f"{label}. {title}"), draw))

    def of_base_models(make: Callable[[Scoreboard, tuple[str, ...]], Any]) -> Any:
        return Absent(missing[0]) if board is None or not base_models else make(board, base_models)

    largest = roles[-1]
    absent = largest.reason if isinstance(largest, Absent) else ""
    right = f"not drawn, {absent}." if absent else f"{largest}, with the best score of every method.{seeds}"
    add(
        "Masking rules and the largest model",
        "Left: one made-up response, masked by the rules themselves; a bar is what the rule compares with its limit "
        "(ratio, divergence, or weighted divergence). Differs from the paper's schematic, which has PPO, DPPO and "
        f"CPPO: shown are GRPO (PPO with Clip-Higher), DPPO, TRM-Max and CPPO. Right: {right}",
        lambda head: schematic.schematic_info(
            board, None if isinstance(largest, Absent) else largest, head, absent, palette
        ),
        schematic.draw,
    )
    add(
        "Gap between the policies by token position",
        "Left: mean over tokens, and mean over the largest tenth. Right: the threshold δ/w that position weights "
        "w put on the divergence, for a response of the maximum length. Differs from the paper's figure: shown are "
        "the runs of CPPO and DPPO at validated steps; the paper shows the drift after 200 updates of GRPO, as the "
        f"maximum in each bin of positions.{seeds}",
        lambda head: tokens.gaps_info(study, head, palette),
        tokens.draw_both,
    )
    add(
        "The prefix constraint on some tokens of one response",
        "What each token spends (bars, w D) and the lower of two limits: the token threshold, and what the prefix "
        "leaves over. A token that moves toward μ is always kept.",
        lambda head: tokens.window_info(study, head, palette),
        tokens.draw_tokens,
    )
    add(
        "Validation curves of the Base models",
        "Mean over the benchmarks inside the matched window. A dot marks the step selected for each run, the star "
        f"the best score of the table; a cross ends a run that collapsed.{seeds}{left_out}",
        lambda head: of_base_models(
            lambda board, models: validation.curves_info(board, head, models, palette=palette)
        ),
        partial(validation.draw, in_row=ROLES - 1),
    )
    for title, sweeps in (
        ("Ablations of the mechanisms", MECHANISMS),
        ("Ablations of the settings", SETTINGS),
    ):
        unseen = [
            f"{heading}: {study.why_absent(name)}" for name, heading in sweeps if study.board(name) is None
        ]
        add(
            title,
            "Mean over the benchmarks. Next to each variant is its score, at the step selected for each run "
            f"(dots).{seeds}" + (f" Not shown: {'; '.join(unseen)}." if unseen else ""),
            partial(ablations_info, study, sweeps=sweeps, palette=palette),
            draw_ablations,
        )
    add(
        "The prefix budget of CPPO during training",
        "Effective budget rate δ_b, averaged over responses (top; its axis does not begin at 0), and the part of the "
        "masked tokens that the prefix budget alone rejected (bottom; a dot for each step that masked any)."
        f"{seeds}{left_out}",
        lambda head: of_base_models(lambda board, models: training.warmup_info(board, models, head, palette)),
        training.draw_budget,
    )
    for index, role in enumerate(roles):
        name = study.models[index] if index < len(study.models) else f"model {index + 1}"
        add(
            f"All curves of {name}",
            "Benchmarks on top; below, reward, response length and relative log-prob error of each step (thin) with "
            "their moving averages (thick; for the reward the logged one, if there is one)."
            + (
                f"{seeds} After a run has ended, the training curves are those of the remaining runs."
                if seeds
                else ""
            ),
            partial(_model_info, board, role, palette),
            model_curves.draw,
        )
    return tuple(pictures)


def _model_info(board: Scoreboard | None, role: str | Absent, palette: str, title: str) -> Any:
    if isinstance(role, Absent):
        return role
    return Absent("no runs") if board is None else model_curves.model_info(board, role, title, palette)


def _seeds(study: StudyResults) -> str:
    """An explanation of the bands, if cells have several seeds."""
    counts = {
        sum(run.state not in GAPS for run in board.runs_of(*pair))
        for board in study.boards.values()
        for pair in board.cells
    }
    if max(counts, default=1) < 2:
        return ""
    interval = "are the pointwise 95 % interval of the mean (Student's t)"
    kinds = [interval] * (max(counts) >= FEWEST) + ["of two seeds reach from one to the other"] * (
        2 in counts
    )
    return f" Lines are means over seeds; bands {', '.join(kinds)}."


def _role(study: StudyResults, index: int) -> str | Absent:
    """The model of role `index` (0: post-trained, then the Base models by size), if it has runs."""
    board = study.board(MAIN)
    if board is None:
        return Absent(study.why_absent(MAIN))
    if index >= len(study.models):
        return Absent(
            f"the study has {len(study.models)} models; this figure shows the paper's model {index + 1} of {ROLES}"
        )
    model = study.models[index]
    if not any(run.mlflow_id for run in board.runs if run.model == model):
        return Absent(f"no run on {model} yet")
    return model


@dataclass(frozen=True)
class AblationPanel:
    """One sweep. If `panel` is None it cannot be drawn, and `absent` says why. `keys`: labels with scores."""

    sweep: str
    heading: str
    panel: validation.Panel | None
    absent: str
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class AblationsInfo(Info):
    """Everything the figure shows."""

    y_label: str
    panels: tuple[AblationPanel, ...]


def ablations_info(
    study: StudyResults, title: str, sweeps: Sequence[tuple[str, str]], palette: str = PAPER
) -> AblationsInfo | Absent:
    """One panel for each of `sweeps` (name, heading), on the first model of the sweep."""
    panels, infos = [], []
    for name, heading in sweeps:
        board = study.board(name)
        if board is None:
            panels.append(AblationPanel(name, heading, None, study.why_absent(name), ()))
            continue
        info = validation.curves_info(board, heading, board.models[:1], full_method(study, board), palette)
        keys = validation.scored_keys(board, info.panels[0])
        panels.append(AblationPanel(name, heading, info.panels[0], "", keys))
        infos.append(info)
    if not infos:
        return Absent("; ".join(dict.fromkeys(panel.absent for panel in panels)))
    source = "; ".join(dict.fromkeys(info.source for info in infos))
    run_ids = tuple(sorted({run_id for info in infos for run_id in info.run_ids}))
    return AblationsInfo(title, source, run_ids, infos[-1].y_label, tuple(panels))


def full_method(study: StudyResults, board: Scoreboard) -> dict[str, str]:
    """The variants of an ablation, under any name, whose runs are those of the main sweep's CPPO."""
    main = study.board(MAIN)
    ours = {run.mlflow_id for run in main.runs if run.variant == OURS} if main else set()
    runs = {
        name: [run for run in board.runs if run.variant == name and run.mlflow_id] for name in board.variants
    }
    return {
        name: OURS
        for name, of_variant in runs.items()
        if of_variant and {run.mlflow_id for run in of_variant} <= ours
    }


def draw_ablation(entry: AblationPanel, ax: Axes, y_label: str) -> None:
    """The curves of one sweep with its legend below."""
    if entry.panel is None:
        ax.set_title(entry.heading, loc="left")
        say(ax, "no results yet")
        return
    validation.draw_panel(entry.panel, ax, y_label)
    ax.set_title(f"{entry.heading}\n", loc="left")
    ax.text(
        0, 1.02, entry.panel.model, transform=ax.transAxes, fontsize=sized(8), color=_GREY, parse_math=False
    )
    place = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.17), "borderpad": 0}
    key_legend(ax, entry.keys, fontsize=sized(8), **place)


def draw_ablations(info: AblationsInfo, fig: Figure) -> None:
    """The panels in a row."""
    bands = [line.band for entry in info.panels if entry.panel for line in entry.panel.lines]
    count, longest = len(info.panels), max(len(panel.keys) for panel in info.panels)
    size, texts = (11.4 / count, 3.4 + 0.17 * longest), above(info.title, info.source, bands)
    axes = panel_grid(fig, count, count, size, texts)
    for index, (ax, panel) in enumerate(zip(axes, info.panels, strict=True)):
        draw_ablation(panel, ax, info.y_label if index == 0 else "")
