"""The tables of the section on the surrogate's error: ratios of errors, and what the runs of each condition did."""

import math
from collections.abc import Mapping, Sequence

from cppo_lab.analysis.exact_study import (
    REFERENCE,
    Condition,
    ConditionSummary,
    Curves,
    EqualIn,
    mean_estimate,
    pairs_of,
    ratio_estimates,
    slope_estimate,
)
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.reports.figures.exact_core import Contrast, contrast_name
from cppo_lab.reports.names import ABSENT, OURS, display_name, origin
from cppo_lab.reports.tables import TextRow, TextTable


def ratio_table(
    curves: Mapping[Condition, Curves],
    contrasts: Sequence[Contrast],
    controls: Mapping[str, str],
    core: str,
    title: str,
) -> TextTable:
    """Ratios by horizon, their mean and their slope; a row for each contrast, process and kind of equality. `controls`:
    variants that are none of the rules in question -> what they are.
    """
    horizons = sorted({c.horizon for c in curves})
    rows = []
    for contrast in contrasts:
        for model in dict.fromkeys(c.model for c in curves):
            for equal in EqualIn:
                pairs = pairs_of(curves, model, *contrast, equal)
                if not pairs:
                    continue
                by_horizon = ratio_estimates(pairs)
                cells = (
                    model,
                    equal.value,
                    *(shown_ratio(by_horizon.get(h)) for h in horizons),
                    shown_ratio(mean_estimate([pairs])),
                    shown_ratio(slope_estimate([pairs])),
                )
                kind = f" ({controls[contrast[0]]})" if contrast[0] in controls else ""
                rows.append(TextRow(contrast_name(contrast) + kind, contrast[0] == OURS, cells))
    headings = (
        "process",
        "at equal",
        *(f"T = {h}" for h in horizons),
        "mean over T",
        "factor per tenfold T",
    )
    notes = (
        f"Source: {origin(core)}.",
        "Geometric means; 95 % intervals in brackets, not adjusted for their number.",
        "At equal movement each step counts the same. With nothing equal it is the ratio of the plain means over all "
        "steps, in which steps with large errors dominate.",
    )
    return TextTable(f"Ratio of errors ({title})", core, "rules", headings, tuple(rows), notes)


def shown_ratio(log_ratio: Estimate | None) -> str:
    """`0.84 [0.78, 0.91]`: a ratio of errors with its 95 % interval, if it has one."""
    if log_ratio is None:
        return ABSENT
    value = f"{math.exp(log_ratio.value):.2f}"
    if log_ratio.low is None or log_ratio.high is None:
        return value
    return f"{value} [{math.exp(log_ratio.low):.2f}, {math.exp(log_ratio.high):.2f}]"


def condition_table(found: Mapping[Condition, ConditionSummary], core: str, title: str) -> TextTable:
    """Error, movement, return and bounds of each condition."""
    rows = []
    for c, one in sorted(found.items(), key=lambda item: (item[0].model, item[0].horizon)):
        there = found.get(Condition(c.model, REFERENCE, c.horizon))
        cells = (
            c.model,
            str(c.horizon),
            str(one.runs),
            f"{one.error:.3g}",
            f"{one.movement:.3g}",
            ABSENT if there is None else f"{one.movement / there.movement:.2f}",
            f"{100 * one.before / one.movement:.0f} %",
            f"{one.area:.3f}",
            f"{100 * one.falls:.0f} %",
            f"{one.bound_ratio:.2g}",
            f"{one.product_ratio:.2g}",
        )
        rows.append(TextRow(display_name(c.variant), c.variant == OURS, cells))
    headings = (
        *(
            "process",
            "T",
            "runs",
            "mean |Δ|",
            "movement",
            "over DPPO's",
            "of it before the update",
            "mean return",
        ),
        *("steps on which it falls", "bound / |Δ|", "product bound / |Δ|"),
    )
    notes = (f"Source: {origin(core)}.", "Means over steps and runs; medians for the bounds.")
    return TextTable(f"Conditions ({title})", core, "rule", headings, tuple(rows), notes)
