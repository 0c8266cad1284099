"""Constants of the policy-improvement bounds, as plain floats. torch is not needed.

Setting: an autoregressive process of T steps, reward |R(y)| <= xi at its end, rollout policy mu, current policy
pi, D_t(s_t) = TV(mu, pi) at state s_t. With the surrogate L' = E_mu[R sum_t (rho_t - 1)],

    J(pi) - J(mu) = L' - Delta,
    Delta = sum_t E_{s_t ~ mu} sum_a (pi - mu)(a | s_t) (Q_mu - Q_pi)(s_t, a)                 (exact identity)

Let u_t = E_mu[D_t], l_t = max over states of D_t, and l >= l_t for every t. A policy pair moves the mean reward
of a suffix by at most 2 xi times the suffix' total variation, hence

    TV(suffix after t) <= 1 - prod_{j>t} (1 - l_j) <= sum_{j>t} l_j                           (suffix bound)
    |Delta| <= 4 xi sum_t u_t sum_{j>t} l_j <= 4 xi l sum_t (T - t) u_t                       (Proposition 4)

A prefix budget S_t = sum_{j<=t} w_j D_j <= delta_b W_t for t < T turns the last sum into a constant (Theorem 1):
with g_t = (T - t) / w_t, which falls with t for the linear weights (g_t - g_{t+1} = w_min / (w_t w_{t+1})),

    sum_t (T - t) u_t = sum_t (g_t - g_{t+1}) E[S_t] <= delta_b sum_t (T - t) = delta_b T (T - 1) / 2

and S_t <= delta_b W_t + eta adds g_1 eta = (T - 1) eta (Proposition 6). The last token needs no budget: no later
token depends on it. The bounds speak of TV; for other divergences they do not hold unchanged.

PAPER: the propositions are reconstructed from the golden constants, not copied from the text; the tests verify each of
them by enumeration.

Every function raises ValueError for a value out of range, naming the value, the range and the remedy. The bounds of a
configuration as a table:

    python -m cppo_lab.maths.bounds --delta .15 --delta-b .02 --w-min .8 --horizon 8192
"""

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from cppo_lab.rules import AT_MOST

LONGEST = 10**9  # far above any response length; keeps every constant finite


def residual_bound(means: Sequence[float], largest: Sequence[float], xi: float = 1.0) -> float:
    """4 xi sum_t u_t sum_{j>t} l_j >= |Delta| (Proposition 4), for measured u_t = `means` and l_t = `largest`."""
    _positive("xi", xi)
    total = later = 0.0
    for mean, most in zip(reversed(means), reversed(largest), strict=True):
        total += mean * later
        later += most
    return 4 * xi * total


def product_residual_bound(means: Sequence[float], largest: Sequence[float], xi: float = 1.0) -> float:
    """4 xi sum_t u_t (1 - prod_{j>t} (1 - l_j)) >= |Delta|: the suffix bound's product form, at most 4 xi sum_t u_t."""
    _positive("xi", xi)
    total, stay = 0.0, 1.0
    for mean, most in zip(reversed(means), reversed(largest), strict=True):
        total += mean * (1 - stay)
        stay *= 1 - most
    return 4 * xi * total


def dppo_constant(horizon: int, delta: float, xi: float = 1.0) -> float:
    """C_uniform = 2 xi T (T - 1) delta^2: D_t <= delta at every state, nothing else (DPPO)."""
    _within("delta", delta, 1)
    return 2 * _pairs(horizon, xi) * delta**2


def cppo_constant(horizon: int, delta_b: float, largest: float, xi: float = 1.0) -> float:
    """C_cppo = 2 xi T (T - 1) delta_b l: Theorem 1 for any weights, l = `largest` the bound on every D_t.

    l = delta without position weights (D_t <= delta).
    """
    _within("delta_b", delta_b, 1)
    _positive("largest", largest)
    return 2 * _pairs(horizon, xi) * delta_b * largest


def measured_constant(means: Sequence[float], largest: Sequence[float], xi: float = 1.0) -> float:
    """C_cppo >= |Delta| at the smallest delta_b and l that hold for measured u_t = `means` and l_t = `largest`: without
    position weights, the largest mean of the first u_t before the last token, and the largest l_t; 0 if mu = pi.
    """
    prefixes = [total / count for count, total in enumerate(itertools.accumulate(means[:-1]), 1)]
    delta_b = max(prefixes, default=0.0)
    return cppo_constant(len(means), delta_b, max(largest), xi) if delta_b > 0 else 0.0


def weighted_constant(horizon: int, delta: float, delta_b: float, w_min: float, xi: float = 1.0) -> float:
    """C_impl = 2 xi T (T - 1) delta_b delta / w_min: C_cppo where only w_t D_t <= delta is known.

    The loosest of these limits on D_t is that of the last token, l = delta / w_min.
    """
    return cppo_constant(horizon, delta_b, largest_divergence(delta, w_min), xi)


def largest_divergence(delta: float, w_min: float) -> float:
    """l = delta / w_min, the limit from w_t D_t <= delta at the last token. As in the paper, it is not clipped at 1."""
    _within("delta", delta, 1)
    _within("w_min", w_min, AT_MOST)
    return delta / w_min


