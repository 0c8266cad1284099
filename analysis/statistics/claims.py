"""The claims: which variants are compared in which sweep, and what counts as supported; those of the paper; and whether
a sweep's hypotheses were stated before the runs that test them, and all these have results.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.exact_study import without_horizon
from cppo_lab.analysis.statistics.values import Measure, Quantity
from cppo_lab.errors import counted, has

# The smallest advantage worth claiming: one point of Avg@16, the noise between successive evaluations in the paper's
# curves (0.5 to 1.4 points). With such a bound a finite number of seeds can show "no advantage".
SMALLEST = 0.01
# "Comparable", "about", "within range": at most two points apart. The paper gives no margin. In its curves two
# evaluations of equal methods differ by 0.7 to 2.0 points from noise alone.
MARGIN = 0.02
# Share of the runs: a method whose collapse rate is higher by less than this counts as no less stable.
_FEW_COLLAPSES = 0.1
# Share of the masks: an early excess below this does not count as concentrated early in training.
_FEW_MASKS = 0.01
# Growth of the lead per doubling of the response length. The paper's 8,000 to 16,000 tokens are a doubling.
_SMALLEST_SLOPE = 0.005


class Kind(StrEnum):
    """What a claim says about its variants."""

    BEST = "best of all"  # the first variant is above every other of the sweep, on every model
    SUPERIORITY = "superiority"  # every variant of a tier is above every variant of the next
    EQUIVALENCE = "equivalence"  # the variants of the first tier are within `margin` of those of the second
    COLLAPSE = "collapse"  # runs of the first tier collapse more often than those of the second
    TREND = "trend"  # the lead of the first tier over the second grows with the length of the responses
    POSITIVE = "positive"  # a quantity of the first tier's runs is above 0; it has one tier


@dataclass(frozen=True)
class Claim:
    """A claim. `tiers`: variants, best first; BEST has one tier. `margin`: a fraction, for EQUIVALENCE only.

    `over_models`: test the mean over the sweep's models once, instead of each model separately. `after`: key of the
    claim that must be supported for this claim to be confirmatory; otherwise it is exploratory. `smallest`: an
    advantage below this fraction counts as none. `score`: the deciding score (None: the default), or another quantity
    of the runs. `seeds`: seeds of the runs that test the claim, None for all. `tests`: (model, variant, seed) of all
    runs that are declared to test it; empty if that is not known. `pairing`: whether it was registered as a comparison
    seed by seed, where that is not what the design of its runs asks for (None: it is). `models`: the models it is
    about, () for all. `sequential`: it is judged after each of its seeds in their order, until that decides it.

    A claim about the surrogate's error compares logs of ratios of errors. Its `smallest` and `margin` are on that scale
    (`log_size`): an advantage of 10 % is a ratio of 0.9.
    """

    key: str
    text: str
    sweep: str
    kind: Kind
    tiers: tuple[tuple[str, ...], ...]
    margin: float | None = None
    over_models: bool = False
    after: str | None = None
    smallest: float = SMALLEST
    score: Measure | None = None
    seeds: tuple[int, ...] | None = None
    tests: frozenset[tuple[str, str, int]] = frozenset()
    pairing: bool | None = None
    models: tuple[str, ...] = ()
    sequential: bool = False

    def is_tested_by(self, model: str, variant: str, seed: int) -> bool:
        """Whether a run tests the claim; `variant` may have its horizon in its label."""
        if (self.models and model not in self.models) or (self.seeds is not None and seed not in self.seeds):
            return False
        name = without_horizon(variant) if self.of_errors else variant
        return any(name in tier for tier in self.tiers)

    @property
    def of_errors(self) -> bool:
        """Whether the claim is about the surrogate's error, which the exact core's runs log."""
        return self.score in (Quantity.ERROR, Quantity.ERROR_SLOPE)

    def as_reported(self, difference: Estimate) -> tuple[float, float | None, float | None]:
        """Value and ends of the 95 % interval as reports give them: ratios of errors, else fractions."""
        if not self.of_errors:
            return difference.value, difference.low, difference.high
        low, high = (None if end is None else math.exp(-end) for end in (difference.high, difference.low))
        return math.exp(-difference.value), low, high

    @property
    def unit(self) -> str:
        """The unit of its differences times 100; of a claim about errors that of the ratio."""
        if self.of_errors:
            return "ratio of errors" if self.score is Quantity.ERROR else "factor per tenfold horizon"
        if self.kind is Kind.COLLAPSE:
            return "% of the runs"
        if self.kind is Kind.TREND:
            return "points for each doubling of the length"
        return "% of the masks" if self.score is Quantity.EARLY_PREFIX else "points"

    @property
    def compares_scores(self) -> bool:
        """Whether the claim is about scores, and so can be judged by each of them."""
        return self.kind is not Kind.COLLAPSE and not isinstance(self.score, Quantity)

    @property
    def lead(self) -> float:
        """The true difference at which its power is reported: twice the smallest that counts; 0 for an equivalence
        claim.
        """
        return 2 * self.smallest if self.margin is None else 0.0


def log_size(fraction: float) -> float:
    """An advantage of a fraction of the error on the scale of its comparisons: 0.1 -> -log 0.9."""
    return -math.log1p(-fraction)


_CPPO_OVER_DPPO = (("cppo",), ("dppo",))

# The primary claim is the mean of CPPO - DPPO over the models: one test, which three seeds decide at the paper's
# effects. Each further claim is tested only if the claim before it is supported, so the family-wise error of a chain is
# that of a single test. Two chains start from it: over models and settings, and over training and response lengths.
CLAIMS: tuple[Claim, ...] = (
    Claim(
        "cppo_mean",
        "CPPO is above DPPO in the mean over the models",
        "main",
        Kind.SUPERIORITY,
        _CPPO_OVER_DPPO,
        over_models=True,
    ),
    Claim(
        "cppo_each",
        "CPPO is above DPPO on every model",
        "main",
        Kind.SUPERIORITY,
        _CPPO_OVER_DPPO,
        after="cppo_mean",
    ),
    Claim("cppo_best", "CPPO is best in every setting", "main", Kind.BEST, (("cppo",),), after="cppo_each"),
    Claim(
        "cppo_widens",
        "CPPO's lead over DPPO widens in training",
        "main",
        Kind.SUPERIORITY,
        _CPPO_OVER_DPPO,
        over_models=True,
        after="cppo_mean",
        score=Quantity.RISE,
    ),
    Claim(
        "cppo_horizon",
        "CPPO's lead over DPPO grows with the length of the responses",
        "main",
        Kind.TREND,
        _CPPO_OVER_DPPO,
        after="cppo_widens",
        smallest=_SMALLEST_SLOPE,
    ),
    Claim(
        "cispo_collapse",
        "CISPO collapses more often than DPPO",
        "main",
        Kind.COLLAPSE,
        (("cispo",), ("dppo",)),
        over_models=True,
        smallest=_FEW_COLLAPSES,
    ),
    Claim(
        "prefix_early",
        "The prefix budget's share of the masks is highest early in training",
        "main",
        Kind.POSITIVE,
        (("cppo",),),
        over_models=True,
        smallest=_FEW_MASKS,
        score=Quantity.EARLY_PREFIX,
    ),
    Claim(
        "mechanisms",
        "Each single mechanism beats DPPO, and the two together beat each",
        "single_mechanism",
        Kind.SUPERIORITY,
        (("cppo",), ("cppo_no_position_weight", "cppo_no_prefix_budget"), ("dppo",)),
    ),
    Claim(
        "ordering",
        "Position weights in order beat shuffled ones",
        "position_weight_ordering",
        Kind.SUPERIORITY,
        (("cppo_no_prefix_budget",), ("cppo_no_prefix_budget_shuffled",)),
    ),
    Claim(
        "soft",
        "The soft gate is within range of the mask",
        "mask_vs_soft",
        Kind.EQUIVALENCE,
        (("cppo_soft",), ("cppo",)),
        MARGIN,
    ),
    Claim(
        "neighbours",
        "CPPO and the settings next to (0.02, 0.8) stay above DPPO",
        "sensitivity",
        Kind.SUPERIORITY,
        (("cppo", "cppo_fixed_budget", "cppo_low_w_min"), ("dppo",)),
    ),
    Claim(
        "kl_about_tv",
        "CPPO on KL is comparable to CPPO on total variation",
        "kl_vs_tv",
        Kind.EQUIVALENCE,
        (("cppo_kl",), ("cppo",)),
        MARGIN,
    ),
    Claim("kl_above", "CPPO on KL is above DPPO", "kl_vs_tv", Kind.SUPERIORITY, (("cppo_kl",), ("dppo",))),
    Claim(
        "trm_below",
        "TRM Max&Avg is below CPPO",
        "kl_vs_tv",
        Kind.SUPERIORITY,
        (("cppo",), ("trm_max_avg",)),
    ),
    Claim(
        "trm_max_avg",
        "TRM Max&Avg is about DPPO",
        "kl_vs_tv",
        Kind.EQUIVALENCE,
        (("trm_max_avg",), ("dppo",)),
        MARGIN,
    ),
    Claim(
        "binary",
        "The binary divergence is about Top-K",
        "binary_vs_topk",
        Kind.EQUIVALENCE,
        (("cppo_binary_tv",), ("cppo",)),
        MARGIN,
    ),
)

# Names in the paper's ablation curves -> ours.
_PAPER_NAMES: Mapping[str, str] = {
    "cppo_tv": "cppo",
    "cppo_topk_tv": "cppo",
    "cppo_db0.02_w0.8": "cppo",
    "cppo_db0.03_w0.8": "cppo_fixed_budget",
    "cppo_db0.02_w0.6": "cppo_low_w_min",
}


def named(variant: str, variants: Sequence[str]) -> str:
    """The name of `variant` in a sweep with these `variants`; `variant` itself if the sweep does not have it."""
    if variant in variants:
        return variant
    return next((name for name in variants if _PAPER_NAMES.get(name) == variant), variant)


def pairs(claim: Claim, variants: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(variant, comparison variant) pairs of a claim, as a sweep with these `variants` names them; "" stands for 0."""
    if claim.kind is Kind.BEST:
        best = named(claim.tiers[0][0], variants)
        return tuple((best, other) for other in variants if other != best)
    if claim.kind is Kind.POSITIVE:
        return tuple((named(variant, variants), "") for variant in claim.tiers[0])
    return tuple(
        (named(above, variants), named(below, variants))
        for upper, lower in zip(claim.tiers, claim.tiers[1:], strict=False)
        for above in upper
        for below in lower
    )


