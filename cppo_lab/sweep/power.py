"""`cppo plan SWEEP --power`: what the planned runs can decide, before any of them is trained.

A sweep with hypotheses, or with claims of the paper, is asked for the power of each. Any other is asked for the
difference between two methods that its seeds can show.
"""

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import fmean, variance

import numpy as np

from cppo_lab import schema
from cppo_lab.analysis.statistics.claims import Claim, Kind, claims_about, named, pairs
from cppo_lab.analysis.statistics.exact_study import without_horizon
from cppo_lab.analysis.statistics.paired import slope_weights
from cppo_lab.analysis.statistics.power import (
    MOST_SEEDS,
    POWER,
    Design,
    PlannedPower,
    fewest,
    planned_error_power,
    planned_power,
    shown_leads,
)
from cppo_lab.core_records import core_names, core_of
from cppo_lab.errors import UserError
from cppo_lab.files import runs_folder
from cppo_lab.runs.folder import read_status
from cppo_lab.sweep.claims import claims_of
from cppo_lab.sweep.columns import aligned
from cppo_lab.sweep.cost import Cost
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking.reference import reference_runs

Costs = Mapping[str, Cost | None]

# Standard deviations over seeds where the user names none, in points: of the paper's models.
DEVIATIONS = (1.0, 2.0)
# Percent, of the log ratio of errors of the same seed; docs/statistics.md has those of the exact study.
ERROR_DEVIATIONS = (30.0, 60.0)
TABLE_1 = "table1"  # as --effect
Means = dict[str, dict[str, float]]  # model -> variant -> score, a fraction


@dataclass(frozen=True)
class PowerQuestion:
    """Standard `deviations` of runs over seeds (empty: the usual ones), and the lead `effect` of each claim's methods
    over the next tier, in points. None: the paper's final means (with `best_steps` the scores of its Table 1); for a
    sweep's hypotheses, twice the smallest advantage that counts. `correlation`: of runs of the same seed.
    `error_deviations`: of the log ratio of errors, in percent.
    """

    deviations: tuple[float, ...]
    effect: float | None
    correlation: float
    error_deviations: tuple[float, ...]
    best_steps: bool = False

    def deviations_of(self, core: str, by_core: bool) -> tuple[float, ...]:
        """The deviations to assume: those of the paper's models, or (`by_core`) those of a core's runs."""
        return self.deviations or (core_of(core).deviations if by_core else DEVIATIONS)


def parse_question(
    deviation: str | None, effect: str | None, correlation: str | None, error_deviation: str | None
) -> PowerQuestion:
    """Raises UserError for what is no list of positive numbers, or no number."""
    try:
        coefficient = float(correlation or 0)
    except ValueError:
        coefficient = float("nan")
    if not 0 <= coefficient < 1:
        raise UserError(f"--correlation={correlation}: must be a number of at least 0 and below 1")
    return PowerQuestion(
        deviations=_deviations("--deviation", deviation),
        effect=None if effect is None or effect == TABLE_1 else _points("--effect", effect),
        best_steps=effect == TABLE_1,
        correlation=coefficient,
        error_deviations=_deviations("--error-deviation", error_deviation) or ERROR_DEVIATIONS,
    )


def _deviations(option: str, text: str | None) -> tuple[float, ...]:
    deviations = () if text is None else tuple(_points(option, part) for part in text.split(","))
    if any(value <= 0 for value in deviations):
        raise UserError(f"{option}={text}: standard deviations must be above 0")
    return deviations


def _points(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) <= 100:
        other = f", or {TABLE_1}" if option == "--effect" else ""
        raise UserError(f"{option}={text}: must be a number of points between -100 and 100{other}")
    return value


