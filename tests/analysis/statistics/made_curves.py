"""Sweeps whose variants have known levels: flat curves, one score per seed, the same on both benchmarks."""

import os
from collections.abc import Mapping, Sequence

from cppo_lab import schema
from cppo_lab.analysis.statistics.claims import MARGIN, Claim, Kind
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.analysis.statistics.verdicts import Verdict, judge
from tests.analysis.made_sweeps import MadeRun, both, scored

STUDIES = int(os.environ.get("CPPO_STUDIES", "400"))  # simulated ones of each test
STEPS = range(0, 101, 10)
TIERS = (("a",), ("b",))
ABOVE = Claim("above", "a is above b", "main", Kind.SUPERIORITY, TIERS)
ABOUT = Claim("about", "a is about b", "main", Kind.EQUIVALENCE, TIERS, MARGIN)
BEST = Claim("best", "a is best", "main", Kind.BEST, (("a",),))
MEAN = Claim("mean", "a is above b", "main", Kind.SUPERIORITY, TIERS, over_models=True)
BASE = [0.300, 0.304, 0.297, 0.302]


def moved(shift: float, *wiggle: float) -> list[float]:
    """BASE with a shift, and a wiggle per seed."""
    extras = wiggle or (0.002, -0.001, -0.002, 0.001)
    return [score + shift + extra for score, extra in zip(BASE, extras, strict=True)]


def flat(levels: Mapping[str, Sequence[float]], *models: str) -> list[MadeRun]:
    """`levels`: variant -> the score of seed 0, 1, ..., the same on each model."""
    return [
        MadeRun(variant, model, seed, both(dict.fromkeys(STEPS, score)))
        for model in models or ("m",)
        for variant, scores in levels.items()
        for seed, score in enumerate(scores)
    ]


def broken(variant: str, seed: int, top: float) -> MadeRun:
    """A run that reached `top`, fell to 0 and was ended half-way."""
    curve = both({0: 0.1, 30: top, 40: 0.0, 50: 0.0})
    return MadeRun(variant, "m", seed, curve, status=schema.COLLAPSED)


def judged(claim: Claim, runs: Sequence[MadeRun], gaps: Sequence[MadeRun] = ()) -> Verdict:
    """The verdict on a claim from these runs."""
    board = scored(runs, claim.sweep, gaps)
    return judge(claim, board, run_values(board))