def claims_about(variants: Mapping[str, Sequence[str]], whole: bool = False) -> list[Claim]:
    """The claims that these sweeps (name -> names of variants) can test.

    If the paper has no claim about a sweep, the claim is that CPPO is best in it, unless the sweep is part of a `whole`
    study.
    """
    stated = [claim for claim in CLAIMS if claim.sweep in variants]
    if stated or whole:
        return stated
    [best] = (claim for claim in CLAIMS if claim.kind is Kind.BEST)
    text = "CPPO is best in every setting of this sweep (the paper says it of its main grid)"
    return [
        replace(best, text=text, sweep=name, after=None)
        for name, of_sweep in variants.items()
        if best.tiers[0][0] in of_sweep and len(of_sweep) > 1
    ]


@dataclass(frozen=True)
class Registered:
    """One registration of a sweep's hypotheses in the store: the digest of their statement, and when (milliseconds
    since the epoch).

    `code`: the version that registered it, "" if unknown. `settings_differ`: the settings of the runs were others then.
    `changes`: what the sweep states differently now, for a registration of another statement. `looks`: each (seeds, of
    so many test seeds) at which somebody saw results before the end.
    """

    digest: str
    time_ms: int
    code: str = ""
    settings_differ: bool = False
    changes: tuple[str, ...] = ()
    looks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Hypotheses:
    """A sweep file's claims, the digest of their statement (empty for
    a file without hypotheses), and the sweep's registrations in the store, the oldest first. `deleted`: run id -> when
    the first of its deleted or replaced results began (milliseconds since the epoch). `code`: the version that analyses
    the results.
    """

    claims: tuple[Claim, ...] = ()
    digest: str = ""
    registered: tuple[Registered, ...] = ()
    code: str = ""
    deleted: Mapping[str, int] = field(default_factory=dict)


