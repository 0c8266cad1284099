"""The per-problem statistics as tables: methods, differences from the baseline, and the problems that separate two
methods.
"""

import math
from collections.abc import Mapping, Sequence

from cppo_lab.analysis.answers import RunAnswers
from cppo_lab.analysis.grid import Baseline
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.problems import (
    THRESHOLDS,
    CellProblems,
    PairedProblems,
    cell_problems,
    difference_variance,
    kept_draws,
    majority_score,
    mean_variance,
    paired_problems,
)
from cppo_lab.analysis.statistics.summary import Statistics
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.reports.names import ABSENT, baseline_name, display_name, estimate_text, p_text, points
from cppo_lab.reports.tables import TextRow, TextTable, cell_row

VOTED = "maj@k: the share of problems whose most frequent extracted answer is right, with ties counted fractionally."
NO_VOTES = "maj@k is not available: it needs the answers to all problems (tracking.answers.problems=all)."
MOST_NAMED = 30  # problems of one pair of methods, smallest p first


def problem_tables(
    board: Scoreboard, found: Statistics, core: str, title: str, answers: Mapping[str, RunAnswers]
) -> dict[str, TextTable]:
    """Kind -> table; empty without per-problem outcomes. `answers`: MLflow run -> its answers, for maj@k."""
    cells = cell_problems(board)
    if not cells:
        return {}
    final = [one for cell in found.cells if (one := cell.differences.get(Score.FINAL)) is not None]
    pairs = paired_problems(cells, final)
    several = len(board.models) > 1
    majority = {(cell.model, cell.variant): majority_score(board, cell, answers) for cell in cells}
    phi = {(cell.model, cell.variant): _repeated(cell, answers) for cell in cells}
    tables = {"problems": _methods(cells, found, core, title, several, majority, phi)}
    if pairs:
        tables["problem_differences"] = _differences(pairs, cells, phi, found.baseline, core, title, several)
        named = _separating(pairs, cells, core, title, several)
        tables |= {"separating": named} if named.rows else {}
    return tables


def _methods(
    cells: Sequence[CellProblems],
    found: Statistics,
    core: str,
    title: str,
    several: bool,
    majority: Mapping[tuple[str, str], Estimate | None],
    phi: Mapping[tuple[str, str], tuple[float, str]],
) -> TextTable:
    voted = any(one is not None for one in majority.values())
    over_seeds = {(cell.model, cell.variant): cell for cell in found.cells}
    rows = []
    for cell in cells:
        own = over_seeds[cell.model, cell.variant]
        seeds = own.scores[Score.FINAL]
        texts = (
            estimate_text(seeds),
            _half(cell.over_problems),
            _of_answers(mean_variance(cell.evaluations, phi[cell.model, cell.variant][0]), cell),
            ABSENT if own.sampling is None or not own.sampling.known else f"{100 * own.sampling.answers:.2f}",
            ABSENT if cell.between is None else f"{cell.between:.2f}",
            *(estimate_text(cell.pass_at(k)) for k in _shown_k(cell.samples)),
            *([estimate_text(majority[cell.model, cell.variant])] if voted else []),
            *(points(one.value) for one in cell.profile),
        )
        rows.append(cell_row(cell.model, cell.variant, texts, several))
    headings = (
        "final mean, seeds",
        "other problems",
        "other answers",
        "one evaluation",
        "rho",
        *(f"pass@{k}" for k in _shown_k(cells[0].samples)),
        *([f"maj@{cells[0].samples}"] if voted else []),
        *(f"{100 * threshold:.0f} % right" for threshold in THRESHOLDS),
    )
    notes = (
        "Percent. final mean with the 95 % interval over seeds, for these problems; other problems: half the interval "
        "over other problems, clustered by problem (Miller 2024), for these runs; "
        "other answers: the same over other answers of these runs to these problems.",
        "one evaluation: standard error over other answers to these problems, of one run at its selected step. rho: "
        "share of an answer's variance that lies between problems, at the last validation.",
        "pass@k at the last validation, unbiased, with the interval over other problems. "
        f"{VOTED if voted else NO_VOTES} The last columns: share of problems with at least that share of their answers "
        "right at the last validation.",
        *_repeated_note(cells, phi),
    )
    return TextTable(f"By problem ({title})", core, "method", headings, tuple(rows), notes)


def _repeated(cell: CellProblems, answers: Mapping[str, RunAnswers]) -> tuple[float, str]:
    """phi in [0, 1] and its description: estimated from the grades of single answers, or else the lower bound from
    counts; 0 and an empty text if neither shows a correlation.
    """
    kept = next((answers[one] for one in cell.mlflow_ids if one in answers), None)
    measured = None if kept is None else kept_draws(kept, cell.samples)
    if measured is not None and measured.error is not None:
        low, high = (measured.value + sign * 2 * measured.error for sign in (-1, 1))
        text = f"{measured.value:.2f} ({low:.2f} to {high:.2f})"
        return (min(1.0, measured.value), text) if measured.dependent else (0.0, text)
    if cell.draws is not None and cell.draws.dependent:
        return min(1.0, cell.draws.value), f"at least {cell.draws.value:.2f}"
    return 0.0, ""