def power_of(plan: Plan, question: PowerQuestion) -> list[PlannedPower]:
    """The power of each claim that the plan's sweeps test, for each deviation: first the sweeps' hypotheses. None
    where nothing claims anything about their scores.

    Raises UserError if no run that tests their hypotheses is planned.
    """

    cells = {sweep.name: planned_cells(plan, sweep.name) for sweep in plan.sweeps}
    variants = {
        name: [*dict.fromkeys(variant for counts in models.values() for variant in counts)]
        for name, models in cells.items()
    }
    hypotheses = [claim for sweep in plan.sweeps for claim in claims_of(plan, sweep, False)]
    of_paper = cache(lambda sweep: _paper_means(plan, sweep, cells[sweep], question.best_steps))
    powers: list[PlannedPower] = []
    for claim in [*hypotheses, *claims_about(variants, plan.is_study)]:
        if claim.of_errors:
            powers += _errors_power(plan, claim, question)
        if not claim.compares_scores:
            continue
        planned = cells[claim.sweep] if claim.seeds is None else planned_cells(plan, claim.sweep, claim.seeds)
        # The mean length of responses is unknown before training.
        lengths: dict[str, float] = {
            run.spec.model.name: run.spec.rollout.max_response_length
            for run in plan.runs
            if claim.sweep in run.variants
        }
        if question.effect is None and claim not in hypotheses:
            means = of_paper(claim.sweep)
        elif claim.kind is Kind.TREND and claim not in hypotheses:
            continue  # the same lead for all lengths implies no growth
        else:
            lead = claim.lead if question.effect is None else question.effect / 100
            means = _means_with(claim, planned, lead, lengths)
        means = {
            model: {variant: means[model][variant] for variant in planned[model] if variant in means[model]}
            for model in planned
            if model in means
        }
        # Both sides of a comparison have to be planned on a model.
        compared = [
            model
            for model, of_model in means.items()
            if any({*pair} <= of_model.keys() for pair in pairs(claim, tuple(of_model)))
        ]
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
        powers += [
            planned_power(claim, means, value / 100, seeds, design)
            for value in question.deviations_of(plan.core, claim in hypotheses)
        ]
    if not powers and hypotheses:
        tests = dict.fromkeys(seed for claim in hypotheses for seed in claim.seeds or ())
        trends = any(claim.kind is Kind.TREND for claim in hypotheses)
        raise UserError(
            f"{plan.name}: no run that tests its hypotheses is planned: plan their variants with "
            f"seed={','.join(map(str, tests))}"
            + (", and a trend on models of different response lengths" if trends else "")
        )
    return powers


def _errors_power(plan: Plan, claim: Claim, question: PowerQuestion) -> list[PlannedPower]:
    """The power of a hypothesis about the surrogate's error."""
    seeds = claim.seeds or ()
    cells = [
        (model, without_horizon(variant), count)
        for model, counts in planned_cells(plan, claim.sweep, seeds).items()
        for variant, count in counts.items()
        if claim.is_tested_by(model, variant, seeds[0])
    ]
    asked = pairs(claim, ())
    if {variant for _, variant, _ in cells} < {name for pair in asked for name in pair}:
        return []
    comparisons = len(asked) * (1 if claim.over_models else len({model for model, _, _ in cells}))
    fewest = min(count for _, _, count in cells)
    return [
        planned_error_power(claim, comparisons, value / 100, fewest) for value in question.error_deviations
    ]


def planned_cells(plan: Plan, sweep: str, seeds: Collection[int] | None = None) -> dict[str, dict[str, int]]:
    """Model -> variant -> number of planned runs of a sweep (with these seeds; None: any)."""
    cells: dict[str, Counter[str]] = {}
    for run in plan.runs:
        if sweep in run.variants and (seeds is None or run.spec.seed in seeds):
            cells.setdefault(run.spec.model.name, Counter())[run.variants[sweep]] += 1
    return {model: dict(counts) for model, counts in cells.items()}


def _means_with(
    claim: Claim,
    planned: Mapping[str, Mapping[str, int]],
    effect: float,
    lengths: Mapping[str, float],
) -> Means:
    """Each tier of the claim leads the next tier, and the last tier the variants without any, by `effect`; for a trend,
    by `effect` for each doubling of the response length (tokens).
    """

    step = 0.0 if claim.kind is Kind.EQUIVALENCE else effect
    level = {variant: step * (len(claim.tiers) - i) for i, tier in enumerate(claim.tiers) for variant in tier}
    doublings = {model: math.log2(lengths[model]) if claim.kind is Kind.TREND else 1.0 for model in planned}
    return {
        model: {variant: doublings[model] * level.get(variant, 0.0) for variant in variants}
        for model, variants in planned.items()
    }


def _paper_means(plan: Plan, sweep: str, cells: Mapping[str, Mapping[str, int]], best_steps: bool) -> Means:
    """The paper's final means, or best steps, for the models of the plan: each stands for the published model at its
    place.
    """
    metric = schema.validation_metric(schema.MEAN)
    declared = plan.parts[sweep].sweep
    originals = [
        models
        for core, models in declared.models.items()
        if core in core_names() and not core_of(core).miniature
    ]
    if plan.core not in declared.models or len(originals) != 1:
        return {}
    stands_for = dict(zip(declared.models[plan.core], originals[0], strict=False))
    means: Means = {}
    for run in reference_runs():
        if sweep not in run.sweeps:
            continue
        curve = run.points[metric]
        late = [value for step, value in curve.items() if step > schema.late_after(run.t_stop)]
        # A run that the paper ended early is at its last score.
        score = fmean(late) if late else curve[max(curve)]
        if best_steps:
            score = max(value for step, value in curve.items() if step <= run.t_stop)
        slug = run.model.lower().replace("-", "_").replace(".", "_")
        for model, original in stands_for.items():
            if original == slug:
                variants = tuple(cells.get(model, ()))
                means.setdefault(model, {})[named(run.sweeps[sweep], variants)] = score
    return means


