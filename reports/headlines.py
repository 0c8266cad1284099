"""The findings in plain words, each derived from the numbers of the tables."""

from dataclasses import dataclass

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import SelectionState, Stat
from cppo_lab.reports.names import display_name, in_order, points


@dataclass(frozen=True)
class Headline:
    """The findings about one model (`about`), or about all of them; `sentences` in reading order."""

    about: str
    sentences: tuple[str, ...]


def headlines(board: Scoreboard) -> tuple[Headline, ...]:
    """The findings over all models, then for each model: the best variant and collapses."""
    ranked = {model: _ranked(board, model) for model in board.models}
    overall = _overall(ranked)
    if board.gaps:
        overall.append(
            f"{len(board.gaps)} of {len(board.runs)} runs have no result yet: everything marked † will change."
        )
    findings = [Headline("All models", tuple(overall))]
    for model, cells in ranked.items():
        sentences = (*_best(cells), *_gain(board, model, cells), *_collapses(board, model))
        findings.append(Headline(model, sentences))
    return tuple(entry for entry in findings if entry.sentences)


def _ranked(board: Scoreboard, model: str) -> list[tuple[str, Stat]]:
    """(variant, score) of the cells of a model that compete, best first."""
    competing = [
        (cell.variant, cell.score)
        for (name, _), cell in board.cells.items()
        if name == model
        and cell.state is SelectionState.SCORED
        and not cell.provisional
        and cell.score is not None
    ]
    return sorted(competing, key=lambda entry: (-entry[1].mean, entry[0]))


def _overall(ranked: dict[str, list[tuple[str, Stat]]]) -> list[str]:
    contested = [cells for cells in ranked.values() if len(cells) > 1]
    if len(contested) < 2:
        return []
    first = [cells[0][0] for cells in contested]
    winner = max(sorted(set(first)), key=first.count)
    margins = [cells[0][1].mean - cells[1][1].mean for cells in contested if cells[0][0] == winner]
    between = " to ".join(dict.fromkeys((points(min(margins)), points(max(margins)))))
    return [
        f"{display_name(winner)} has the highest score on {first.count(winner)} of {len(contested)} models, "
        f"{between} points above the runner-up."
    ]


def _best(cells: list[tuple[str, Stat]]) -> list[str]:
    if len(cells) < 2:
        return []
    highest = points(cells[0][1].mean)
    leaders = [display_name(name) for name, stat in cells if points(stat.mean) == highest]
    if len(leaders) > 1:
        return [f"{', '.join(leaders[:-1])} and {leaders[-1]} share the highest score, {highest}."]
    (best, score), (second, runner_up) = cells[:2]
    sentence = (
        f"{display_name(best)} scores {points(score.mean)}, {points(score.mean - runner_up.mean)} points "
        f"above {display_name(second)} ({points(runner_up.mean)})"
    )
    if score.std is not None and runner_up.std is not None:
        sentence += (
            f"; over {score.n} and {runner_up.n} seeds their standard deviations are "
            f"{points(score.std)} and {points(runner_up.std)}"
        )
    return [sentence + "."]


def _gain(board: Scoreboard, model: str, cells: list[tuple[str, Stat]]) -> list[str]:
    """The gain of the best variant over the untrained model, if step 0 was evaluated."""
    return [
        f"The model starts at {points(cell.base.mean)} (step 0); {display_name(cell.variant)} gains "
        f"{points(cell.gain.mean)} points."
        for cell in [board.cells[model, variant] for variant, _ in cells[:1]]
        if cell.base is not None and cell.gain is not None
    ]


def _collapses(board: Scoreboard, model: str) -> list[str]:
    """A sentence for a variant with a single run; counts for variants with several seeds."""
    counts, sentences = [], []
    for variant in in_order(board.variants):
        runs = board.runs_of(model, variant)
        fallen = [run for run in runs if run.state is SelectionState.COLLAPSE]
        if len(runs) > 1 and fallen:
            counts.append(f"{display_name(variant)} {len(fallen)} of {len(runs)}")
        elif fallen and (best := fallen[0].choice.score) is not None:
            choice = fallen[0].choice
            stopped = ", where its training was stopped" if fallen[0].status == schema.COLLAPSED else ""
            sentences.append(
                f"{display_name(variant)} collapses: its best is {points(best)} at step {choice.step}, and "
                f"it ends at {points(choice.last_score or 0.0)} at step {choice.last_step}{stopped}."
            )
    if counts:
        sentences.append(f"Runs that collapsed: {', '.join(counts)}.")
    return sentences
