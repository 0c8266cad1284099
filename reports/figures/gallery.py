"""The paper's Figures 1 to 11 from a study, each of them drawn or with the reason why it cannot be; and those of
ablations (5 and 6) and of single models (8 to 11).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import FEWEST_RUNS, band
from cppo_lab.analysis.study import MAIN, OURS, ROLES, StudyResults
from cppo_lab.reports.figures import tokens, training, validation
from cppo_lab.reports.figures.drawing import (
    APPEARANCE,
    Absent,
    Info,
    Key,
    Picture,
    fill,
    head_texts,
    key_legend,
    keys_of,
    panel_grid,
    say,
    sized,
    step_axis,
    surround,
)
from cppo_lab.reports.figures.palette import PALETTES, PAPER
from cppo_lab.reports.names import benchmark_name, display_name, in_order, origin, score_name
from cppo_lab.reports.tables import run_ids_of
from cppo_lab.rules import Stroke

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
_GREY = "#555555"


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
        lambda head: tokens.schematic_info(
            board, None if isinstance(largest, Absent) else largest, head, absent, palette
        ),
        tokens.draw_schematic,
    )
    add(
        "Gap between the policies by token position",
        "Left: mean over tokens, and mean over the largest tenth. Right: the threshold δ/w that position weights "
        "w put on the divergence, for a response of the maximum length. Differs from the paper's figure: shown are "
        "the runs of CPPO and DPPO at validated steps; the paper shows the drift after 200 updates of GRPO, as the "
        f"maximum in each bin of positions.{seeds}",
        lambda head: tokens.gaps_info(study, head, palette),
        tokens.draw_gaps,
    )
    add(
        "The prefix constraint on some tokens of one response",
        "What each token spends (bars, w D) and the lower of two limits: the token threshold, and what the prefix "
        "leaves over. A token that moves toward μ is always kept.",
        lambda head: tokens.window_info(study, head, palette),
        tokens.draw_window,
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
        training.draw_warmup,
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
            draw_model,
        )
    return tuple(pictures)


def _model_info(board: Scoreboard | None, role: str | Absent, palette: str, title: str) -> Any:
    if isinstance(role, Absent):
        return role
    return Absent("no runs") if board is None else model_info(board, role, title, palette)


def _seeds(study: StudyResults) -> str:
    """An explanation of the bands, if cells have several seeds."""
    counts = {
        sum(run.is_result for run in board.runs_of(*pair))
        for board in study.boards.values()
        for pair in board.cells
    }
    if max(counts, default=1) < 2:
        return ""
    interval = "are the pointwise 95 % interval of the mean (Student's t)"
    kinds = [interval] * (max(counts) >= FEWEST_RUNS) + ["of two seeds reach from one to the other"] * (
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


# Figures 5 and 6, of ablations.


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
        info = validation.curves_info(board, heading, board.models[:1], _full_method(study, board), palette)
        keys = validation.scored_keys(board, info.panels[0])
        panels.append(AblationPanel(name, heading, info.panels[0], "", keys))
        infos.append(info)
    if not infos:
        return Absent("; ".join(dict.fromkeys(panel.absent for panel in panels)))
    source = "; ".join(dict.fromkeys(info.source for info in infos))
    run_ids = tuple(sorted({run_id for info in infos for run_id in info.run_ids}))
    return AblationsInfo(title, source, run_ids, infos[-1].y_label, tuple(panels))


def _full_method(study: StudyResults, board: Scoreboard) -> dict[str, str]:
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


def _draw_ablation(entry: AblationPanel, ax: Axes, y_label: str) -> None:
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
    size, texts = (11.4 / count, 3.4 + 0.17 * longest), head_texts(info, bands)
    axes = panel_grid(fig, count, count, size, texts)
    for index, (ax, panel) in enumerate(zip(axes, info.panels, strict=True)):
        _draw_ablation(panel, ax, info.y_label if index == 0 else "")


# Figures 8 to 11, one per model: the benchmarks one by one on top; reward, response length and relative log-prob error
# below.

_REWARD = "train/reward"
_SMOOTHED = "train/reward_smoothed"  # logged by the paper; our runs are smoothed here
_LENGTH = "train/response_length"
_ERROR = "train/relative_logprob_error"
_SMOOTHING = 0.05  # width of the moving average as a share of the steps
_KILO = 1000.0
_FEW_POINTS = 150  # above which a line gets a moving average
_POINTS = 2000  # per line of response length and error at most: every step of the paper's runs


@dataclass(frozen=True)
class BenchmarkPanel:
    """One benchmark: its lines in percent."""

    benchmark: str
    heading: str
    lines: tuple[validation.Line, ...]


@dataclass(frozen=True)
class RewardLine:
    """One variant: the reward of each step, and its moving average with its band (`band` is the kind, see
    `estimate.band`); both are means over the runs that logged the step.
    """

    variant: str
    label: str
    stroke: Stroke = field(metadata=APPEARANCE)
    steps: tuple[int, ...]
    raw: tuple[float, ...]
    smooth_steps: tuple[int, ...]
    band: str
    smooth: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class ModelInfo(Info):
    """Everything the figure shows."""

    model: str
    y_label: str
    benchmarks: tuple[BenchmarkPanel, ...]
    rewards: tuple[RewardLine, ...]
    traces: tuple[training.DiagnosticPanel, ...]
    keys: tuple[Key, ...]


def model_info(board: Scoreboard, model: str, title: str, palette: str = PAPER) -> ModelInfo | Absent:
    """The figure of one model of the main sweep; `palette`: one of PALETTES."""
    runs = [run for run in board.runs if run.model == model]
    strokes = PALETTES[palette].strokes(in_order(run.variant for run in runs))
    panels = []
    for benchmark in board.benchmarks_of(model):
        lines = (
            validation.line_of(board, board.runs_of(model, name), stroke, benchmark)
            for name, stroke in strokes.items()
        )
        drawn = tuple(line for line in lines if line is not None)
        panels.append(BenchmarkPanel(benchmark, benchmark_name(benchmark), drawn))
    rewards = [_reward(board, (model, name), stroke) for name, stroke in strokes.items()]
    logged = tuple(line for line in rewards if line is not None)
    variants = {line.variant for panel in panels for line in panel.lines} | {line.variant for line in logged}
    if not variants:
        return Absent(f"no run on {model} has logged a benchmark or a reward")
    return ModelInfo(
        title=title,
        source=origin(board.core),
        model=model,
        y_label=f"{score_name(board)} (%)",
        benchmarks=tuple(panels),
        rewards=logged,
        traces=(
            _smoothed(board, model, _LENGTH, "response length (tokens)", strokes),
            _smoothed(board, model, _ERROR, "relative log-prob error", strokes),
        ),
        keys=keys_of(strokes, variants),
        run_ids=run_ids_of(runs),
    )


def _by_run(board: Scoreboard, pair: tuple[str, str], metric: str) -> pd.DataFrame:
    """A metric of one cell: one row per step that any run logged, one column per run."""
    rows = board.logged(*pair, metric)
    rows = rows[np.isfinite(rows["value"])]  # non-finite values cannot be drawn
    return rows.astype({"mlflow_id": object}).pivot(index="step", columns="mlflow_id", values="value")


def _reward(board: Scoreboard, pair: tuple[str, str], stroke: Stroke) -> RewardLine | None:
    raw = _by_run(board, pair, _REWARD)
    if raw.empty:
        return None
    smooth = _by_run(board, pair, _SMOOTHED)
    if smooth.empty:
        smooth = _moving_average(raw, _SMOOTHING).where(raw.notna())
    around = band(smooth)
    return RewardLine(
        variant=pair[1],
        label=display_name(pair[1]),
        stroke=stroke,
        steps=tuple(int(step) for step in raw.index),
        raw=band(raw).mean,
        smooth_steps=tuple(int(step) for step in smooth.index),
        band=around.band,
        smooth=around.mean,
        low=around.low,
        high=around.high,
    )


def _moving_average(values: pd.DataFrame, share: float) -> pd.DataFrame:
    """Over a share of the rows, an odd number, so that it is centred."""
    width = max(3, round(share * len(values)) | 1)
    return values.rolling(width, center=True, min_periods=1).mean()


def _smoothed(
    board: Scoreboard, model: str, metric: str, label: str, strokes: Mapping[str, Stroke]
) -> training.DiagnosticPanel:
    traces = list(training.traces_of(board, model, metric, strokes, _POINTS))
    for place, trace in enumerate(traces):
        if len(trace.steps) > _FEW_POINTS:  # so many that seven lines would be illegible
            smooth = _moving_average(pd.DataFrame({"mean": trace.mean}), _SMOOTHING / 2)
            traces[place] = replace(trace, smooth=tuple(smooth["mean"]))
    if metric == _LENGTH and max((max(trace.high) for trace in traces), default=0.0) >= 2 * _KILO:
        label = "response length (k tokens)"
        for place, trace in enumerate(traces):
            parts = {name: getattr(trace, name) for name in ("mean", "low", "high", "smooth")}
            kilos: Any = {name: tuple(value / _KILO for value in part) for name, part in parts.items()}
            traces[place] = replace(trace, **kilos)
    return training.DiagnosticPanel(model, metric, label, tuple(traces))


def _draw_reward(info: ModelInfo, ax: Axes) -> None:
    """Draw the raw reward thin and the smoothed one thick."""
    for line in info.rewards:
        ax.plot(line.steps, line.raw, color=line.stroke.colour, linewidth=0.5, alpha=0.3, zorder=2)
    for order, line in enumerate(info.rewards):
        fill(ax, line, line.smooth_steps)
        style = line.stroke.marked() | {"linewidth": 1.6, "zorder": 3 + order, "label": line.label}
        ax.plot(line.smooth_steps, line.smooth, **style)
    ax.set_title("reward (fraction)", loc="left")
    step_axis(ax)
    if not info.rewards:
        training.not_logged(ax)


def draw_model(info: ModelInfo, fig: Figure) -> None:
    """Draw benchmarks above (dots mark the steps selected by their mean), training metrics below, and one legend for
    all.
    """
    columns = max(len(info.benchmarks), 1 + len(info.traces))
    bands = [line.band for panel in info.benchmarks for line in panel.lines]
    surround(fig, (3.8 * columns, 5.6), head_texts(info, bands), info.keys)
    upper, lower = fig.subplots(2, columns, squeeze=False)
    for index, (ax, panel) in enumerate(zip(upper, info.benchmarks, strict=False)):
        validation.draw_lines(ax, panel.lines)
        ax.set_title(panel.heading, loc="left", parse_math=False)
        ax.set_ylabel(info.y_label if index == 0 else "")
        step_axis(ax)
    _draw_reward(info, lower[0])
    for ax, trace in zip(lower[1:], info.traces, strict=False):
        training.draw_panel(trace, ax, trace.label)
    for ax in (*upper[len(info.benchmarks) :], *lower[1 + len(info.traces) :]):
        ax.remove()