NARROWEST = 24  # columns for a claim, however narrow the terminal is


def power_text(
    plan: Plan,
    powers: Sequence[PlannedPower],
    question: PowerQuestion,
    costs: Costs,
    columns: int | None = None,
) -> str:
    """The powers as a table for people, and what they rest on; `costs` of the plan's runs, by id. `columns`: of the
    terminal; None: as many as the text takes.
    """
    unit, needed = _hours_needed(plan, powers, costs)
    heading = f"{unit} for it"
    rows = [["claim", "comparisons", "seeds", "deviation", "power", "seeds for 80 %", heading]]
    for planned, hours in zip(powers, needed, strict=True):
        seeds = str(planned.seeds)
        rows.append(
            [
                planned.claim.text,
                str(planned.comparisons),
                seeds if planned.expected is None else f"{planned.expected:.1f} of {seeds}",
                f"{100 * planned.deviation:g}{' %' if planned.claim.of_errors else ''}",
                f"{planned.power:.2f}",
                _needed(planned.needed),
                "" if hours is None else f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}",
            ]
        )
    rows = [row if unit else row[:-1] for row in rows]
    if columns is not None:
        others = sum(2 + max(map(len, column)) for column in [*zip(*rows, strict=True)][1:])
        lines = []
        for claim, *cells in rows:
            first, *more = textwrap.wrap(claim, max(columns - others, NARROWEST)) or [""]
            lines += [[first, *cells], *([line, *[""] * len(cells)] for line in more)]
        rows = lines
    table = aligned(rows[0], rows[1:], right={*rows[0]} - {"claim"})
    note = "Power: the probability that the planned seeds support the claim."
    if scores := [planned for planned in powers if not planned.claim.of_errors]:
        effect = (
            f"a lead of {question.effect:g} point{'s' * (question.effect != 1)}"
            if question.effect is not None
            else _default_effects(scores, question.best_steps)
        )
        note += (
            f" For claims about scores, if the truth is {effect} (none for an equivalence) and runs of one method "
            "have the given standard deviation over seeds (points), those of a seed with a correlation of "
            f"{question.correlation:g}; by simulation."
        )
    if len(scores) < len(powers):
        note += (
            " For claims about the surrogate's error, if the true advantage is twice the smallest that counts (none "
            "for an equivalence) and the log ratio of errors has the given standard deviation over seeds; by "
            "Student's t."
        )
    if any(planned.expected is not None for planned in powers):
        note += (
            " A sequential claim is judged after each seed until that decides it: its seeds are the mean number, of "
            "the most; the seeds for 80 % are those of a claim that is judged once."
        )
    if any(planned.claim.after is not None for planned in powers):
        note += " A claim that is tested only after another is planned as if the other were supported."
    note += f" {heading}: of all runs that the claim compares, with so many seeds." if unit else ""
    note += " Claims about collapses and other quantities than scores are not simulated."
    if columns is not None:
        note = textwrap.fill(note, columns)
    return f"{table}\n\n{note}"


def _default_effects(powers: Sequence[PlannedPower], best_steps: bool) -> str:
    """What is assumed without `--effect`. Only the hypotheses of a sweep file name the seeds that test them."""
    hypotheses = [planned for planned in powers if planned.claim.seeds is not None]
    lead = "a lead of twice the smallest advantage that counts"
    if len(hypotheses) == len(powers):
        return lead
    paper = "the paper's final means, which are not the best steps of its Table 1"
    if best_steps:
        paper = "the paper's Table 1, whose best steps are taken as if they were final means"
    return paper + (f" (for the sweep's own hypotheses {lead})" if hypotheses else "")


def _needed(seeds: int | None) -> str:
    return f"over {MOST_SEEDS}" if seeds is None else str(seeds)


