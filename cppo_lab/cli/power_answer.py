"""The answer of `cppo plan SWEEP --power`: a table for people, and values for JSON."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cppo_lab.cli.power import PowerQuestion, planned_cells

if TYPE_CHECKING:
    from cppo_lab.analysis.exact_claims import ErrorClaim
    from cppo_lab.analysis.statistics.claims import Claim
    from cppo_lab.analysis.statistics.planned_power import PlannedPower
    from cppo_lab.sweep.cost import Cost
    from cppo_lab.sweep.plan import Plan

    Costs = Mapping[str, Cost | None]

NARROWEST = 24  # columns for a claim, however narrow the terminal is


def power_text(
    plan: "Plan",
    found: "Sequence[PlannedPower]",
    question: PowerQuestion,
    costs: "Costs",
    columns: int | None = None,
) -> str:
    """The powers as a table for people, and what they rest on; `costs` of the plan's runs, by id. `columns`: of the
    terminal; None: as many as the text takes.
    """
    unit = _unit(costs)
    rows: list[tuple[str, ...]] = [
        ("claim", "comparisons", "seeds", "deviation", "power", "seeds for 80 %", unit)
    ]
    rows += [
        (
            *(
                one.claim.text,
                str(one.comparisons),
                str(one.seeds),
                f"{100 * one.deviation:g}{' %' if is_error(one.claim) else ''}",
                f"{one.power:.2f}",
            ),
            *(_needed(one.needed), _hours_text(_hours(plan, one, costs))),
        )
        for one in found
    ]
    rows = [row if unit else row[:-1] for row in rows]
    if columns is not None:
        others = sum(2 + max(map(len, column)) for column in [*zip(*rows, strict=True)][1:])
        rows = [line for row in rows for line in _wrapped(row, max(columns - others, NARROWEST))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    note = "Power: the probability that the planned seeds support the claim."
    if scores := [one for one in found if not is_error(one.claim)]:
        effect = (
            f"a lead of {question.effect:g} points"
            if question.effect is not None
            else _default_effects(scores)
        )
        note += (
            f" For claims about scores, if the truth is {effect} (none for an equivalence) and runs of one method "
            "have the given standard deviation over seeds (points), those of a seed with a correlation of "
            f"{question.correlation:g}; by simulation."
        )
    if len(scores) < len(found):
        note += (
            " For claims about the surrogate's error, if the true advantage is twice the smallest that counts and the "
            "log ratio of errors has the given standard deviation over seeds; by Student's t."
        )
    if any(one.claim.after is not None for one in found):
        note += " A claim that is tested only after another is planned as if the other were supported."
    note += f" {unit}: of all runs that the claim compares, with so many seeds." if unit else ""
    note += " Claims about collapses and other quantities than scores are not simulated."
    if columns is not None:
        note = textwrap.fill(note, columns)
    return "\n".join(line.rstrip() for line in lines) + f"\n\n{note}"


def _wrapped(row: tuple[str, ...], width: int) -> list[tuple[str, ...]]:
    """The row with its first cell in lines of at most `width` characters."""
    first, *more = textwrap.wrap(row[0], width)
    return [(first, *row[1:]), *((line, *([""] * (len(row) - 1))) for line in more)]


def is_error(claim: "Claim | ErrorClaim") -> bool:
    """Whether a claim is about the surrogate's error."""
    from cppo_lab.analysis.exact_claims import ErrorClaim

    return isinstance(claim, ErrorClaim)


def _default_effects(found: "Sequence[PlannedPower]") -> str:
    """What is assumed without `--effect`. Only a sweep's own hypotheses name the seeds that test them."""
    own = [one for one in found if one.claim.seeds is not None]
    lead = "a lead of twice the smallest advantage that counts"
    if len(own) == len(found):
        return lead
    paper = "the paper's final means, which are not the best steps of its Table 1"
    return paper + (f" (for the sweep's own hypotheses {lead})" if own else "")


def _needed(seeds: int | None) -> str:
    from cppo_lab.analysis.statistics.power import MOST

    return f"over {MOST}" if seeds is None else str(seeds)


def _unit(costs: "Costs") -> str:
    """The heading of the cost column; empty where the cost is not known."""
    if not costs or any(cost is None for cost in costs.values()):
        return ""
    on_gpus = all(cost is not None and cost.gpu_hours is not None for cost in costs.values())
    return "GPU-hours for it" if on_gpus else "hours for it"


def _hours(plan: "Plan", one: "PlannedPower", costs: "Costs") -> float | None:
    """What the runs that a claim compares cost with the seeds that it needs; None where that is not known."""
    if one.needed is None or not _unit(costs):
        return None
    hours, claim = 0.0, one.claim
    for model, counts in planned_cells(plan, claim.sweep).items():
        names = _compared(claim, model, tuple(counts))
        for run in plan.runs:
            if run.spec.model.name == model and run.variants.get(one.claim.sweep) in names:
                cost = costs[run.run_id]
                assert cost is not None, "the unit is known"
                own = cost.hours if cost.gpu_hours is None else cost.gpu_hours
                hours += own / counts[run.variants[one.claim.sweep]]  # of one seed
    return hours * one.needed


def _compared(claim: "Claim | ErrorClaim", model: str, variants: "Sequence[str]") -> set[str]:
    """Those of the variants on a model that a claim compares."""
    from cppo_lab.analysis.exact_claims import ErrorClaim
    from cppo_lab.analysis.statistics.claims import pairs

    if isinstance(claim, ErrorClaim):
        return {name for name in variants if claim.is_tested_by(model, name, claim.seeds[0])}
    return {name for pair in pairs(claim, variants) for name in pair}


def _hours_text(hours: float | None) -> str:
    if hours is None:
        return ""
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def power_values(
    plan: "Plan", found: "Sequence[PlannedPower]", question: PowerQuestion, costs: "Costs"
) -> dict[str, object]:
    """For JSON: the sweep, what was assumed, and each claim with its power. `hours_needed`: of all runs that the claim
    compares, with the seeds that it needs, in the unit of `hours_are`; null where it is not known.
    """
    claims = [
        {
            "claim": one.claim.key,
            "text": one.claim.text,
            "sweep": one.claim.sweep,
            "comparisons": one.comparisons,
            "deviation": 100 * one.deviation,
            "deviation_is": "percent, of the log ratio of errors" if is_error(one.claim) else "points",
            "lead": _lead(one, question),
            "seeds": one.seeds,
            "power": round(one.power, 4),
            "seeds_needed": one.needed,
            "hours_needed": None if (hours := _hours(plan, one, costs)) is None else round(hours, 2),
        }
        for one in found
    ]
    unit = {"GPU-hours for it": "gpu", "hours for it": "machine"}.get(_unit(costs))
    head = {
        "sweep": plan.name,
        "core": plan.core,
        "correlation": question.correlation,
        "hours_are": unit,
    }
    return head | {"claims": claims}


def _lead(one: "PlannedPower", question: PowerQuestion) -> float | str:
    """The truth that is assumed for a claim: points (for a trend, per doubling), the ratio of errors, or "paper" for
    the paper's final means.
    """
    if is_error(one.claim):
        return round(math.exp(-one.claim.lead), 4)
    if one.claim.margin is not None:
        return 0.0
    if question.effect is not None:
        return question.effect
    return "paper" if one.claim.seeds is None else round(100 * one.claim.lead, 6)
