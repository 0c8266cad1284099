"""Tokens of training responses: the file, what fits into its room, which groups, and what is refused."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from cppo_lab.answers import tokens as files
from cppo_lab.answers.tokens import PER_TOKEN, RuleUsed, chosen_groups, read, write, write_within
from cppo_lab.errors import UserError
from tests.answers import made

ARRAYS = ("ends", "group", "draw", "advantage", "reward", *PER_TOKEN, "order", "vocabulary")


def same(one: Any, other: Any) -> None:
    assert (one.step, one.rule, one.tests, one.pieces, one.left_out) == (
        other.step,
        other.rule,
        other.tests,
        other.pieces,
        other.left_out,
    )
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_file_holds_what_was_written_and_equal_tokens_are_equal_bytes() -> None:
    one = replace(made.tokens(), left_out=3)
    same(read(write(one), "the file"), one)
    assert write(one) == write(replace(made.tokens(), left_out=3))
    unlimited = replace(one, rule=replace(one.rule, constants={"delta_b": float("inf")}))
    assert read(write(unlimited), "the file").rule.constants == {"delta_b": float("inf")}


def test_texts_and_reasons_are_those_of_each_token() -> None:
    one = replace(made.tokens(), reason=np.array([2, 1] + [0] * 12, np.uint8))
    assert one.texts() == [f" {number}" for number in one.token]
    assert [one.reason_of(place) for place in range(3)] == ["budget", "threshold", ""]
    assert [(place.start, place.stop) for place in one.responses()] == [(0, 5), (5, 6), (6, 14)]


def test_a_bounded_file_has_whole_responses() -> None:
    one = made.tokens(lengths=(900, 50, 700, 0, 300))
    whole = len(write(one))
    seen = set()
    for most in range(0, whole + 200, 200):
        data = write_within(one, most)
        if data is None:
            assert len(write(one.first(1))) > most
            continue
        assert len(data) <= most
        found = read(data, "the file")
        same(found, one.first(len(found.ends)))
        assert found.left_out == 5 - len(found.ends)
        assert found.ends.tolist() == np.cumsum([900, 50, 700, 0, 300])[: len(found.ends)].tolist()
        seen.add(len(found.ends))
    assert {1, 2, 5} <= seen


def test_a_response_of_16384_tokens_fits_into_its_part_of_the_papers_room() -> None:
    one = made.tokens(lengths=(16_384,), spread=0.05)
    room = 50 * 2**20 / 113
    assert write_within(one, int(room * 0.6)) is not None


def test_groups_are_spread_and_the_last_one_comes_first() -> None:
    assert chosen_groups([3, 5, 8, 9], 2) == [9, 5]
    assert chosen_groups([3, 5, 8, 9], 1) == [9]
    assert chosen_groups([3, 5], 9) == [5, 3]
    assert chosen_groups([], 2) == chosen_groups([3], 0) == []


@pytest.mark.parametrize(
    "change",
    [
        {"ends": np.array([5, 6, 13])},
        {"ends": np.array([6, 5, 14])},
        {"ends": np.array([-1, 6, 14])},
        {"group": np.array([0, 0])},
        {"draw": np.array([0, 1, -1])},
        {"keep": np.full(14, 1.5, np.float32)},
        {"keep": np.full(14, np.nan, np.float32)},
        {"divergence": np.full(14, -0.1, np.float32)},
        {"logp": np.full(14, np.inf, np.float32)},
        {"reason": np.full(14, 3, np.uint8)},
        {"order": np.zeros(3, np.int32)},
        {"order": np.full(14, 14, np.int32)},
        {"pieces": ()},
        {"vocabulary": np.zeros(0, np.int32), "pieces": ()},
        {"rule": RuleUsed("cppo", None, {"delta": float("nan")}, "binary", "tv")},
        {"rule": RuleUsed("cppo", None, {"delta": [1]}, "binary", "tv")},  # type: ignore[dict-item]
        {"rule": RuleUsed(1, None, {}, "binary", "tv")},  # type: ignore[arg-type]
        {"step": -1},
        {"logp": np.zeros(13, np.float32)},
        {"tests": (1, 2)},
        {"tests": "threshold"},
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    forged = made.tokens()
    for name, value in change.items():
        object.__setattr__(forged, name, value)
    with pytest.raises(
        UserError, match=r"stranger\.npz has no tokens of training responses .*: delete that file"
    ):
        read(write(forged), "stranger.npz")


def test_no_file_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(made.tokens())
    for broken in (b"", data[:-1], data[:500]):
        with pytest.raises(UserError, match="the file has no tokens"):
            read(broken, "the file")
    monkeypatch.setattr(files, "LARGEST", 10)
    with pytest.raises(UserError, match="more than the 10"):
        read(data, "the file")


def test_a_file_of_another_format_or_without_a_rule_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Unnamed:
        constants: dict[str, float] = field(default_factory=dict)

    forged = made.tokens()
    object.__setattr__(forged, "rule", Unnamed())
    with pytest.raises(UserError, match=r"it names no rule.*: delete that file"):
        read(write(forged), "the file")
    monkeypatch.setattr(files, "FORMAT", 2)
    newer = write(made.tokens())
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"it is not of format 1.*: delete that file"):
        read(newer, "the file")