def _hours_needed(plan: Plan, powers: Sequence[PlannedPower], costs: Costs) -> tuple[str, list[float | None]]:
    """The unit in which runs cost, empty where the cost is not known; and what the runs that each claim compares cost
    with the seeds that it needs, None where that is not known.
    """
    by_run = {run_id: cost for run_id, cost in costs.items() if cost is not None}
    if not by_run or len(by_run) < len(costs):
        return "", [None] * len(powers)
    needed: list[float | None] = []
    for planned in powers:
        claim, hours = planned.claim, 0.0
        for model, counts in planned_cells(plan, claim.sweep).items():
            names = {name for pair in pairs(claim, tuple(counts)) for name in pair}
            if claim.of_errors and claim.seeds:
                names = {name for name in counts if claim.is_tested_by(model, name, claim.seeds[0])}
            for run in plan.runs:
                variant = run.variants.get(claim.sweep)
                if run.spec.model.name == model and variant in names:
                    cost = by_run[run.run_id]
                    of_run = cost.hours if cost.gpu_hours is None else cost.gpu_hours
                    hours += of_run / counts[variant]  # per seed
        needed.append(None if planned.needed is None else hours * planned.needed)
    on_gpus = all(cost.gpu_hours is not None for cost in by_run.values())
    return "GPU-hours" if on_gpus else "hours", needed


def power_values(
    plan: Plan, powers: Sequence[PlannedPower], question: PowerQuestion, costs: Costs
) -> dict[str, object]:
    """For JSON: the sweep, what was assumed, and each claim with its power. `hours_needed`: of all runs that the claim
    compares, with the seeds that it needs, in the unit of `hours_are`; null where it is not known.
    """
    unit, needed = _hours_needed(plan, powers, costs)
    claims = [
        {
            "claim": planned.claim.key,
            "text": planned.claim.text,
            "sweep": planned.claim.sweep,
            "comparisons": planned.comparisons,
            "deviation": 100 * planned.deviation,
            "deviation_is": "percent, of the log ratio of errors" if planned.claim.of_errors else "points",
            "lead": _lead(planned, question),
            "seeds": planned.seeds,
            "power": round(planned.power, 4),
            "seeds_needed": planned.needed,
            "seeds_expected": None if planned.expected is None else round(planned.expected, 2),
            "hours_needed": None if hours is None else round(hours, 2),
        }
        for planned, hours in zip(powers, needed, strict=True)
    ]
    return {
        "sweep": plan.name,
        "core": plan.core,
        "correlation": question.correlation,
        "hours_are": {"GPU-hours": "gpu", "hours": "machine"}.get(unit),
        "claims": claims,
    }


def _lead(planned: PlannedPower, question: PowerQuestion) -> float | str:
    """The truth that is assumed for a claim: points (for a trend, per doubling), the ratio of errors, or "paper" for
    the paper's final means, TABLE_1 for its best steps.
    """
    if planned.claim.of_errors:
        return round(math.exp(-planned.claim.lead), 4)
    if planned.claim.margin is not None:
        return 0.0
    if question.effect is not None:
        return question.effect
    if planned.claim.seeds is not None:
        return round(100 * planned.claim.lead, 6)
    return TABLE_1 if question.best_steps else "paper"


# A sweep that claims nothing

SEEDS = (3, 5, 10, 20)  # shown beside the planned number


@dataclass(frozen=True)
class Shown:
    """What runs of two methods on a model can show: `differences` has, for numbers of seeds, the smallest true lead in
    points that they show with the probability POWER; None for a single seed.

    `deviation`: in points, of runs of a method over seeds; without what runs of the same seed have in common, if they
    are compared seed by seed (`paired`). `measured`: the number of finished runs that it is taken from; 0: assumed.
    `power` and `seeds_needed`: for the lead of the question; None if it has no lead.
    """

    sweep: str
    model: str
    seeds: int
    paired: bool
    deviation: float
    measured: int
    differences: dict[int, float | None]
    power: float | None = None
    seeds_needed: int | None = None


def shown_differences(plan: Plan, question: PowerQuestion) -> list[Shown]:
    """What the planned seeds show, with the scatter of the plan's finished runs, or that assumed by the question.

    Raises UserError if no model is planned with two variants.
    """
    comparisons = []
    for sweep in plan.sweeps:
        paired = plan.is_paired(sweep.name)
        shared = math.sqrt(1 - question.correlation) if paired else 1.0
        for model, counts in planned_cells(plan, sweep.name).items():
            if len(counts) < 2:
                continue
            measured = None if question.deviations else _scatter(plan, sweep.name, model, paired)
            assumed = [(shared * value, 0) for value in question.deviations_of(plan.core, by_core=True)]
            comparisons += [
                _shown(sweep.name, model, min(counts.values()), paired, *scatter, question.effect)
                for scatter in ([measured] if measured else assumed)
            ]
    if not comparisons:
        raise UserError(
            f"{plan.name}: --power compares two methods, and no model is planned with two variants: add one to "
            "`variants`, or plan them all (without variant=)"
        )
    return comparisons


