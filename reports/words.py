"""A report in words: its findings model by model; and what a paper takes over from it, its numbers and verdicts as
LaTeX macros, and a paragraph on the methods.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, count, product
from string import ascii_uppercase

from cppo_lab import __version__, schema
from cppo_lab.analysis.scoring import Scoreboard, SelectionState, Stat, describe_gaps
from cppo_lab.analysis.statistics.claims import SMALLEST
from cppo_lab.analysis.statistics.estimate import NO_SPREAD, ONE_RUN
from cppo_lab.analysis.statistics.paired import Difference, with_holm
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.analysis.statistics.verdicts import word_of
from cppo_lab.errors import counted, has, spanned
from cppo_lab.reports.names import (
    ABSENT,
    baseline_name,
    benchmark_name,
    display_name,
    escape_latex,
    escape_markdown,
    in_order,
    joined,
    origin,
    p_text,
    points,
    score_name,
)
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.reports.tables import TWO_SIDED_LEVEL

Finding = tuple[str, Sequence[str]]  # the model that it is about, or all of them, and sentences


_Ranked = list[tuple[str, Stat]]  # variants of a model with their scores, best first


def headlines(board: Scoreboard) -> list[Finding]:
    """The findings over all models, then for each model: the best variant and collapses."""
    ranked: dict[str, _Ranked] = {model: [] for model in board.models}
    for (model, variant), cell in board.cells.items():
        if cell.ranked is not None:
            ranked[model].append((variant, cell.ranked))
    for cells in ranked.values():
        cells.sort(key=lambda entry: (-entry[1].mean, entry[0]))
    findings = [("All models", [*_overall(board, ranked)])]
    findings += [(model, [*_of_model(board, model, cells)]) for model, cells in ranked.items()]
    return [(about, sentences) for about, sentences in findings if sentences]


def findings_section(entries: Sequence[Finding]) -> Section:
    """The findings in words."""
    return Section("findings", "Findings", {"entries": entries}, "in words, model by model")


def _overall(board: Scoreboard, ranked: dict[str, _Ranked]) -> Iterator[str]:
    contested = [cells for cells in ranked.values() if len(cells) > 1]
    if len(contested) > 1:
        wins = Counter(name for cells in contested for name in _leaders(cells))
        most = max(wins.values())
        winners = [name for name in sorted(wins) if wins[name] == most]
        on = f"the highest score on {most} of {len(contested)} models"
        margins = [
            (cells[0][1].mean - cells[1][1].mean) * (len(leaders) == 1)
            for cells in contested
            if winners[0] in (leaders := _leaders(cells))
        ]
        between = " to ".join(dict.fromkeys(points(end(margins)) for end in (min, max)))
        if len(winners) > 1:
            yield f"{joined(map(display_name, winners))} each have {on}."
        else:
            yield f"{display_name(winners[0])} has {on}, {between} points above the runner-up."
    if board.gaps:
        yield (
            f"{len(board.gaps)} of {counted(len(board.runs), 'run')} {has(len(board.gaps))} no result yet: everything "
            "marked † will change."
        )


def _leaders(cells: _Ranked) -> list[str]:
    """The variants that share the highest score as it is printed."""
    return [name for name, stat in cells if points(stat.mean) == points(cells[0][1].mean)]


def _of_model(board: Scoreboard, model: str, cells: _Ranked) -> Iterator[str]:
    """The best variant; its gain over the untrained model, if step 0 was evaluated; and the collapses: a sentence for a
    variant with a single run, counts of the finished runs of variants with several seeds.
    """
    if len(cells) > 1:
        (best, score), (second, runner_up) = cells[:2]
        spread = ""
        if score.std is not None and runner_up.std is not None:
            spread = (
                f"; over {score.n} and {runner_up.n} seeds their standard deviations are "
                f"{points(score.std)} and {points(runner_up.std)}"
            )
        if len(leaders := _leaders(cells)) > 1:
            yield f"{joined(map(display_name, leaders))} share the highest score, {points(score.mean)}."
        else:
            yield (
                f"{display_name(best)} scores {points(score.mean)}, {points(score.mean - runner_up.mean)} points "
                f"above {display_name(second)} ({points(runner_up.mean)}){spread}."
            )
    for cell in [board.cells[model, variant] for variant, _ in cells[:1]]:
        if cell.base is not None and cell.gain is not None:
            yield (
                f"The model starts at {points(cell.base.mean)} (step 0); {display_name(cell.variant)} gains "
                f"{points(cell.gain.mean)} points."
            )
    counts = []
    for variant in in_order(board.variants):
        runs = board.runs_of(model, variant)
        fallen = [run for run in runs if run.state is SelectionState.COLLAPSE]
        if len(runs) > 1 and fallen:
            counts.append(f"{display_name(variant)} {len(fallen)} of {board.cells[model, variant].finished}")
        elif fallen and (choice := fallen[0].choice).score is not None:
            stopped = ", where its training was stopped" if fallen[0].status == schema.COLLAPSED else ""
            yield (
                f"{display_name(variant)} collapses: its best is {points(choice.score)} at step {choice.step}, and "
                f"it ends at {points(choice.last_score or 0.0)} at step {choice.last_step}{stopped}."
            )
    if counts:
        yield f"Runs that collapsed: {', '.join(counts)}."


# For a paper.
#
# `numbers.tex` defines a macro for each number, such as `\cppoDemoMiniBaseCppoFinal`: `cppo`, the sweep, the model (or
# AllModels), the variant and what it is, each with its words joined and its digits spelled, since TeX's names are
# letters. Names that would be equal get a letter, in the order of the sweep. `methods.*` says what was done, and
# nothing that the records of the runs do not show.

_NUMBERS, METHODS = "numbers.tex", "methods"
_DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


def paper_texts(
    scored: Collection[Scored], sections: Sequence[Section], withdrawn: Sequence[str] = ()
) -> dict[str, str]:
    """The files by name, for the scored sweeps. `withdrawn`: see `claims.withdrawn`."""
    boards = [sweep.board for sweep in scored]
    judged = [line for section in sections for line in section.lines]
    claims = []
    for line in judged:
        if line.registered:
            claim, deviation = line.verdict.claim, f" {line.deviation}" if line.deviation else ""
            claims.append(f"Hypothesis of sweep {claim.sweep}: {claim.text}. {line.registered}{deviation}")
    if papers := [line.verdict.claim.text for line in judged if not line.registered]:
        claims.append(f"Claims of the paper that these runs can test: {'; '.join(papers)}.")
    how_judged = [section.how for section in sections if claims and section.how]
    scores = [  # what they are, and where all runs come from
        "The best step of a run is the one with the highest score in its window; the final mean is the mean score of "
        f"the last {100 * schema.LATE_SHARE:g} % of the window."
    ]
    if any(run.state is SelectionState.COLLAPSE for board in boards for run in board.runs):
        scores.append(
            "In the final mean a collapsed run counts to the end of the window with its last score, or with its "
            "first if that is lower."
        )
    scores.append(f"Source of the runs: {'; '.join(dict.fromkeys(origin(board.core) for board in boards))}.")
    # The versions that made the runs, of those that recorded it, and the version that made this text.
    used = {
        run.mlflow_id: board.data.code.get(run.mlflow_id)
        for board in boards
        for run in board.runs
        if run.mlflow_id and run.is_result
    }
    counts = Counter(version for version in used.values() if version)
    listed = (f"{version} ({counted(count, 'run')})" for version, count in sorted(counts.items()))
    code = [f"Runs were made with CPPO Lab {', '.join(listed)}."] if counts else []
    code.append(f"The runs were analysed with CPPO Lab {__version__}.")
    paragraphs = (*map(_sweep, scored), scores, [*claims, *how_judged, *withdrawn], code)
    said = [*filter(None, map(" ".join, paragraphs))]
    numbers = [number for sweep in scored for number in _of_cells(sweep)]
    for line in judged:
        claim = line.verdict.claim
        key = claim.key.removeprefix("hypothesis ").removeprefix(f"{claim.sweep} ")
        of_claim, estimate = (claim.sweep, key), escape_latex(line.estimate or ABSENT)
        numbers.append((of_claim, "Verdict", escape_latex(line.outcome), claim.text))
        numbers.append((of_claim, "Estimate", estimate, "the comparison that decides it"))
    lines, taken = ["% Put \\input{numbers} before the first use of a number."], set[str]()
    # Place -> its suffix, for all of its names: a baseline has no Diff, and another variant's is not to pass for it.
    given: dict[tuple[str, ...], str] = {}
    for place, what, value, words in numbers:
        stem = "cppo" + "".join(map(letters, (*place, what)))
        # None, B, C, ... Z, BA, BB, ...
        suffixes = (suffix for length in count() for suffix in product(ascii_uppercase, repeat=length))
        names = (stem + "".join(suffix) for suffix in suffixes if suffix[:1] != ("A",))
        name = next(name for name in chain([stem + given.get(place, "")], names) if name not in taken)
        given[place] = name.removeprefix(stem)
        taken.add(name)
        lines.append(f"\\newcommand{{\\{name}}}{{{value}}} % {escape_latex(words)}")
    return {
        _NUMBERS: "\n".join(lines) + "\n",
        f"{METHODS}.md": "\n\n".join(map(escape_markdown, said)) + "\n",
        f"{METHODS}.tex": "\n\n".join(map(escape_latex, said)) + "\n",
    }


def letters(name: str) -> str:
    """A name as letters of a macro: `Qwen3-1.7B` -> `QwenThreeOneSevenB`."""
    words = re.findall(r"[A-Za-z]+|[0-9]", name)
    return "".join(_DIGITS[int(word)] if word.isdigit() else word[0].upper() + word[1:] for word in words)


# Where a number belongs, what it is, its LaTeX, and the comment beside it.
_Number = tuple[tuple[str, ...], str, str, str]


def _of_cells(scored: Scored) -> Iterator[_Number]:
    board, summary = scored.board, scored.statistics
    for (model, variant), cell in summary.cells.items():
        place, about = (scored.name, model, variant), f"{display_name(variant)} on {model}"
        table, final = board.cells[model, variant], cell.scores.get(Score.FINAL)
        best = escape_latex(table.state.value)
        if table.score is not None and table.state is SelectionState.SCORED:
            best = _number(table.score.mean)
        yield place, "Best", best, f"{about}: score of the best step, in percent, as in Table 1"
        low, middle, high = (final.low, final.value, final.high) if final else (None, None, None)
        if low is not None and high is not None:
            low, high = max(low, 0.0), min(high, 1.0)
        yield place, "Final", _number(middle), f"{about}: final mean, in percent"
        yield place, "FinalLow", _number(low), "lower end of its 95 % interval"
        yield place, "FinalHigh", _number(high), "upper end of it"
        yield place, "Seeds", str(cell.runs), "runs with a result"
        if (difference := cell.differences.get(Score.FINAL)) is not None:
            p = summary.adjusted.get((model, variant, Score.FINAL))
            yield from _of_difference(place, about, difference, p)
    for mean, p in with_holm(summary.overall if len(board.models) > 1 else ()):
        about = f"{display_name(mean.variant)}, mean over the models"
        yield from _of_difference((scored.name, "AllModels", mean.variant), about, mean, p)


def _of_difference(
    place: tuple[str, ...], about: str, difference: Difference, p: float | None
) -> Iterator[_Number]:
    estimate = difference.estimate
    word = word_of(estimate, SMALLEST, p is not None and p < TWO_SIDED_LEVEL)
    what = f"{about}: final mean minus that of {display_name(difference.against)}, in points"
    yield place, "Diff", _number(estimate.value, True), what
    yield place, "DiffLow", _number(estimate.low, True), "lower end of its 95 % interval"
    yield place, "DiffHigh", _number(estimate.high, True), "upper end of it"
    yield place, "DiffP", escape_latex(p_text(p)), "its two-sided p value with Holm's adjustment"
    yield place, "DiffWord", escape_latex(word.value), "what it shows"


def _number(fraction: float | None, signed: bool = False) -> str:
    text = points(fraction, signed).replace("\N{MINUS SIGN}", "-")
    return rf"\ensuremath{{{text}}}" if text[0] in "+-" else escape_latex(text)


def _sweep(scored: Scored) -> Iterator[str]:
    """What was run, how it is scored and how it was compared."""
    board, methods = scored.board, [display_name(variant) for variant in in_order(scored.board.variants)]
    results = [run for run in board.runs if run.is_result]
    collapsed = sum(run.state is SelectionState.COLLAPSE for run in results)
    seeds, *others = {tuple(run.seed for run in board.runs_of(*pair)) for pair in board.cells}
    counts = sorted({*map(len, [seeds, *others])})
    of_cell = f"{' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))} run{'s' * (counts[-1] > 1)}"
    numbers = [seed for seed in seeds if seed is not None]
    if not others and len(numbers) == len(seeds):
        of_cell = f"{counted(len(seeds), 'seed')} ({spanned(numbers)})"
    yield (
        f"Sweep {scored.name} has {counted(len(methods), 'method')} ({_listed(methods)}) on "
        f"{counted(len(board.models), 'model')} ({_listed(board.models)}), with {of_cell} of each method and model: "
        f"{len(results)} of {counted(len(board.runs), 'run')} {has(len(board.runs))} a result"
        + (f", and {collapsed} of them collapsed." if collapsed else ".")
    )
    if board.gaps:
        yield f"Without a result: {'; '.join(describe_gaps(board.gaps))}."
    tasks = {board.benchmarks_of(model) for model in board.models}
    over = ", the mean over the benchmarks of each model"
    if len(tasks) == 1:
        (task,) = tasks
        named = ", ".join(map(benchmark_name, task))
        over = f", the mean over {named}" if len(task) > 1 else f" on {named}" if task else ""
    yield f"The score is {score_name(board)} in percent{over}."
    stops = {(cell.model, cell.t_stop) for cell in board.cells.values() if cell.t_stop is not None}
    ends = dict(sorted(stops, key=lambda stop: board.models.index(stop[0])))
    if len(ends) < len(stops):
        yield "Runs on one model are scored over windows of different lengths."
    elif len(ends) == len(board.models):
        window = f"{next(iter(ends.values()))} steps"
        if len(set(ends.values())) > 1:
            listed = ", ".join(f"{end} on {model}" for model, end in ends.items())
            window = f"steps of training ({listed})"
        yield f"Runs are compared over the same window, the first {window}."
    # How the final means were compared with the baseline's.
    summary = scored.statistics
    unknown = {difference.estimate.unknown for difference in summary.final}
    tested = [difference.paired for difference in summary.final if difference.estimate.p_value() is not None]
    base = baseline_name(summary.baseline)
    if not tested:
        if ONE_RUN in unknown:
            yield f"Single runs are compared with {base}, without a test."
        return
    ways = {
        True: "in pairs of runs with the same seed (Student's t)",
        False: "as independent runs (Welch's test)",
    }
    how = " or ".join(way for paired, way in ways.items() if paired in tested)
    adjusted = f", with Holm's adjustment over {len(tested)} comparisons" if len(tested) > 1 else ""
    yield f"Final means are compared with {base} {how}; intervals are 95 % intervals."
    yield f"p values are two-sided{adjusted}; the level is {TWO_SIDED_LEVEL:g}."
    yield f"A difference whose interval lies within {100 * SMALLEST:g} point to both sides counts as not relevant."
    if ONE_RUN in unknown:
        yield "Comparisons with a single run on a side have no test."
    if NO_SPREAD in unknown:
        yield "Comparisons without any spread between runs have no test."


def _listed(names: Sequence[str]) -> str:
    """With semicolons if a name has a comma."""
    return ("; " if any("," in name for name in names) else ", ").join(names)