def _repeated_note(
    cells: Sequence[CellProblems], phi: Mapping[tuple[str, str], tuple[float, str]]
) -> tuple[str, ...]:
    found = [
        f"{cell.model}: {display_name(cell.variant)} {text}"
        for cell in cells
        if (text := phi[cell.model, cell.variant][1])
    ]
    if not found:
        return ()
    return (
        "Validations repeat their sampling seeds. Correlation of answers with the same draw between neighbouring "
        f"validations (from the recorded texts): {'; '.join(found)}. The errors over other answers account for it "
        "if it exceeds 0 by two standard errors.",
    )


def _of_answers(variance: float, cell: CellProblems) -> str:
    return f"{196 * math.sqrt(variance):.1f}" if cell.evaluations else ABSENT


def _shown_k(samples: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys((1, math.isqrt(samples), samples)))


def _differences(
    pairs: Sequence[PairedProblems],
    cells_shown: Sequence[CellProblems],
    phi: Mapping[tuple[str, str], tuple[float, str]],
    baseline: Baseline,
    core: str,
    title: str,
    several: bool,
) -> TextTable:
    by_name, rows = {(cell.model, cell.variant): cell for cell in cells_shown}, []
    for pair in pairs:
        ours_named, theirs_named = (pair.model, pair.variant), (pair.model, pair.against)
        mine, other = by_name[ours_named], by_name[theirs_named]
        shared = min(phi[ours_named][0], phi[theirs_named][0])
        named = [one for one in pair.separated if one.separates]
        ours = sum(one.ours > one.theirs for one in named)
        cells = (
            estimate_text(pair.difference.seeds, signed=True),
            _half(pair.difference.problems),
            _half(pair.difference.both),
            _of_answers(difference_variance(mine.evaluations, other.evaluations, shared), mine),
            ABSENT if pair.difference.correlation is None else f"{pair.difference.correlation:.2f}",
            f"{ours} and {len(named) - ours} of {len(pair.separated)}",
            f"{len(pair.ours_alone)} and {len(pair.theirs_alone)}",
        )
        rows.append(cell_row(pair.model, pair.variant, cells, several))
    base = baseline_name(baseline)
    headings = (
        "seeds",
        "other problems",
        "both",
        "other answers",
        "correlation",
        "separating",
        "solved by one alone",
    )
    notes = (
        f"Points of the final mean above {base}, with the 95 % interval over other seeds on these problems; half of it "
        "over other problems for these runs, paired by problem; over both, as crossed random effects; over other "
        "answers of these runs to these problems.",
        "correlation: of the two methods' shares by problem. separating: problems with more right answers under the "
        f"method, and under {base}, at the last validation, by Fisher's exact test with Holm's adjustment over the "
        "problems: the probability of any false finding is at most 5 %, for these runs.",
        f"solved by one alone: problems that a run of the method (of {base}) once answered right in half of its "
        f"answers or more, and that no run of {base} (of the method) ever answered right.",
    )
    return TextTable(f"Differences by problem ({title})", core, f"minus {base}", headings, tuple(rows), notes)


def _separating(
    pairs: Sequence[PairedProblems], cells: Sequence[CellProblems], core: str, title: str, several: bool
) -> TextTable:
    names = {cell.model: cell.problems for cell in cells}
    rows, left_out = [], 0
    for pair in pairs:
        named = sorted((one for one in pair.separated if one.separates), key=lambda one: one.p)
        left_out += max(0, len(named) - MOST_NAMED)
        for one in named[:MOST_NAMED]:
            texts = (
                f"{display_name(pair.variant)} against {display_name(pair.against)}",
                f"{100 * one.ours:.0f}",
                f"{100 * one.theirs:.0f}",
                p_text(one.adjusted),
                "yes" if one.every_run else "no",
            )
            name = (f"{pair.model}: " if several else "") + names[pair.model][one.problem]
            rows.append(TextRow(name, False, texts, (pair.model, pair.variant)))
    headings = ("methods", "right, %", "against, %", "adjusted p", "in every run")
    notes = (
        "Problems that separate two methods at the last validation, those with the smallest p first"
        + (f"; {left_out} more are left out." if left_out else "."),
        "in every run: every run of one is above every run of the other. With few seeds that happens by chance: for "
        "equal methods with three seeds each, in one problem of ten.",
    )
    return TextTable(f"Separating problems ({title})", core, "problem", headings, tuple(rows), notes)


def _half(found: Estimate) -> str:
    return ABSENT if found.half is None else f"{100 * found.half:.1f}"
