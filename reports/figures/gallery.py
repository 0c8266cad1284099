"""The paper's Figures 1 to 11 from a study, each of them drawn or with the reason why it cannot be."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from matplotlib.figure import Figure

from cppo_lab.analysis.selection import GAPS
from cppo_lab.analysis.statistics.bands import FEWEST
from cppo_lab.analysis.study import MAIN, ROLES, StudyResults, runs_of
from cppo_lab.reports.figures import ablations, curves, gaps, model_curves, schematic, token_window, warmup
from cppo_lab.reports.figures.data import figure_csv
from cppo_lab.reports.figures.palette import PAPER
from cppo_lab.reports.figures.picture import Absent, Picture


class Info(Protocol):
    """The fields that every figure's info has."""

    title: str
    source: str
    run_ids: tuple[str, ...]


def gallery(study: StudyResults, palette: str = PAPER) -> tuple[Picture, ...]:
    """All eleven figures in order, in the colours of `palette` (one of PALETTES)."""
    return (
        _schematic(study, palette),
        _picture(
            2,
            "Gap between the policies by token position",
            "Left: mean over tokens, and mean over the largest tenth. Right: the threshold δ/w that position weights "
            "w put on the divergence, for a response of the maximum length. Differs from the paper's figure: shown are "
            "the runs of CPPO and DPPO at validated steps; the paper shows the drift after 200 updates of GRPO, as the "
            "maximum in each bin of positions." + _seeds(study),
            partial(gaps.gaps_info, study, palette=palette),
            gaps.draw,
        ),
        _picture(
            3,
            "The prefix constraint on some tokens of one response",
            "What each token spends (bars, w D) and the lower of two limits: the token threshold, and what the prefix "
            "leaves over. A token that moves toward μ is always kept.",
            partial(token_window.window_info, study, palette=palette),
            token_window.draw,
        ),
        _main_curves(study, palette),
        *(_ablations(study, palette, *row) for row in _ROWS),
        _warmup(study, palette),
        *(_model(study, index, palette) for index in range(ROLES)),
    )


_ROWS = (
    (5, "Ablations of the mechanisms", ablations.MECHANISMS),
    (6, "Ablations of the settings", ablations.SETTINGS),
)


def _picture(
    number: int,
    title: str,
    caption: str,
    make: Callable[[str], Any],
    draw: Callable[[Any, Figure, bool], None],
) -> Picture:
    label = f"Figure {number}"
    info = make(f"{label}. {title}")
    if isinstance(info, Absent):
        return Picture(f"figure_{number}", label, title, "", info)
    return Picture(
        f"figure_{number}",
        label,
        title,
        caption,
        partial(draw, info),
        info.source,
        tuple(info.run_ids),
        figure_csv(info),
    )


def _seeds(study: StudyResults) -> str:
    """An explanation of the bands, if cells have several seeds."""
    counts = {
        sum(run.state not in GAPS for run in runs_of(board, *pair))
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


def _base_models(study: StudyResults) -> tuple[str, ...] | Absent:
    """Those of the three Base models that have runs."""
    found = [_role(study, index) for index in range(1, ROLES)]
    models = tuple(model for model in found if isinstance(model, str))
    reasons = [reason for reason in found if isinstance(reason, Absent)]
    return models or reasons[0]


def _schematic(study: StudyResults, palette: str) -> Picture:
    model = _role(study, ROLES - 1)
    absent = model.reason if isinstance(model, Absent) else ""
    caption = (
        "Left: one made-up response, masked by the rules themselves; a bar is what the rule compares with its limit "
        "(ratio, divergence, or weighted divergence). Differs from the paper's schematic, which has PPO, DPPO and "
        "CPPO: shown are GRPO (PPO with Clip-Higher), DPPO, TRM-Max and CPPO. Right: "
    )
    caption += (
        f"not drawn, {absent}." if absent else f"{model}, with the best score of every method.{_seeds(study)}"
    )
    shown = None if isinstance(model, Absent) else model

    def info(title: str) -> schematic.SchematicInfo:
        return schematic.schematic_info(study.board(MAIN), shown, title, absent, palette)

    return _picture(1, "Masking rules and the largest model", caption, info, schematic.draw)


def _main_curves(study: StudyResults, palette: str) -> Picture:
    models = _base_models(study)

    def info(title: str) -> curves.CurvesInfo | Absent:
        board = study.board(MAIN)
        if isinstance(models, Absent) or board is None:
            return models if isinstance(models, Absent) else Absent(study.why_absent(MAIN))
        return curves.curves_info(board, title, models, palette=palette)

    caption = (
        "Mean over the benchmarks inside the matched window. A dot marks the step selected for each run, the star "
        "the best score of the table; a cross ends a run that collapsed."
        + _seeds(study)
        + _left_out(study, models)
    )
    draw = partial(curves.draw, in_row=ROLES - 1)
    return _picture(4, "Validation curves of the Base models", caption, info, draw)


def _left_out(study: StudyResults, models: tuple[str, ...] | Absent) -> str:
    """A sentence on the Base models that the figure does not show."""
    if isinstance(models, Absent) or len(models) == ROLES - 1:
        return ""
    reasons = [_role(study, index) for index in range(1, ROLES)]
    return " Not shown: " + "; ".join(entry.reason for entry in reasons if isinstance(entry, Absent)) + "."


def _ablations(
    study: StudyResults, palette: str, number: int, title: str, sweeps: tuple[tuple[str, str], ...]
) -> Picture:
    absent = [f"{heading}: {study.why_absent(name)}" for name, heading in sweeps if study.board(name) is None]
    missing = f" Not shown: {'; '.join(absent)}." if absent else ""
    caption = (
        "Mean over the benchmarks. Next to each variant is its score, at the step selected for each run (dots)."
        + _seeds(study)
        + missing
    )
    info = partial(ablations.ablations_info, study, sweeps=sweeps, palette=palette)
    return _picture(number, title, caption, info, ablations.draw)


def _warmup(study: StudyResults, palette: str) -> Picture:
    models = _base_models(study)

    def info(title: str) -> warmup.WarmupInfo | Absent:
        board = study.board(MAIN)
        if isinstance(models, Absent) or board is None:
            return models if isinstance(models, Absent) else Absent(study.why_absent(MAIN))
        return warmup.warmup_info(board, models, title, palette)

    caption = (
        "Effective budget rate δ_b, averaged over responses (top; its axis does not begin at 0), and the part of the "
        "masked tokens that the prefix budget alone rejected (bottom; a dot for each step that masked any)."
        + _seeds(study)
        + _left_out(study, models)
    )
    return _picture(7, "The prefix budget of CPPO during training", caption, info, warmup.draw)


def _model(study: StudyResults, index: int, palette: str) -> Picture:
    model = _role(study, index)

    def info(title: str) -> model_curves.ModelInfo | Absent:
        board = study.board(MAIN)
        if isinstance(model, Absent) or board is None:
            return model if isinstance(model, Absent) else Absent(study.why_absent(MAIN))
        return model_curves.model_info(board, model, title, palette)

    name = study.models[index] if index < len(study.models) else f"model {index + 1}"
    caption = (
        "Benchmarks on top; below, reward, response length and relative log-prob error of each step (thin) with their "
        "moving averages (thick; for the reward the logged one, if there is one)."
        + _seeds(study)
        + (
            " After a run has ended, the training curves are those of the remaining runs."
            if _seeds(study)
            else ""
        )
    )
    return _picture(8 + index, f"All curves of {name}", caption, info, model_curves.draw)
