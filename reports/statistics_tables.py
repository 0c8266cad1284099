"""The statistics of a sweep as tables: scores with and without selection bias, differences, ranks and margins."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from cppo_lab.analysis.answers import RunAnswers
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import Share
from cppo_lab.analysis.statistics.paired import Difference
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
    OURS,
    baseline_name,
    display_name,
    estimate_text,
    origin,
    p_text,
    points,
)
from cppo_lab.reports.problem_tables import problem_tables
from cppo_lab.reports.tables import TextRow, TextTable, cell_row, core_of

# Kind of table -> its part of the file name.
KINDS = ("scores", "differences", "models", "order", "problems", "problem_differences", "separating")


def statistics_tables(
    board: Scoreboard,
    title: str,
    answers: Mapping[str, RunAnswers] = MappingProxyType({}),
    found: Statistics | None = None,
) -> dict[str, TextTable]:
    """Kind (see KINDS) -> table; tables without numbers are left out. `answers`: MLflow run -> its answers, from which
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
                *(estimate_text(cell.scores.get(score)) for score in Score),
                _picked(cell),
                ABSENT if cell.sampling is None else points(cell.sampling.answers),
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
    notes = (
        "Percent. best step: the paper's selection rule, which favours a noisy run. corrected: the step is selected on "
        "all benchmarks but one and scored on that one. final mean: over the last 30 % of the window. area "
        "under the curve: its mean height.",
        "selection bias: best step minus corrected. one evaluation: its standard error from the answers drawn to "
        f"these problems{_bound(found)}. In final mean and area a collapsed run counts with the score it ended at.",
        "In brackets: the 95 % interval of the mean over seeds (Student's t). There is none for a single run, "
        "or if all runs have the same score.",
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
