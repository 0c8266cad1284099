"""The section on the statistics of a sweep, as tables: scores with and without selection bias, differences, ranks and
margins; and the same by problem.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd

from cppo_lab.analysis.inputs import Baseline
from cppo_lab.analysis.reader import RunAnswers
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import FEWEST_RUNS, Estimate
from cppo_lab.analysis.statistics.paired import Difference
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
from cppo_lab.analysis.statistics.summary import SamplingError, Statistics
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.reports.names import (
    ABSENT,
    EDGE,
    OURS,
    baseline_name,
    display_name,
    edge_text,
    estimate_text,
    number,
    p_text,
    points,
    score_text,
    with_interval,
)
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.reports.tables import TextRow, TextTable, cell_row, completed

_STOPPED = (
    "Seeds were added until sequential hypotheses were decided; intervals and p here do not allow for it, those of the "
    "verdicts on these hypotheses do."
)


def with_looks(table: TextTable, scored: Scored) -> TextTable:
    """The table with a note if the sweep has sequential hypotheses."""
    is_sequential = any(claim.sequential for claim in scored.stated.claims)
    return replace(table, notes=(*table.notes, _STOPPED)) if is_sequential else table


def statistics_section(scored: Scored) -> Section:
    """Intervals, differences and ranks."""
    tables = statistics_tables(scored)
    return Section(
        "statistics",
        "Uncertainty",
        {"tables": tables.values(), "anchors": scored.anchors},
        "intervals, differences, ranks",
        tables={f"statistics{scored.suffix}_{kind}": table for kind, table in tables.items()},
    )


def statistics_tables(scored: Scored) -> dict[str, TextTable]:
    """Kind -> table; tables without numbers are left out. maj@k is computed if the answers cover all problems."""
    board, summary = scored.board, scored.statistics
    tables = {"scores": _scores(summary)}
    if any(cell.runs > 1 for cell in summary.cells.values()):
        tables["differences"] = _differences(summary)
        if len(board.models) > 1 and summary.aggregates:
            tables["models"] = _over_models(summary, len(board.models))
    if any(len(ranking) > 1 for ranking in summary.rankings.values()):
        tables["order"] = _order(board, summary)
    if cells := cell_problems(board):  # with per-problem outcomes
        pairs = paired_problems(cells, summary.final)
        phi = {pair: _repeated(cell, scored.answers) for pair, cell in cells.items()}
        tables["problems"] = _methods(board, cells, summary, scored.answers, phi)
        if pairs:
            tables["problem_differences"] = _problem_differences(pairs, cells, phi, summary.baseline)
        if (separating := _separating(pairs, cells)).rows:
            tables["separating"] = separating
    return {kind: completed(with_looks(table, scored), board, scored.title) for kind, table in tables.items()}


def _scores(summary: Statistics) -> TextTable:
    rows = []
    for pair, cell in summary.cells.items():
        best, corrected = map(cell.scores.get, (Score.BEST, Score.CORRECTED))
        cells = (
            str(cell.runs),
            *(score_text(cell.scores.get(score)) for score in Score),
            points(best.value - corrected.value if best and corrected else None),
            _evaluation(cell.sampling),
            f"{cell.collapsed} of {cell.runs}",
        )
        rows.append(cell_row(*pair, cells))
    errors = [cell.sampling for cell in summary.cells.values() if cell.sampling is not None]
    edge = f" There {EDGE}" if any(error.edge is not None for error in errors) else ""
    bound = ""  # unless the error of an evaluation is known from per-problem outcomes
    if not errors or not all(error.known for error in errors):
        known = any(error.known for error in errors)
        bound = ", at most" + (" (known where it is in the table by problem)" if known else "")
    headings = (
        "runs",
        "best step",
        "corrected",
        "final mean",
        "area",
        "selection bias",
        "one evaluation",
        "collapsed",
    )
    notes = (
        "Percent. best step: the paper's selection rule, which favours a noisy run. corrected: the step is selected on "
        "all benchmarks but one and scored on that one. final mean: over the last 30 % of the window. area "
        "under the curve: its mean height.",
        "selection bias: best step minus corrected. one evaluation: its standard error from the answers drawn to "
        f"these problems{bound}.{edge} In final mean and area a collapsed run counts to the end with its "
        "last score, or with its first if that is lower; without any, with 0.",
        "In brackets: the 95 % interval of the mean over seeds (Student's t). There is none for a single run, "
        f"or if all runs have the same score.{_range_note(summary)}",
    )
    return TextTable("Scores of the runs", "method", headings, rows, notes)


def _differences(summary: Statistics) -> TextTable:
    rows, alone, base = [], dict[str, None](), baseline_name(summary.baseline)
    for pair, cell in summary.cells.items():
        if summary.baseline.of(pair[1]) is None:
            matched = summary.baseline.matched
            if matched is not None and pair[1] not in matched.values():
                alone[display_name(pair[1])] = None
            continue
        final = cell.differences.get(Score.FINAL)
        compared = (Score.FINAL, Score.BEST, Score.CORRECTED, Score.AREA)
        cells = (
            *(
                estimate_text(None if lead is None else lead.estimate, signed=True)
                for lead in map(cell.differences.get, compared)
            ),
            p_text(summary.adjusted.get((*pair, Score.FINAL))),
            _share(final),
            ABSENT if final is None else "by seed" if final.paired else "no",
        )
        rows.append(cell_row(*pair, cells))
    headings = ("final mean", "best step", "corrected", "area", "adjusted p", "P(improvement)", "paired")
    notes = (
        f"Points above {base}, with the 95 % interval. paired: by seed, as the design of the runs asks; else Welch's.",
        "adjusted p: two-sided, of the final mean, with Holm's adjustment over all methods and models of the table. "
        f"P(improvement): that a run of the method has a higher final mean than one of {base}, of all runs of both, "
        "with its 95 % interval.",
        *([f"Without {base}, and so without a difference: {', '.join(alone)}."] if alone else []),
    )
    return TextTable("Differences", f"minus {base}", headings, rows, notes)


def _over_models(summary: Statistics, models: int) -> TextTable:
    overall = {difference.variant: difference for difference in summary.overall}
    rows, base = [], baseline_name(summary.baseline)
    for variant in dict.fromkeys(variant for variant, *_ in summary.aggregates):
        above, places = overall.get(variant), product([variant], [Score.FINAL], ("mean", "iqm", "median"))
        aggregates = map(score_text, map(summary.aggregates.get, places))
        lead = estimate_text(None if above is None else above.estimate, signed=True)
        cells = (*aggregates, lead, _share(above))
        rows.append(TextRow(display_name(variant), variant == OURS, cells))
    headings = ("mean", "IQM", "median", f"minus {base}", "P(improvement)")
    notes = (
        "Final mean in percent, with the 95 % interval of a bootstrap stratified by model. IQM: mean of the middle "
        f"half of all runs. P(improvement): against {base}, averaged over models.",
    )
    return TextTable(f"Over all {models} models", "method", headings, rows, notes)


_NO_RANKS = pd.DataFrame(columns=["rank", "margin", "noise"], dtype=float)


def _order(board: Scoreboard, summary: Statistics) -> TextTable:
    rows, alike, models = [], [], dict.fromkeys(model for model, _ in summary.rankings)
    for model in models:
        best, final, corrected, area = (
            summary.rankings.get((model, score), _NO_RANKS)
            for score in (Score.BEST, Score.FINAL, Score.CORRECTED, Score.AREA)
        )
        # Kendall's tau-b, from the signs of all differences. pandas has SciPy's, whose import would take half a second
        # of each report.
        ranks = pd.concat([best["rank"], final["rank"]], axis="columns", join="inner").to_numpy().T
        signs = np.sign(ranks[:, :, None] - ranks[:, None, :]).reshape(2, -1)
        if signs.any(axis=1).all():
            tau = signs.prod(axis=0).sum() / math.sqrt((signs**2).sum(axis=1).prod())
            alike.append(f"{model} {tau:.2f}" if len(models) > 1 else f"{tau:.2f}")
        # Of a run without a validation there is no best step.
        for variant in dict.fromkeys([*best.index, *final.index]):
            by_best, by_final, *others = (_place(variant, of) for of in (best, final, corrected, area))
            row = cell_row(model, variant, (*by_best, *by_final, *(rank for rank, *_ in others)))
            cell = board.cells[model, variant]
            fallen = f" ({cell.collapsed} of {cell.finished} collapsed)" * bool(cell.collapsed)
            rows.append(replace(row, label=f"{row.label}{fallen}{'†' * cell.provisional}"))
    headings = ("best step", "margin", "noise", "final mean", "margin", "noise", "corrected", "area")
    provisional = any(cell.provisional for cell in board.cells.values())
    notes = (
        *["† provisional: some of its runs have no result yet."] * provisional,
        "Ranks on each model. margin: points above the next lower method. noise: standard error of the margin from the "
        "scatter of single evaluations alone, a lower bound; the spread over seeds comes on top.",
        f"Agreement of the order by best step with that by final mean (Kendall's tau-b; 1 is the same): "
        f"{', '.join(alike) or 'not known'}.",
    )
    return TextTable("Order and margins", "method", headings, rows, notes)


def _place(variant: str, ranking: pd.DataFrame) -> tuple[str, str, str]:
    """Rank, margin and noise."""
    if variant not in ranking.index:
        return (ABSENT, ABSENT, ABSENT)
    rank, margin, noise = ranking.loc[variant]
    return f"{rank:.0f}", points(margin), points(noise)


def _evaluation(sampling: SamplingError | None) -> str:
    if sampling is None:
        return ABSENT
    return points(sampling.answers) if sampling.edge is None else edge_text(sampling.edge)


def _share(difference: Difference | None) -> str:
    """A probability of improvement; none for single runs, for which it would take only a few values."""
    share = None if difference is None else difference.improvement
    return ABSENT if share is None or share.low is None else with_interval(share, number)


# By problem: methods, differences from the baseline, and the problems that separate two methods.

_VOTED = "maj@k: the share of problems whose most frequent extracted answer is right, with ties counted fractionally."
_REPEATED = (
    "Validations repeat their sampling seeds. Correlation of answers with the same draw between neighbouring "
    "validations (from the recorded texts): {}. The errors over other answers account for it if it exceeds 0 by two "
    "standard errors."
)
_NO_VOTES = "maj@k is not available: it needs the answers to all problems (tracking.answers.problems=all)."
_MOST_NAMED = 30  # problems of a pair of methods, smallest p first
_Cells = Mapping[tuple[str, str], CellProblems]  # by (model, variant)
_Phi = Mapping[tuple[str, str], tuple[float, str]]  # see `_repeated`


def _range_note(summary: Statistics) -> str:
    """A sentence on the range in place of the interval of two seeds; empty without such a cell."""
    scores = [score for cell in summary.cells.values() for score in cell.scores.values()]
    few = any(score.n == FEWEST_RUNS - 1 for score in scores)
    return " Of two seeds: the range of both, in place of an interval." if few else ""


def _methods(
    board: Scoreboard,
    cells: _Cells,
    summary: Statistics,
    answers: Mapping[str, RunAnswers],
    phi: _Phi,
) -> TextTable:
    majority = {pair: majority_score(board, cell, answers) for pair, cell in cells.items()}
    voted = any(majority.values())
    rows, edges = [], []
    for pair, cell in cells.items():
        sampling = summary.cells[pair].sampling
        error_of_run = sampling if sampling is not None and sampling.known else None
        edge = cell.edge if cell.spreads else None
        edges += [edge, error_of_run and error_of_run.edge]
        variance = mean_variance(cell.spreads, phi[pair][0])
        texts = (
            score_text(summary.cells[pair].scores[Score.FINAL]),
            _half(cell.over_problems),
            edge_text(edge) if edge else _other_answers(cell, variance),
            _evaluation(error_of_run),
            number(cell.between),
            *(score_text(cell.pass_at(k)) for k in _shown_k(cell.samples)),
            *([score_text(majority[pair])] if voted else []),
            *(points(share.value) for share in cell.profile),
        )
        rows.append(cell_row(*pair, texts))
    samples = next(iter(cells.values())).samples
    headings = (
        "final mean, seeds",
        "other problems",
        "other answers",
        "one evaluation",
        "rho",
        *(f"pass@{k}" for k in _shown_k(samples)),
        *([f"maj@{samples}"] if voted else []),
        *(f"{100 * threshold:.0f} % right" for threshold in THRESHOLDS),
    )
    repeated = "; ".join(
        f"{model}: {display_name(variant)} {text}" for (model, variant), (_, text) in phi.items() if text
    )
    notes = (
        "Percent. final mean with the 95 % interval over seeds, for these problems; other problems: half the interval "
        "over other problems, clustered by problem (Miller 2024), for these runs; "
        f"other answers: the same over other answers of these runs to these problems.{_range_note(summary)}",
        "one evaluation: standard error over other answers to these problems, of one run at its selected step. rho: "
        "share of an answer's variance that lies between problems, at the last validation.",
        "pass@k at the last validation, unbiased, with the interval over other problems. "
        f"{_VOTED if voted else _NO_VOTES} The last columns: share of problems with at least that share of their "
        "answers right at the last validation.",
        *([f"other answers, one evaluation: {EDGE}"] if any(edges) else []),
        *([_REPEATED.format(repeated)] if repeated else []),
    )
    return TextTable("By problem", "method", headings, rows, notes)


def _repeated(cell: CellProblems, answers: Mapping[str, RunAnswers]) -> tuple[float, str]:
    """phi in [0, 1] and its description: estimated from the grades of single answers, or else the lower bound from
    counts; 0 and an empty text if neither shows a correlation.
    """
    recorded = next((answers[mlflow_id] for mlflow_id in cell.mlflow_ids if mlflow_id in answers), None)
    measured = None if recorded is None else kept_draws(recorded, cell.samples)
    if measured is not None and measured.error is not None:
        low, high = (measured.value + sign * 2 * measured.error for sign in (-1, 1))
        text = f"{measured.value:.2f} ({low:.2f} to {high:.2f})"
        return (min(1.0, measured.value) if low > 0 else 0.0), text
    least = cell.draws
    if least is not None and least.error is not None and least.value > 2 * least.error:
        return min(1.0, least.value), f"at least {least.value:.2f}"
    return 0.0, ""


def _other_answers(cell: CellProblems, variance: float) -> str:
    """Half the interval over other answers, in points."""
    return f"{196 * math.sqrt(variance):.1f}" if cell.spreads else ABSENT


def _shown_k(samples: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys((1, math.isqrt(samples), samples)))


def _problem_differences(
    pairs: Sequence[PairedProblems], cells: _Cells, phi: _Phi, baseline: Baseline
) -> TextTable:
    rows, base = [], baseline_name(baseline)
    for pair in pairs:
        lead = pair.lead
        names = (lead.model, lead.variant), (lead.model, lead.against)
        mine, other = (cells[name] for name in names)
        correlation = min(phi[name][0] for name in names)
        variance = difference_variance(mine.spreads, other.spreads, correlation)
        separating = pair.separated[pair.separated["separates"]]
        ours = (separating["ours"] > separating["theirs"]).sum()
        texts = (
            estimate_text(lead.estimate, signed=True),
            _half(pair.problems),
            _half(pair.both),
            _other_answers(mine, variance),
            number(pair.correlation),
            f"{ours} and {len(separating) - ours} of {len(pair.separated)}",
            f"{len(pair.ours_alone)} and {len(pair.theirs_alone)}",
        )
        rows.append(cell_row(lead.model, lead.variant, texts))
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
    return TextTable("Differences by problem", f"minus {base}", headings, rows, notes)


def _separating(pairs: Sequence[PairedProblems], cells: _Cells) -> TextTable:
    rows, left_out = [], 0
    for pair in pairs:
        lead = pair.lead
        problems = pair.separated[pair.separated["separates"]].sort_values("p", kind="stable")
        left_out += len(problems[_MOST_NAMED:])
        for problem in problems[:_MOST_NAMED].itertuples():
            texts = (
                f"{display_name(lead.variant)} against {display_name(lead.against)}",
                f"{100 * problem.ours:.0f}",
                f"{100 * problem.theirs:.0f}",
                p_text(problem.adjusted),
                "yes" if problem.every_run else "no",
            )
            of_cell = lead.model, lead.variant
            rows.append(TextRow(cells[of_cell].problems[problem.Index], False, texts, of_cell))
    headings = ("methods", "right, %", "against, %", "adjusted p", "in every run")
    notes = (
        "Problems that separate two methods at the last validation, those with the smallest p first"
        + (f"; {left_out} more are left out." if left_out else "."),
        "in every run: every run of one is above every run of the other. With few seeds that happens by chance: for "
        "equal methods with three seeds each, in one problem of ten.",
    )
    return TextTable("Separating problems", "problem", headings, rows, notes)


def _half(estimate: Estimate) -> str:
    return ABSENT if estimate.half is None else f"{100 * estimate.half:.1f}"
