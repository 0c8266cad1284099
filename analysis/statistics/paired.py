"""Differences between two variants on a model, and over models.

Runs with the same seed-dependent start are compared in pairs: if two or more seeds are shared, each pair gives a
difference in which the effect of the start cancels. Otherwise Welch's comparison uses all runs and assumes neither
equal numbers of runs nor equal variances. The design decides which of the two applies (`RunValues.paired`). Where the
seed draws the starts of all models alike, seeds are also the units over models (`over_models`). In a factorial sweep
each seed gives a contrast of its runs (`effects`), whether they share their start or not.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from statistics import fmean

import numpy as np
import pandas as pd

from cppo_lab.analysis.inputs import AxisPlace, Baseline, Value
from cppo_lab.analysis.statistics.estimate import (
    Estimate,
    Interval,
    SlopeEstimate,
    combine,
    estimate,
    holm,
    mean_of,
    probability_of_improvement,
)
from cppo_lab.analysis.statistics.values import FinishedRuns, Measure, Score, by_seed, cell_runs


@dataclass(frozen=True)
class Difference:
    """`variant` minus `against` on `model` (empty for the mean over models, and of errors and collapses, whose
    comparison has it). `paired`: by seed.

    `ours` and `theirs` are the numbers of runs in the pairs, or else of all runs; `improvement` is P(a run of ours
    scores higher) of all runs, None where single runs are not compared.
    """

    model: str
    variant: str
    against: str
    score: Measure
    estimate: Estimate
    paired: bool
    ours: int
    theirs: int
    improvement: Interval | None


def difference_of(
    ours: Mapping[int | None, float], theirs: Mapping[int | None, float], by_pairs: bool = True
) -> tuple[Estimate, bool] | None:
    """The difference of two cells (seed -> score), and whether it is paired; None if either is empty.

    `by_pairs`: pair the common seeds if there are two or more. `n` of the estimate counts pairs, or else the runs of
    the smaller side.
    """
    if not ours or not theirs:
        return None
    shared = [seed for seed in ours if seed in theirs]
    if (by_pairs and len(shared) > 1) or (len(shared) == 1 and len(ours) == len(theirs) == 1):
        return mean_of([ours[seed] - theirs[seed] for seed in shared]), True
    welch = combine([mean_of(list(values.values())) for values in (ours, theirs)], (1.0, -1.0))
    return replace(welch, n=min(len(ours), len(theirs))), False


def difference(
    runs: FinishedRuns, model: str, variant: str, against: str, score: Measure
) -> Difference | None:
    """`variant` minus `against` on a model; None if either has no finished run."""
    ours, theirs = by_seed(runs, model, variant, score), by_seed(runs, model, against, score)
    by_design = all(run.paired for name in (variant, against) for run in cell_runs(runs, model, name))
    compared = difference_of(ours, theirs, by_design)
    if compared is None:
        return None
    sides = ([np.array(list(values.values()))] for values in (ours, theirs))
    improvement = probability_of_improvement(*sides)
    estimate, paired = compared
    if isinstance(score, Score):  # two fractions differ by 1 at most
        estimate = replace(estimate, most=1.0)
    n, m = (estimate.n, estimate.n) if paired else (len(ours), len(theirs))
    return Difference(model, variant, against, score, estimate, paired, n, m, improvement)


def with_holm(differences: Sequence[Difference]) -> list[tuple[Difference, float | None]]:
    """Each with its two-sided p value, with Holm's adjustment over all that have a p value."""
    p_values = [difference.estimate.p_value() for difference in differences]
    adjusted = iter(holm([p for p in p_values if p is not None]))
    return [
        (difference, None if p is None else next(adjusted))
        for difference, p in zip(differences, p_values, strict=True)
    ]


def over_models(parts: Sequence[Difference], weights: Sequence[float], runs: FinishedRuns) -> Estimate:
    """The weighted sum of differences between the same two variants, one or more, of a model each.

    They are independent, unless a seed draws the starts of all models alike: then each seed that all models share gives
    a weighted sum.
    """
    sides = ((part.model, name) for part in parts for name in (part.variant, part.against))
    if all(run.common for side in sides for run in cell_runs(runs, *side)):
        leads = []  # of the seeds that both sides have; the values of ours if there is no other side
        for part in parts:
            ours, theirs = (
                by_seed(runs, part.model, name, part.score) for name in (part.variant, part.against)
            )
            leads.append(_minus(ours, theirs) if part.against else ours)
        table = pd.DataFrame(leads).dropna(axis="columns")
        sums = [math.fsum(column) for column in table.mul(list(weights), axis="index").to_numpy().T]
        if sums:  # of a single one nothing is known: the models are no independent runs
            return replace(mean_of(sums), n=len(sums) * len(parts))
    return combine([part.estimate for part in parts], weights)


def mean_difference(parts: Sequence[Difference], runs: FinishedRuns) -> Difference:
    """The mean over models of differences between the same two variants, one or more."""
    value, first = over_models(parts, [1 / len(parts)] * len(parts), runs), parts[0]
    sides = (
        [np.array(list(by_seed(runs, part.model, variant, first.score).values())) for part in parts]
        for variant in (first.variant, first.against)
    )
    improvement = probability_of_improvement(*sides) if first.against else None
    return replace(_sum_of(parts), estimate=replace(value, most=first.estimate.most), improvement=improvement)


def _sum_of(parts: Sequence[Difference]) -> Difference:
    """The first of the parts, over the models: with the runs of all."""
    return replace(
        parts[0],
        model="",
        paired=all(part.paired for part in parts),
        ours=sum(part.ours for part in parts),
        theirs=sum(part.theirs for part in parts),
        improvement=None,
    )


# Whether a lead grows with the response length: its slope over the models of a sweep.

