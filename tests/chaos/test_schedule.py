"""The schedule of a chaos run."""

import pytest

from dev.chaos.schedule import COMES_BACK, KINDS, LAST, LONG, LONGEST_PAUSE, SHORT, draw


def test_a_seed_gives_one_schedule() -> None:
    assert draw(3, LONG) == draw(3, dict(reversed(LONG.items())))
    assert draw(3, LONG) != draw(4, LONG)


@pytest.mark.parametrize("counts", [LONG, SHORT])
def test_every_kind_comes_as_often_as_asked(counts: dict[str, int]) -> None:
    assert set(counts) == set(KINDS)
    found = draw(0, counts)
    assert {kind: sum(one.kind == kind for one in found) for kind in KINDS} == counts
    assert list(found) == sorted(found)
    assert all(0 <= one.at <= LAST and 0 <= one.chance < 1 for one in found)
    assert all((1 <= one.pause <= LONGEST_PAUSE) == (one.kind in COMES_BACK) for one in found)


def test_the_first_launcher_dies_at_once() -> None:
    assert draw(0, SHORT)[0].kind == "launcher"


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no such faults: earthquake"):
        draw(0, {"earthquake": 1})
