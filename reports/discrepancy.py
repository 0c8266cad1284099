"""One discrepancy of the paper's results: a claim, whether the curves confirm it, and the evidence.

This module finds the ones that only the curves show; `discrepancies.discrepancies` adds those known from the printed
tables.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cppo_lab.analysis.audit import Audit, AuditRun
from cppo_lab.analysis.selection import Stat
from cppo_lab.reports.headlines import points
from cppo_lab.reports.names import display_name

CONFIRMED, NOT_SEEN, FOUND = "confirmed", "not seen in these curves", "found in these curves"


@dataclass(frozen=True)
class Discrepancy:
    """One claim about the printed tables, whether the curves confirm it, and the evidence in one or two sentences."""

    claim: str
    verdict: str
    evidence: str


def run_name(run: AuditRun) -> str:
    """`CISPO on Qwen3-30B-A3B-Base`."""
    return f"{display_name(run.score.variant)} on {run.score.model}"


def listed(items: Iterable[str]) -> str:
    """Items as one phrase."""
    return "; ".join(items) or "none"


def found_in_curves(audit: Audit) -> list[Discrepancy]:
    """The discrepancies that only the curves show."""
    return [_two_evaluations(audit), _ties(audit), _early(audit), _untrained(audit)]


def _two_evaluations(audit: Audit) -> Discrepancy:
    averaged = [run for run in audit.runs if run.half_grid > 0.1 * run.values]
    stray = [run for run in audit.runs if 0 < run.half_grid <= 0.1 * run.values]
    return Discrepancy(
        "Some curves are the mean of two evaluations.",
        FOUND if averaged else NOT_SEEN,
        "One evaluation can only give multiples of 1/480. Odd multiples of 1/960, about half of all values "
        "if two are "
        f"averaged, appear throughout in: "
        f"{listed(f'{run_name(r)}, {r.half_grid} of {r.values}' for r in averaged)}; "
        f"and singly in: {listed(f'{run_name(r)}, {r.half_grid} of {r.values}' for r in stray)}. An average "
        f"of two has "
        "less noise, so these rows are not on a par with the others.",
    )


def _ties(audit: Audit) -> Discrepancy:
    tied = [run for run in audit.runs if len(run.score.choice.ties) > 1]
    return Discrepancy(
        "Where several steps share the best mean, the table shows the earliest.",
        FOUND if tied else NOT_SEEN,
        listed(
            f"{run_name(run)}: steps {', '.join(map(str, run.score.choice.ties))} are tied, and the printed "
            f"components "
            f"are those of step {run.score.choice.step}"
            for run in tied
        )
        + ".",
    )


def _early(audit: Audit) -> Discrepancy:
    early = [run for run in audit.runs if run.ends_early]
    return Discrepancy(
        "Some runs end before T_stop, so their window is shorter than that of their neighbours.",
        FOUND if early else NOT_SEEN,
        listed(f"{run_name(r)} ends at step {r.score.choice.last_step} of {r.score.t_stop}" for r in early)
        + ".",
    )


def _untrained(audit: Audit) -> Discrepancy:
    bases: dict[str, list[float]] = {}
    for run in audit.runs:
        if run.score.choice.base is not None:
            bases.setdefault(run.score.model, []).append(run.score.choice.base)
    parts = []
    for model, values in bases.items():
        stat = Stat.of(values)
        if stat is not None and stat.std is not None:
            parts.append(
                f"{model}: {stat.n} runs start at {points(min(values))} to {points(max(values))} "
                f"(standard deviation {points(stat.std)})"
            )
    return Discrepancy(
        "The same untrained model scores differently in different runs: the noise of the evaluation alone.",
        FOUND if parts else NOT_SEEN,
        listed(parts) + f". Step 0 was evaluated on {len(bases)} of the models only.",
    )
