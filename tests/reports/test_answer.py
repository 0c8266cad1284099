"""The first screen: what it says of made sweeps whose truth is plain."""

import pytest

from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.analysis.statistics.verdicts import Word, verdicts
from cppo_lab.reports.verdict_view import short_answers
from tests.analysis.statistics.made_curves import board_of, flat

BASE = [0.300, 0.304, 0.297, 0.302]
WIGGLE = (0.002, -0.001, -0.002, 0.001)
NOISY = (0.2, -0.1, -0.2, 0.1)
ABOVE = Claim("above", "CPPO is above DPPO", "main", Kind.SUPERIORITY, (("cppo",), ("dppo",)))


def moved(shift: float, wiggle: tuple[float, ...] = WIGGLE) -> list[float]:
    return [score + shift + extra for score, extra in zip(BASE, wiggle, strict=True)]


def answers(cells: dict[str, list[float]], *own: Claim) -> list[tuple[Word, str]]:
    board = board_of(flat(cells))
    return short_answers(verdicts({"main": board}, own), (), sweep_statistics(board))


@pytest.mark.parametrize("own", [(), (ABOVE,)], ids=["against the baseline", "a hypothesis"])
@pytest.mark.parametrize(
    ("ours", "word", "beginning"),
    [
        (moved(0.05), Word.BETTER, "CPPO scores higher than DPPO on "),
        (moved(-0.05), Word.BETTER, "DPPO scores higher than CPPO on "),
        (moved(0.0), Word.SAME, "CPPO and DPPO are within 1 point on "),
        (moved(0.005), Word.SAME, "CPPO and DPPO are within 1 point on "),
        (moved(0.05, NOISY), Word.OPEN, "No difference between CPPO and DPPO on "),
        (moved(-0.05, NOISY), Word.OPEN, "No difference between CPPO and DPPO on "),
    ],
)
def test_what_a_comparison_shows(
    ours: list[float], word: Word, beginning: str, own: tuple[Claim, ...]
) -> None:
    [answer] = answers({"cppo": ours, "dppo": BASE}, *own)
    assert (answer[0], answer[1][: len(beginning)]) == (word, beginning)
    assert "4 seeds each" in answer[1]


def test_the_better_one_comes_first_with_a_positive_difference() -> None:
    [(_, sentence)] = answers({"cppo": moved(-0.05), "dppo": BASE})
    assert ": +5.00 points (+4.71 to +5.29), 4 seeds each." in sentence


def test_one_run_each_decides_nothing() -> None:
    [(word, sentence)] = answers({"cppo": [0.9], "dppo": [0.1]})
    assert word is Word.OPEN
    assert sentence.startswith("One run each cannot decide between CPPO and DPPO on ")
    assert "+80.00 points" in sentence and "(" not in sentence


def test_a_claim_about_speed_says_so() -> None:
    claim = Claim("faster", "CPPO is faster", "main", Kind.SUPERIORITY, ABOVE.tiers, score=Score.AREA)
    [(_, sentence)] = answers({"cppo": moved(0.05), "dppo": BASE}, claim)
    assert "learns faster" in sentence


def test_many_comparisons_are_corrected() -> None:
    """One just significant difference among many is none."""
    wide = (0.012, -0.011, 0.002, 0.011)
    [(alone, _)] = answers({"a": moved(0.02, wide), "dppo": BASE})
    assert alone is Word.BETTER
    crowd = {f"same_{number}": moved(0.02, wide) for number in range(8)}
    assert [word for word, _ in answers({**crowd, "dppo": BASE})] == [Word.OPEN] * 8
