"""Sweeps whose variants have known levels: flat curves, one score per seed, the same on both benchmarks."""

from collections.abc import Mapping, Sequence

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from tests.analysis.made_sweeps import MadeRun, both, scored

STEPS = range(0, 101, 10)


def flat(levels: Mapping[str, Sequence[float]], model: str = "m") -> list[MadeRun]:
    """`levels`: variant -> the score of seed 0, 1, ..."""
    return [
        MadeRun(variant, model, seed, both(dict.fromkeys(STEPS, score)))
        for variant, scores in levels.items()
        for seed, score in enumerate(scores)
    ]


def board_of(runs: Sequence[MadeRun], sweep: str = "main", gaps: Sequence[MadeRun] = ()) -> Scoreboard:
    """The runs scored; `gaps` are declared and not there."""
    return scored(runs, sweep, gaps)


def broken(variant: str, seed: int, top: float) -> MadeRun:
    """A run that reached `top`, fell to 0 and was ended half-way."""
    curve = both({0: 0.1, 30: top, 40: 0.0, 50: 0.0})
    return MadeRun(variant, "m", seed, curve, status=schema.COLLAPSED)