FEWEST_MODELS = 3  # models: two always lie on a line
TOO_FEW = "two models do not show how much leads scatter around a line"
_ALIKE = 1e-6  # lengths closer than this share of a doubling are equal


def slope_weights(lengths: Sequence[float]) -> tuple[float, ...] | None:
    """The least-squares weights of values at these lengths for the slope over log2 of the length; None if all lengths
    are equal.
    """
    places = [math.log2(length) for length in lengths]
    mean = math.fsum(places) / len(places) if places else 0.0
    squares = math.fsum((place - mean) ** 2 for place in places)
    return tuple((place - mean) / squares for place in places) if squares > _ALIKE**2 else None


def slope(parts: Sequence[Difference], lengths: Mapping[str, float], runs: FinishedRuns) -> Difference | None:
    """The slope of the differences between two variants on each model over log2 of the models' `lengths` (tokens); None
    if all models have the same length. `n` is the number of models.

    Models differ in more than response length, so leads scatter around a line even if all are known exactly. The
    interval is the wider of two: by the spread over seeds (`over_models`), and by the residuals of the line, with the
    number of models less 2 as degrees of freedom. The first is too narrow where leads differ between models for other
    reasons, the second where a model's lead is far less certain than the others'. There is none for fewer than
    FEWEST_MODELS models.
    """
    weights = slope_weights([lengths[part.model] for part in parts])
    if weights is None:
        return None
    seeds, count = over_models(parts, weights, runs), len(parts)
    values = [part.estimate.value for part in parts]
    unknown = seeds.unknown or (TOO_FEW if count < FEWEST_MODELS else "")
    if unknown:
        return replace(_sum_of(parts), estimate=SlopeEstimate(seeds.value, count, unknown=unknown))
    value = math.fsum(weight * of_model for weight, of_model in zip(weights, values, strict=True))
    mean, squares = fmean(values), math.fsum(weight**2 for weight in weights)
    # A weight is the place of a model from the mean place, times the sum of the squared weights.
    residuals = (
        of_model - mean - value * weight / squares for weight, of_model in zip(weights, values, strict=True)
    )
    variance = math.fsum(residual**2 for residual in residuals) / (count - 2)
    models = estimate(value, count, math.sqrt(variance * squares), count - 2)
    wider = max(seeds, models, key=lambda estimate: estimate.half or 0.0)
    of_line = SlopeEstimate(seeds.value, count, wider.error, wider.degrees, seeds=seeds, models=models)
    return replace(_sum_of(parts), estimate=of_line)


# The effects of a factorial sweep: contrasts of each seed's runs, with the interval of their mean over seeds.

Cells = Mapping[tuple[Value, ...], Mapping[int | None, float]]  # values on the axes -> seed -> score
Change = tuple[int, Value, Value]  # an axis by its place, the value before and the value after


@dataclass(frozen=True)
class Effect:
    """What changes of axes do to a score. One: the difference that it makes; two: by how much the second makes the
    difference of the first larger; none: the mean over all settings. `against`: the scores are leads over this variant
    at the same settings; "": they are the group's own.
    """

    model: str
    group: str
    against: str
    changes: tuple[Change, ...]


def effects(
    runs: FinishedRuns,
    model: str,
    places: Sequence[AxisPlace],
    baseline: Baseline,
    score: Measure,
) -> dict[Effect, Estimate]:
    """The main effects and the interactions of two axes on a model, by group of the variants at `places`, which are
    declared there; and those on each group's lead over a `baseline` with axis values. Each seed gives a contrast, the
    mean over the settings of the other axes at which all its cells are declared. A seed that lacks one of these runs is
    left out, and so is an effect without seeds.
    """
    groups: dict[tuple[str, str], dict[tuple[Value, ...], Mapping[int | None, float]]] = defaultdict(dict)
    for place in places:
        scores = by_seed(runs, model, place.variant, score)
        groups[place.group, ""][place.values] = scores
        if baseline.matched is not None and (against := baseline.of(place.variant)) is not None:
            lead = _minus(scores, by_seed(runs, model, against, score))
            groups[place.group, baseline.name][place.values] = lead
    estimates = {}
    for (group, against), cells in groups.items():
        of_axes = [_changes(place, values) for place, values in enumerate(zip(*cells, strict=True))]
        for number in range(0 if against else 1, 3):
            # A difference of fractions, or of such differences.
            most = 2.0 ** (number - (not against)) if isinstance(score, Score) else math.inf
            for changes in (each for chosen in combinations(of_axes, number) for each in product(*chosen)):
                if contrasts := _contrasts(cells, changes):
                    effect = Effect(model, group, against, changes)
                    estimates[effect] = replace(mean_of(contrasts), most=most)
    return estimates


def _changes(place: int, values: Sequence[Value]) -> list[Change]:
    """Of numbers from the lowest to the highest, else from the first value to each of the others."""
    first, *later = dict.fromkeys(values)
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if later and len(numbers) == len(values):
        return [(place, min(numbers), max(numbers))]
    return [(place, first, value) for value in later]


def _contrasts(cells: Cells, changes: Sequence[Change]) -> list[float]:
    """One for each seed."""
    for place, before, after in changes:
        cells = {
            values: _minus(cells[changed], scores)
            for values, scores in cells.items()
            if values[place] == before
            and (changed := (*values[:place], after, *values[place + 1 :])) in cells
        }
    seeds = set.intersection(*map(set, cells.values())) if cells else set()
    return [fmean(scores[seed] for scores in cells.values()) for seed in sorted(seeds, key=str)]


def _minus(ours: Mapping[int | None, float], theirs: Mapping[int | None, float]) -> dict[int | None, float]:
    return {seed: value - theirs[seed] for seed, value in ours.items() if seed in theirs}