def _shown(
    sweep: str, model: str, seeds: int, paired: bool, deviation: float, measured: int, effect: float | None
) -> Shown:
    numbers = dict.fromkeys((seeds, *(n for n in SEEDS if n > seeds)))
    differences = {
        n: None if n < 2 else float(np.quantile(shown_leads(deviation, n, paired), POWER)) for n in numbers
    }
    result = Shown(sweep, model, seeds, paired, deviation, measured, differences)
    if effect is None:
        return result

    def power(n: int) -> float:
        return float((shown_leads(deviation, n, paired) <= effect).mean())

    return replace(result, power=power(seeds) if seeds > 1 else 0.0, seeds_needed=fewest(power))


def _scatter(plan: Plan, sweep: str, model: str, paired: bool) -> tuple[float, int] | None:
    """The standard deviation of the final means of the plan's finished runs on a model, in points, pooled over its
    variants, and their number; if `paired`, by the differences of runs of the same seed. None without two runs to
    compare.
    """
    scores: dict[str, dict[int, float]] = {}
    for run in plan.runs:
        if sweep in run.variants and run.spec.model.name == model:
            status = read_status(runs_folder() / run.run_id)
            score = status.get("final_mean")
            if status.get("status") == schema.DONE and isinstance(score, float):
                scores.setdefault(run.variants[sweep], {})[run.spec.seed] = 100 * score
    samples = [list(of_variant.values()) for of_variant in scores.values()]
    if paired:  # a difference has twice the variance of what is not common to both
        samples = [
            [(ours[seed] - theirs[seed]) / math.sqrt(2) for seed in ours.keys() & theirs.keys()]
            for ours, theirs in itertools.combinations(scores.values(), 2)
        ]
    samples = [values for values in samples if len(values) > 1]
    squares = sum((len(values) - 1) * variance(values) for values in samples)
    degrees = sum(len(values) - 1 for values in samples)
    return (math.sqrt(squares / degrees), sum(map(len, scores.values()))) if squares else None


def shown_text(comparisons: Sequence[Shown], question: PowerQuestion, columns: int | None = None) -> str:
    """The differences as a table for people, and what they rest on."""
    several = len({comparison.sweep for comparison in comparisons}) > 1
    numbers = sorted({n for comparison in comparisons for n in comparison.differences})
    head = [*(["sweep"] if several else []), "model", "seeds", "deviation", "from"]
    head += [f"shown by {n}" for n in numbers]
    head += [] if question.effect is None else [f"power for {question.effect:g}", "seeds for 80 %"]
    rows = []
    for comparison in comparisons:
        row = [comparison.sweep] if several else []
        row += [comparison.model, str(comparison.seeds), f"{comparison.deviation:.2g}"]
        row.append(f"{comparison.measured} runs" if comparison.measured else "assumed")
        shown = map(comparison.differences.get, numbers)
        row += ["-" if points is None else f"{points:.1f}" for points in shown]
        if comparison.power is not None:
            row += [f"{comparison.power:.2f}", _needed(comparison.seeds_needed)]
        rows.append(row)
    how = {True: "compared seed by seed", False: "compared without regard to seeds"}
    kinds = " and ".join(
        how[kind] for kind in sorted({comparison.paired for comparison in comparisons}, reverse=True)
    )
    note = (
        "Shown by n: the smallest true lead of one method over another, in points, that n seeds of each show with a "
        f"probability of {100 * POWER:.0f} % (a 95 % interval above 0; runs are {kinds}), where the final means of one "
        "method have the given standard deviation over seeds (points). --deviation=POINTS,... assumes others, "
        "--effect=POINTS asks for a lead. The file states no hypothesis: with one (docs/sweeps.md) its own power is "
        "shown."
    )
    table = aligned(head, rows, right={*head} - {"sweep", "model", "from"}, width=columns)
    return f"{table}\n\n{note if columns is None else textwrap.fill(note, columns)}"


def shown_values(plan: Plan, comparisons: Sequence[Shown], question: PowerQuestion) -> dict[str, object]:
    """For JSON, as `power_values` without claims: and what the seeds show."""
    differences = [asdict(comparison) for comparison in comparisons]
    return power_values(plan, (), question, {}) | {"differences": differences}