NONE_STATED = Hypotheses()


@dataclass(frozen=True)
class Standing:
    """What a result on a hypothesis counts for. `words`: when it was registered, what has changed since, and which runs
    are missing. `confirmatory`: registered before all of its runs, unchanged, and all of its runs have a result, and so
    is the claim before it; a sequential claim may stop before its last runs.
    """

    words: str
    confirmatory: bool


def standing(stated: Hypotheses, claim: Claim, board: Scoreboard) -> Standing:
    """The standing of a claim in this report."""
    same = [registered for registered in stated.registered if registered.digest == stated.digest]
    versions = [registered for registered in stated.registered if registered.digest != stated.digest]
    now = next((registered for registered in same if not registered.settings_differ), None)
    if now is None:
        words = "Not registered: `cppo launch` registers hypotheses before their runs."
        if same:
            words = (
                f"Not as registered on {_when(same[-1].time_ms)} ({stated.digest}): settings of its runs outside the "
                "sweep file (in conf/) have changed since."
            )
        elif versions:
            last = versions[-1]
            changed = f": {'; '.join(last.changes)}" if last.changes else ""
            words = (
                f"Not as registered on {_when(last.time_ms)} ({last.digest}): the sweep file or the overrides have "
                f"changed since (now {stated.digest}){changed}."
            )
        return Standing(f"{words} Exploratory.", False)
    # When the first attempt at each run that tests the claim began, deleted and replaced ones included.
    tests = {
        run.run_id
        for run in board.runs
        if run.seed is not None and claim.is_tested_by(run.model, run.variant, run.seed)
    }
    starts = [
        min(start, stated.deleted.get(run_id, start))
        for run_id, start in board.data.begun.items()
        if run_id in tests
    ]
    begun, confirmatory = f"on {_when(now.time_ms)} ({stated.digest})", False
    counts = f"the {counted(len(starts), 'run')} that test{'s' * (len(starts) == 1)} it"
    if not starts:
        text = f"Pre-registered {begun}; none of the runs that test it is in this report."
    elif early := sum(start < now.time_ms for start in starts):
        text = f"Registered {begun}, when {early} of {counts} had begun. Exploratory."
    else:
        text = f"Pre-registered {begun}, before any of {counts}; unchanged."
        if now.looks and not claim.sequential:
            seeds, of = now.looks[0]
            times = counted(len(now.looks), "time")
            text += f" Looked at {times} before the end, first at {seeds} of {of} seeds."
        absent = frozenset() if claim.sequential else claim.tests - board.results
        confirmatory = not absent
        if absent:
            total = counted(len(claim.tests), "run")
            without = f"{len(absent)} {has(len(absent))} no result in this report"
            text += f" Of the {total} that test it, {without}: exploratory."
        predecessors = [earlier for earlier in stated.claims if earlier.key == claim.after]
        if confirmatory and not all(
            standing(stated, earlier, board).confirmatory for earlier in predecessors
        ):
            text, confirmatory = f"{text} Exploratory, as the hypothesis before it.", False
        if now.code not in ("", stated.code):
            text += f" Registered with version {now.code}, analysed with {stated.code}."
    if versions:  # somebody could have chosen from them afterwards
        listed = "; ".join(
            f"{version.digest} on {_when(version.time_ms)}"
            + (f" ({', '.join(version.changes)})" if version.changes else "")
            for version in versions
        )
        text += f" Other versions registered for this sweep: {listed}."
    return Standing(text, confirmatory)


def withdrawn(name: str, stated: Hypotheses) -> tuple[str, ...]:
    """A sentence on hypotheses that are registered for the sweep `name` although its file has none; else nothing."""
    if stated.digest or not stated.registered:
        return ()
    listed = "; ".join(
        f"{registered.digest} on {_when(registered.time_ms)}" for registered in stated.registered
    )
    return (
        f"Hypotheses of {name} were registered ({listed}) and are not in its file any more, so nothing here confirms "
        "or refutes them.",
    )


def _when(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_ms / 1000))
