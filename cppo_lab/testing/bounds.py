"""The bounds of one configuration as a table. Arithmetic: `maths.bounds`.

python -m cppo_lab.testing.bounds --delta .15 --delta-b .02 --w-min .8 --horizon 8192
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

from cppo_lab.maths import bounds

# Option -> default, meaning.
OPTIONS = {
    "delta": ("0.15", "token threshold"),
    "delta-b": ("0.02", "prefix-budget rate"),
    "w-min": ("0.8", "last position weight"),
    "horizon": ("8192", "response length in tokens"),
    "xi": ("1", "largest absolute reward"),
}


class Bound(NamedTuple):
    """One rule's bound; `limit` is the delta_b at which it stops being tighter than DPPO's, None for DPPO."""

    rule: str
    constant: float
    ratio: float
    limit: float | None


def bound_rows(*, delta: float, delta_b: float, w_min: float, horizon: int, xi: float) -> list[Bound]:
    """DPPO's constant and those of CPPO. For horizon > 1; a single token has no later state to move.

    Raises:
        ValueError: a value out of range.
    """
    dppo = bounds.dppo_constant(horizon, delta, xi)
    weighted = bounds.largest_divergence(delta, w_min)
    arguments = horizon, delta_b, delta, xi
    uniform_slack = bounds.slack_term(horizon, delta, delta, xi)
    weighted_slack = bounds.slack_term(horizon, weighted, delta, xi)
    uniform = bounds.cppo_constant(*arguments)
    impl = bounds.weighted_constant(horizon, delta, delta_b, w_min, xi)
    # (rule, the part of the constant that is proportional to delta_b, the rest)
    parts = [
        ("CPPO, uniform weights", uniform, 0.0),
        ("CPPO, position weights", impl, 0.0),
        ("CPPO, uniform weights, slack of the mask", uniform, uniform_slack),
        ("CPPO, position weights, slack of the mask", impl, weighted_slack),
        ("budget checked only at the end, uniform", bounds.terminal_constant(*arguments), 0.0),
    ]
    rows = [Bound("DPPO", dppo, 1.0, None)]
    for rule, slope, rest in parts:
        limit = delta_b * (dppo - rest) / slope if slope else 0.0
        rows.append(Bound(rule, slope + rest, (slope + rest) / dppo if dppo else 1.0, limit))
    return rows


def bounds_table(*, delta: float, delta_b: float, w_min: float, horizon: float, xi: float) -> str:
    """The table that this module prints.

    Raises:
        ValueError: a value out of range.
    """
    horizon = bounds.whole_horizon(horizon)
    rows = bound_rows(delta=delta, delta_b=delta_b, w_min=w_min, horizon=horizon, xi=xi)
    head = (
        f"T = {horizon}, delta = {delta:g}, delta_b = {delta_b:g}, w_min = {w_min:g}, |reward| <= xi = {xi:g}"
    )
    if horizon == 1:
        return f"{head}\n\nOne token: J(pi) - J(mu) = L' exactly, every constant is 0."
    lines = [
        "Residual constants C: |J(pi) - J(mu) - L'| <= C, L' = E_mu[R sum_t (rho_t - 1)]",
        head,
        "",
        f"{'':<42}{'C':>12}{'C / DPPO':>12}{'tighter':>10}   as long as",
    ]
    for row in rows:
        start = f"{row.rule:<42}{row.constant:>12.5g}{row.ratio:>12.4g}"
        if row.limit is None:
            lines.append(start)
        else:
            until = f"delta_b < {row.limit:.5g}" if row.limit > 0 else "never, for any delta_b"
            lines.append(f"{start}{'yes' if row.constant < rows[0].constant else 'no':>10}   {until}")
    lines += [
        "",
        f"uniform weights:  C / C_DPPO = delta_b / delta = {bounds.uniform_ratio(delta, delta_b):.4g}",
        f"position weights: C / C_DPPO = delta_b / (delta w_min) = "
        f"{bounds.weighted_ratio(delta, delta_b, w_min):.4g}",
        "slack of the mask: it lets S_t reach delta + delta_b W_{t-1}, which adds 4 xi (T - 1) delta max D_t",
        f"product form (linear in T, uniform weights): DPPO {bounds.product_bound(horizon, delta, delta, xi):.5g}, "
        f"CPPO {bounds.product_bound(horizon, delta_b, delta, xi):.5g}",
        "An adaptive delta_b reaches twice delta_b_min: put that value in for the worst case.",
    ]
    if rows[0].constant > 2 * xi:
        lines.append(
            f"J lies in [{-xi:g}, {xi:g}]: constants of this size only compare the rules with each other."
        )
    return "\n".join(lines)


def _number(option: str, text: str) -> float:
    """A whole number as such: how large one may be is not said as a float."""
    try:
        return (
            int(text)
            if option == "horizon" and text.lstrip("+-").isdecimal() and len(text) < 20
            else float(text)
        )
    except ValueError:
        example = "8192" if option == "horizon" else "0.5"
        name = option.replace("-", "_")
        raise ValueError(f"{name}={text!r} is not a number: pass one such as --{option} {example}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the constants of CPPO's bounds, compared with DPPO's."""
    parser = argparse.ArgumentParser(prog="python -m cppo_lab.testing.bounds", description=main.__doc__)
    for option, (default, text) in OPTIONS.items():
        parser.add_argument(f"--{option}", default=default, help=f"{text} (default: {default})")
    options = vars(parser.parse_args(arguments))
    try:
        print(bounds_table(**{name: _number(name.replace("_", "-"), text) for name, text in options.items()}))
    except ValueError as error:
        parser.exit(2, f"cppo: error: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
