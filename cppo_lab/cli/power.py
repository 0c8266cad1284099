"""`cppo plan SWEEP --power`: what the planned runs can decide, before any of them is trained."""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from cppo_lab import schema
from cppo_lab.core_records import core_names, core_of, miniature_of
from cppo_lab.errors import UserError

if TYPE_CHECKING:
    from cppo_lab.analysis.statistics.claims import Claim
    from cppo_lab.analysis.statistics.planned_power import PlannedPower
    from cppo_lab.sweep.plan import Plan

# Standard deviations over seeds where the user names none, in points: of the paper's models.
DEVIATIONS = (1.0, 2.0)
# Percent, of the log ratio of errors of one seed; docs/statistics.md has those of the exact study.
ERROR_DEVIATIONS = (30.0, 60.0)
Means = dict[str, dict[str, float]]  # model -> variant -> score, a fraction


@dataclass(frozen=True)
class PowerQuestion:
    """Standard `deviations` of runs over seeds (empty: the usual ones), and the lead `effect` of each claim's methods
    over the next ones, in points. None: the paper's final means; for a sweep's own hypotheses, twice the smallest
    advantage that counts. `correlation`: of runs of the same seed. `error_deviations`: of the log ratio of errors, in
    percent.
    """

    deviations: tuple[float, ...]
    effect: float | None
    correlation: float
    error_deviations: tuple[float, ...]

    def deviations_of(self, core: str, own: bool) -> tuple[float, ...]:
        """The deviations to assume for the paper's claims, or for a sweep's `own` hypotheses."""
        return self.deviations or (core_of(core).deviations if own else DEVIATIONS)


def parse_question(
    deviation: str | None, effect: str | None, correlation: str | None, error_deviation: str | None
) -> PowerQuestion:
    """Raises UserError for what is no list of positive numbers, or no number."""
    try:
        found = float(correlation or 0)
    except ValueError:
        found = float("nan")
    if not 0 <= found < 1:
        raise UserError(f"--correlation={correlation}: must be a number of at least 0 and below 1")
    return PowerQuestion(
        deviations=_deviations("--deviation", deviation),
        effect=None if effect is None else _points("--effect", effect),
        correlation=found,
        error_deviations=_deviations("--error-deviation", error_deviation) or ERROR_DEVIATIONS,
    )


def _deviations(option: str, text: str | None) -> tuple[float, ...]:
    found = () if text is None else tuple(_points(option, one) for one in text.split(","))
    if any(value <= 0 for value in found):
        raise UserError(f"{option}={text}: standard deviations must be above 0")
    return found


def _points(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) <= 100:
        raise UserError(f"{option}={text}: must be a number of points between -100 and 100")
    return value


def power_of(plan: "Plan", question: PowerQuestion) -> "list[PlannedPower]":
    """The power of each claim that the plan's sweeps test, for each deviation: first the sweeps' own hypotheses.

    Raises UserError if there is none, or nothing says what the true scores may be.
    """
    from cppo_lab.analysis.statistics.claims import Kind, claims_about, pairs
    from cppo_lab.analysis.statistics.planned_power import Design, can_plan, planned_power
    from cppo_lab.analysis.statistics.trend import slope_weights
    from cppo_lab.cli.stated import score_claims

    cells = {sweep.name: planned_cells(plan, sweep.name) for sweep in plan.sweeps}
    variants = {
        name: [*dict.fromkeys(one for model in found.values() for one in model)]
        for name, found in cells.items()
    }
    own = [one for sweep in plan.sweeps for one in score_claims(sweep, plan.is_study)]
    found = _errors_power(plan, question)
    for claim in [*own, *claims_about(variants, plan.is_study)]:
        if not can_plan(claim):
            continue
        planned = cells[claim.sweep] if claim.seeds is None else planned_cells(plan, claim.sweep, claim.seeds)
        lengths = _lengths(plan, claim.sweep)
        if claim in own:
            lead = claim.lead if question.effect is None else question.effect / 100
            means = _means_with(claim, planned, lead, lengths)
        elif question.effect is None:
            means = _paper_means(plan, claim.sweep)
        elif claim.kind is Kind.TREND:
            continue  # one lead for all lengths implies no growth
        else:
            means = _means_with(claim, planned, question.effect / 100, lengths)
        means = {
            model: {variant: means[model][variant] for variant in planned[model] if variant in means[model]}
            for model in planned
            if model in means
        }
        compared = [model for model, of_model in means.items() if _has_pair(claim, of_model)]
        if not compared:
            continue
        if claim.kind is Kind.TREND and slope_weights([lengths[model] for model in compared]) is None:
            continue  # no length to grow with
        seeds = min(
            planned[model][name]
            for model, of_model in means.items()
            for pair in pairs(claim, tuple(of_model))
            for name in pair
            if name in planned[model]
        )
        paired = plan.is_paired(claim.sweep)
        common = paired and core_of(plan.core).seed_fixes_start
        design = Design(paired, common, question.correlation, lengths)
        found += [
            planned_power(claim, means, value / 100, seeds, design)
            for value in question.deviations_of(plan.core, claim in own)
        ]
    if not found:
        raise UserError(_nothing_to_plan(plan))
    return found