def slack_term(horizon: int, largest: float, eta: float, xi: float = 1.0) -> float:
    """4 xi (T - 1) eta l: the additional term of the bound if S_t <= delta_b W_t + eta (Proposition 6).

    CPPO's mask lets S_t reach delta + delta_b W_{t-1}, so eta = delta covers it.
    """
    _positive("largest", largest)
    if not (eta >= 0 and math.isfinite(eta)):
        raise ValueError(
            f"eta={eta!r} must be a finite number >= 0: pass 0 for no slack, delta for the mask's"
        )
    return 4 * _steps(horizon, xi) * eta * largest


def terminal_constant(horizon: int, delta_b: float, largest: float, xi: float = 1.0) -> float:
    """C_terminal = 4 xi (T - 1)^2 delta_b l: w = 1 and the budget checked once, S_{T-1} <= delta_b (T - 1).

    The whole budget may then be spent on the first token, which moves the most later states.
    """
    _within("delta_b", delta_b, 1)
    _positive("largest", largest)
    return 4 * _steps(horizon, xi) * (horizon - 1) * delta_b * largest


def terminal_ratio(horizon: int) -> float:
    """C_terminal / C_cppo = 2 - 2 / T, the gain from checking the budget at every prefix."""
    whole_horizon(horizon)
    return 2 - 2 / horizon


def product_bound(horizon: int, delta_b: float, largest: float, xi: float = 1.0) -> float:
    """4 xi delta_b sum_{k=1}^{T-1} (1 - (1 - l)^k): Theorem 1 for w = 1 with the suffix bound's product form.

    Grows with T where C_cppo grows with T^2: a suffix cannot move by more than 1. Needs l <= 1.
    """
    _within("delta_b", delta_b, 1)
    _within("largest", largest, 1)
    whole_horizon(horizon)
    _positive("xi", xi)
    later = horizon - 1
    scale = 4 * xi * delta_b
    if horizon * largest < 0.5:  # the closed form below would cancel; sum_j (-1)^(j+1) C(T, j+1) l^j
        terms = (-((-largest) ** j) * math.comb(horizon, j + 1) for j in range(1, 17))
        return scale * math.fsum(terms)
    stay = 1 - largest
    return scale * (later - stay * (1 - stay**later) / largest)


def _pairs(horizon: int, xi: float) -> float:
    """xi T (T - 1), checked."""
    return _steps(horizon, xi) * horizon


def _steps(horizon: int, xi: float) -> float:
    """xi (T - 1), checked."""
    whole_horizon(horizon)
    _positive("xi", xi)
    return xi * (horizon - 1)


def whole_horizon(horizon: float) -> int:
    """`horizon`, a number of tokens. Raises ValueError unless it is an integer in 1..LONGEST."""
    if isinstance(horizon, bool) or not isinstance(horizon, int) or not 1 <= horizon <= LONGEST:
        raise ValueError(
            f"horizon={horizon!r} must be an integer in 1..{LONGEST}: pass the response length in tokens"
        )
    return horizon


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}={value!r} must lie in (0, inf): pass a finite number above 0")


def _within(name: str, value: float, top: float) -> None:
    if not 0 < value <= top:
        remedy = (
            "w_min=1 means no position weights" if name == "w_min" else "a total variation never exceeds 1"
        )
        raise ValueError(f"{name}={value!r} must lie in (0, {top}]: {remedy}")


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
    dppo = dppo_constant(horizon, delta, xi)
    weighted = largest_divergence(delta, w_min)
    arguments = horizon, delta_b, delta, xi
    uniform_slack = slack_term(horizon, delta, delta, xi)
    weighted_slack = slack_term(horizon, weighted, delta, xi)
    uniform = cppo_constant(*arguments)
    impl = weighted_constant(horizon, delta, delta_b, w_min, xi)
    # (rule, the part of the constant that is proportional to delta_b, the rest)
    parts = [
        ("CPPO, uniform weights", uniform, 0.0),
        ("CPPO, position weights", impl, 0.0),
        ("CPPO, uniform weights, slack of the mask", uniform, uniform_slack),
        ("CPPO, position weights, slack of the mask", impl, weighted_slack),
        ("budget checked only at the end, uniform", terminal_constant(*arguments), 0.0),
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
    horizon = whole_horizon(horizon)
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
        f"uniform weights:  C / C_DPPO = delta_b / delta = {delta_b / delta:.4g}",
        f"position weights: C / C_DPPO = delta_b / (delta w_min) = {delta_b / delta / w_min:.4g}",
        "slack of the mask: it lets S_t reach delta + delta_b W_{t-1}, which adds 4 xi (T - 1) delta max D_t",
        f"product form (linear in T, uniform weights): DPPO {product_bound(horizon, delta, delta, xi):.5g}, "
        f"CPPO {product_bound(horizon, delta_b, delta, xi):.5g}",
        "An adaptive delta_b reaches twice delta_b_min: put that value in for the worst case.",
    ]
    if rows[0].constant > 2 * xi:
        lines.append(
            f"J lies in [{-xi:g}, {xi:g}]: constants of this size only compare the rules with each other."
        )
    return "\n".join(lines)


def _number(option: str, text: str) -> float:
    """The value of an option; a horizon as an int, so that messages show it as it was given."""
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
    parser = argparse.ArgumentParser(prog="python -m cppo_lab.maths.bounds", description=main.__doc__)
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
