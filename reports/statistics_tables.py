"""The statistics of a sweep as tables: scores with and without selection bias, differences, ranks and margins."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from cppo_lab.analysis.answers import RunAnswers
from cppo_lab.analysis.grid import Baseline
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import FEWEST, Estimate, Share
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
from cppo_lab.analysis.statistics.sampling import SamplingError
from cppo_lab.analysis.statistics.summary import (
    CellStatistics,
    Rank,
    Ranking,
    Statistics,
    kendall,
    sweep_statistics,
)
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.reports.names import (
    ABSENT,
    EDGE,
    OURS,
    baseline_name,
    display_name,
    edge_text,
    estimate_text,
    origin,
    p_text,
    points,
    score_text,
)
from cppo_lab.reports.tables import TextRow, TextTable, cell_row, core_of


def statistics_tables(
    board: Scoreboard,
    title: str,
    answers: Mapping[str, RunAnswers] = MappingProxyType({}),
    found: Statistics | None = None,
) -> dict[str, TextTable]:
    """Kind -> table; tables without numbers are left out. `answers`: MLflow run -> its answers, from which
    maj@k is computed if they cover all problems. `found`: the statistics, if computed already.
    """
    found, core = found or sweep_statistics(board), core_of(board)
    several_models, several_runs = len(board.models) > 1, any(cell.runs > 1 for cell in found.cells)
    tables = {"scores": _scores(found, core, title, several_models)}
    if several_runs:
        tables["differences"] = _differences(found, core, title, several_models)
    if several_runs and several_models and found.aggregates:
        tables["models"] = _over_models(found, core, title, len(board.models))
    if any(len(ranking.places) > 1 for ranking in found.rankings):
        tables["order"] = _order(found, core, title, several_models)
    tables |= problem_tables(board, found, core, title, answers)
    source = f"Source: {origin(core)}."
    return {kind: replace(table, notes=(source, *table.notes)) for kind, table in tables.items()}


def _scores(found: Statistics, core: str, title: str, several_models: bool) -> TextTable:
    rows = tuple(
        cell_row(
            cell.model,
            cell.variant,
            (
                str(cell.runs),
                *(score_text(cell.scores.get(score)) for score in Score),
                _picked(cell),
                _evaluation(cell.sampling),
                f"{cell.collapsed} of {cell.runs}",
            ),
            several_models,
        )
        for cell in found.cells
    )
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
    edges = any(cell.sampling is not None and cell.sampling.edge is not None for cell in found.cells)
    edge = f" There {EDGE}" if edges else ""
    notes = (
        "Percent. best step: the paper's selection rule, which favours a noisy run. corrected: the step is selected on "
        "all benchmarks but one and scored on that one. final mean: over the last 30 % of the window. area "
        "under the curve: its mean height.",
        "selection bias: best step minus corrected. one evaluation: its standard error from the answers drawn to "
        f"these problems{_bound(found)}.{edge} In final mean and area a collapsed run counts with the score it ended "
        "at.",
        "In brackets: the 95 % interval of the mean over seeds (Student's t). There is none for a single run, "
        f"or if all runs have the same score.{range_note(found.cells)}",
    )
    return TextTable(f"Scores of the runs ({title})", core, "method", headings, rows, notes)


def _differences(found: Statistics, core: str, title: str, several_models: bool) -> TextTable:
    rows = []
    for cell in found.cells:
        final = cell.differences.get(Score.FINAL)
        if found.baseline.of(cell.variant) is None:
            continue
        p = found.adjusted.get((cell.model, cell.variant, Score.FINAL))
        cells = (
            *(
                _difference(cell.differences.get(score))
                for score in (Score.FINAL, Score.BEST, Score.CORRECTED, Score.AREA)
            ),
            p_text(p, ABSENT),
            ABSENT if final is None else _share(final.improvement),
            ABSENT if final is None else ("by seed" if final.paired else "no"),
        )
        rows.append(cell_row(cell.model, cell.variant, cells, several_models))
    headings = ("final mean", "best step", "corrected", "area", "adjusted p", "P(improvement)", "paired")
    notes = (
        f"Points above {baseline_name(found.baseline)}, with the 95 % interval; paired by seed where both have two or "
        "more of the same seeds, else Welch's.",
        "adjusted p: two-sided, of the final mean, with Holm's adjustment over all methods and models of the table. "
        "P(improvement): that a run of the method has a higher final mean than one of "
        f"{baseline_name(found.baseline)}, with its 95 % interval.",
    )
    lead = f"minus {baseline_name(found.baseline)}"
    return TextTable(f"Differences ({title})", core, lead, headings, tuple(rows), notes)


def _over_models(found: Statistics, core: str, title: str, models: int) -> TextTable:
    aggregates = {
        (each.variant, each.name): each.estimate for each in found.aggregates if each.score is Score.FINAL
    }
    overall = {each.variant: each for each in found.overall if each.score is Score.FINAL}
    rows = []
    for variant in dict.fromkeys(variant for variant, _ in aggregates):
        above = overall.get(variant)
        cells = (
            *(estimate_text(aggregates.get((variant, name))) for name in ("mean", "iqm", "median")),
            _difference(above),
            ABSENT if above is None else _share(above.improvement),
        )
        rows.append(TextRow(display_name(variant), variant == OURS, cells))
    base = baseline_name(found.baseline)
    headings = ("mean", "IQM", "median", f"minus {base}", "P(improvement)")
    notes = (
        "Final mean in percent, with the 95 % interval of a bootstrap stratified by model. IQM: mean of the middle "
        f"half of all runs. P(improvement): against {base}, averaged over models.",
    )
    return TextTable(f"Over all {models} models ({title})", core, "method", headings, tuple(rows), notes)


def _order(found: Statistics, core: str, title: str, several_models: bool) -> TextTable:
    by_model: dict[str, dict[Score, Ranking]] = {}
    for ranking in found.rankings:
        by_model.setdefault(ranking.model, {})[ranking.score] = ranking
    rows, alike = [], []
    for model, of_model in by_model.items():
        best, final = of_model.get(Score.BEST), of_model.get(Score.FINAL)
        if best is None or final is None:
            continue
        tau = kendall(best, final)
        if tau is not None:
            alike.append(f"{model} {tau:.2f}" if several_models else f"{tau:.2f}")
        places = {place.variant: place for place in final.places}
        for place in best.places:
            end = places.get(place.variant)
            others = (_rank(of_model.get(score), place.variant) for score in (Score.CORRECTED, Score.AREA))
            cells = (str(place.rank), *_margin(place), *_end(end), *others)
            rows.append(cell_row(model, place.variant, cells, several_models))
    headings = ("best step", "margin", "noise", "final mean", "margin", "noise", "corrected", "area")
    notes = (
        "Ranks on each model. margin: points above the next lower method. noise: standard error of the margin from the "
        "scatter of single evaluations alone, a lower bound; the spread over seeds comes on top.",
        f"Agreement of the order by best step with that by final mean (Kendall's tau-b; 1 is the same): "
        f"{', '.join(alike) or 'not known'}.",
    )
    return TextTable(f"Order and margins ({title})", core, "method", headings, tuple(rows), notes)


def _end(place: Rank | None) -> tuple[str, str, str]:
    return (ABSENT, ABSENT, ABSENT) if place is None else (str(place.rank), *_margin(place))


def _margin(place: Rank) -> tuple[str, str]:
    margin = ABSENT if place.margin is None else points(place.margin)
    return margin, ABSENT if place.noise is None else points(place.noise)


def _rank(ranking: Ranking | None, variant: str) -> str:
    rank = None if ranking is None else ranking.rank(variant)
    return ABSENT if rank is None else str(rank)


def _bound(found: Statistics) -> str:
    """A note if the error of one evaluation is an upper bound, i.e. not known from per-problem outcomes."""
    errors = [cell.sampling for cell in found.cells if cell.sampling is not None]
    if errors and all(error.known for error in errors):
        return ""
    return ", at most" + (
        " (known where it is in the table by problem)" if any(e.known for e in errors) else ""
    )


def _evaluation(sampling: SamplingError | None) -> str:
    if sampling is None:
        return ABSENT
    return points(sampling.answers) if sampling.edge is None else edge_text(sampling.edge)


def _picked(cell: CellStatistics) -> str:
    best, corrected = cell.scores.get(Score.BEST), cell.scores.get(Score.CORRECTED)
    return ABSENT if best is None or corrected is None else points(best.value - corrected.value)


def _difference(found: Difference | None) -> str:
    return estimate_text(None if found is None else found.estimate, signed=True)


def _share(share: Share | None) -> str:
    """A probability of improvement; none for single runs, for which it would take only a few values."""
    if share is None or share.low is None or share.high is None:
        return "none"
    return f"{share.value:.2f} ({share.low:.2f} to {share.high:.2f})"


# By problem: methods, differences from the baseline, and the problems that separate two methods.


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
        tables["problem_differences"] = _problem_differences(
            pairs, cells, phi, found.baseline, core, title, several
        )
        named = _separating(pairs, cells, core, title, several)
        tables |= {"separating": named} if named.rows else {}
    return tables


def range_note(cells: Sequence[CellStatistics]) -> str:
    """A sentence on the range in place of the interval of two seeds; empty without such a cell."""
    few = any(score.n == FEWEST - 1 for cell in cells for score in cell.scores.values())
    return " Of two seeds: the range of both, in place of an interval." if few else ""


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
            score_text(seeds),
            _half(cell.over_problems),
            edge_text(cell.edge)
            if cell.evaluations and cell.edge
            else _of_answers(mean_variance(cell.evaluations, phi[cell.model, cell.variant][0]), cell),
            _one_evaluation(own.sampling),
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
    edges = any(cell.evaluations and cell.edge for cell in cells) or any(
        cell.sampling is not None and cell.sampling.known and cell.sampling.edge
        for cell in over_seeds.values()
    )
    notes = (
        "Percent. final mean with the 95 % interval over seeds, for these problems; other problems: half the interval "
        "over other problems, clustered by problem (Miller 2024), for these runs; "
        f"other answers: the same over other answers of these runs to these problems.{range_note(found.cells)}",
        "one evaluation: standard error over other answers to these problems, of one run at its selected step. rho: "
        "share of an answer's variance that lies between problems, at the last validation.",
        "pass@k at the last validation, unbiased, with the interval over other problems. "
        f"{VOTED if voted else NO_VOTES} The last columns: share of problems with at least that share of their answers "
        "right at the last validation.",
        *([f"other answers, one evaluation: {EDGE}"] if edges else []),
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


def _one_evaluation(sampling: SamplingError | None) -> str:
    if sampling is None or not sampling.known:
        return ABSENT
    return f"{100 * sampling.answers:.2f}" if sampling.edge is None else edge_text(sampling.edge)


def _of_answers(variance: float, cell: CellProblems) -> str:
    return f"{196 * math.sqrt(variance):.1f}" if cell.evaluations else ABSENT


def _shown_k(samples: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys((1, math.isqrt(samples), samples)))


def _problem_differences(
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