def _errors_power(plan: "Plan", question: PowerQuestion) -> "list[PlannedPower]":
    """The power of the hypotheses about the surrogate's error."""
    from cppo_lab.analysis.exact_claims import planned_error_power
    from cppo_lab.analysis.exact_study import without_horizon
    from cppo_lab.analysis.statistics.planned_power import PlannedPower
    from cppo_lab.cli.stated import error_claims

    found = []
    for claim in (claim for sweep in plan.sweeps for claim in error_claims(sweep, plan.is_study)):
        cells = [
            (model, variant, count)
            for model, counts in planned_cells(plan, claim.sweep, claim.seeds).items()
            for variant, count in counts.items()
            if claim.is_tested_by(model, variant, claim.seeds[0])
        ]
        if {without_horizon(variant) for _, variant, _ in cells} < {*claim.variants}:
            continue
        models = 1 if claim.over_models else len({model for model, _, _ in cells})
        comparisons = len(claim.better) * len(claim.than) * models
        seeds = min(count for _, _, count in cells)
        for value in question.error_deviations:
            power = planned_error_power(claim, comparisons, value / 100, seeds)
            found.append(
                PlannedPower(claim, comparisons, value / 100, seeds, power.power, power.needed.count)
            )
    return found


def _nothing_to_plan(plan: "Plan") -> str:
    """Why no claim has a power, and the remedy."""
    tests = [seed for sweep in plan.sweeps for one in sweep.hypotheses.values() for seed in one.test_seeds]
    if tests:
        seeds = ",".join(str(seed) for seed in dict.fromkeys(tests))
        trends = any(one.models == "trend" for sweep in plan.sweeps for one in sweep.hypotheses.values())
        return (
            f"{plan.name}: no run that tests its hypotheses is planned: plan their variants with seed={seeds}"
            + (", and a trend on models of different response lengths" if trends else "")
        )
    return (
        f"{plan.name}: the paper has no claim with scores about its variants: give the lead to assume with "
        "--effect=POINTS, or a sweep of the paper (`cppo plan main --power`)"
    )


def _has_pair(claim: "Claim", of_model: Mapping[str, float]) -> bool:
    """Whether both sides of a comparison of the claim are planned on a model."""
    from cppo_lab.analysis.statistics.claims import pairs

    return any({*pair} <= of_model.keys() for pair in pairs(claim, tuple(of_model)))


def planned_cells(
    plan: "Plan", sweep: str, seeds: Collection[int] | None = None
) -> dict[str, dict[str, int]]:
    """Model -> variant -> number of planned runs of a sweep (with these seeds; None: any)."""
    found: dict[str, Counter[str]] = {}
    for run in plan.runs:
        if sweep in run.variants and (seeds is None or run.spec.seed in seeds):
            found.setdefault(run.spec.model.name, Counter())[run.variants[sweep]] += 1
    return {model: dict(counts) for model, counts in found.items()}


def _lengths(plan: "Plan", sweep: str) -> dict[str, float]:
    """Model -> the longest response, in tokens: of the mean one nothing is known before training."""
    return {
        run.spec.model.name: run.spec.rollout.max_response_length
        for run in plan.runs
        if sweep in run.variants
    }


def _means_with(
    claim: "Claim",
    planned: Mapping[str, Mapping[str, int]],
    effect: float,
    lengths: Mapping[str, float],
) -> Means:
    """Each tier of the claim leads the next one, and the last one those without a tier, by `effect`; for a trend, by
    `effect` for each doubling of the response length (tokens).
    """
    from cppo_lab.analysis.statistics.claims import Kind

    step = 0.0 if claim.kind is Kind.EQUIVALENCE else effect
    level = {one: step * (len(claim.tiers) - i) for i, tier in enumerate(claim.tiers) for one in tier}
    doublings = {model: math.log2(lengths[model]) if claim.kind is Kind.TREND else 1.0 for model in planned}
    return {
        model: {one: doublings[model] * level.get(one, 0.0) for one in variants}
        for model, variants in planned.items()
    }


def _paper_means(plan: "Plan", sweep: str) -> Means:
    """The paper's final means for the models of the plan: each stands for the one at its place among the published."""
    from cppo_lab.analysis.statistics.claims import named
    from cppo_lab.tracking.reference_curves import reference_runs

    metric = schema.validation_metric(schema.MEAN)
    [declared] = [one for one in plan.sweeps if one.name == sweep]
    originals = [
        models for core, models in declared.models.items() if core in core_names() and not miniature_of(core)
    ]
    if plan.core not in declared.models or len(originals) != 1:
        return {}
    stands_for = dict(zip(declared.models[plan.core], originals[0], strict=False))
    found: Means = {}
    for run in reference_runs():
        if sweep not in run.sweeps:
            continue
        late = [value for step, value in run.points[metric].items() if step > schema.late_after(run.t_stop)]
        # A run that the paper ended early is at its last score.
        score = fmean(late) if late else run.points[metric][max(run.points[metric])]
        slug = run.model.lower().replace("-", "_").replace(".", "_")
        for model, original in stands_for.items():
            if original == slug:
                variants = tuple(planned_cells(plan, sweep).get(model, ()))
                found.setdefault(model, {})[named(run.sweeps[sweep], variants)] = score
    return found
