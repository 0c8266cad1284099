"""The first screen: what it says of made sweeps whose truth is plain."""

import pytest

from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.analysis.statistics.verdicts import verdicts
from cppo_lab.reports.answer import MOST, ShortAnswer, ShortAnswers, Word, short_answers
from tests.analysis.statistics.made_curves import board_of, flat

BASE = [0.300, 0.304, 0.297, 0.302]
WIGGLE = (0.002, -0.001, -0.002, 0.001)
NOISY = (0.2, -0.1, -0.2, 0.1)
ABOVE = Claim("above", "CPPO is above DPPO", "main", Kind.SUPERIORITY, (("cppo",), ("dppo",)))


def moved(shift: float, wiggle: tuple[float, ...] = WIGGLE) -> list[float]:
    return [score + shift + extra for score, extra in zip(BASE, wiggle, strict=True)]


def answers(cells: dict[str, list[float]], *own: Claim) -> ShortAnswers:
    board = board_of(flat(cells))
    return short_answers(verdicts({"main": board}, own), sweep_statistics(board))


def only(found: ShortAnswers) -> ShortAnswer:
    [answer] = found.answers
    return answer


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
    answer = only(answers({"cppo": ours, "dppo": BASE}, *own))
    assert (answer.word, answer.sentence[: len(beginning)]) == (word, beginning)
    assert "4 seeds each" in answer.sentence


def test_the_better_one_comes_first_with_a_positive_difference() -> None:
    sentence = only(answers({"cppo": moved(-0.05), "dppo": BASE})).sentence
    assert ": +5.00 points (+4.71 to +5.29), 4 seeds each." in sentence


def test_one_run_each_decides_nothing() -> None:
    answer = only(answers({"cppo": [0.9], "dppo": [0.1]}))
    assert answer.word is Word.OPEN
    assert answer.sentence.startswith("One run each cannot decide between CPPO and DPPO on ")
    assert "+80.00 points" in answer.sentence and "(" not in answer.sentence


def test_a_claim_about_speed_says_so() -> None:
    claim = Claim("faster", "CPPO is faster", "main", Kind.SUPERIORITY, ABOVE.tiers, score=Score.AREA)
    assert "learns faster" in only(answers({"cppo": moved(0.05), "dppo": BASE}, claim)).sentence


def test_many_comparisons_are_corrected_and_cut() -> None:
    """One just significant difference among many is none; what is not listed is counted."""
    wide = (0.012, -0.011, 0.002, 0.011)
    alone = answers({"a": moved(0.02, wide), "dppo": BASE})
    assert only(alone).word is Word.BETTER
    crowd = {f"same_{number}": moved(0.02, wide) for number in range(MOST + 2)}
    found = answers({**crowd, "dppo": BASE})
    assert (len(found.answers), found.more) == (MOST, 2)
    assert {answer.word for answer in found.answers} == {Word.OPEN}
