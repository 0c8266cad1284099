"""Tokens of training responses: the file, what fits into its room, which groups, and what is refused."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cppo_lab.answers.tokens import RecordedTokens, RuleUsed, chosen_groups, read, write, write_within
from tests.answers import made
from tests.conftest import user_error


def same(found: RecordedTokens, expected: RecordedTokens) -> None:
    for name, value in vars(expected).items():
        np.testing.assert_array_equal(getattr(found, name), value)


@pytest.mark.parametrize("delta_b", [0.02, math.inf])
def test_a_file_holds_what_was_written_and_equal_tokens_are_equal_bytes(delta_b: float) -> None:
    tokens = replace(made.tokens(), left_out=3)
    tokens = replace(tokens, rule=replace(tokens.rule, constants={"delta_b": delta_b}))
    same(read(write(tokens), "the file"), tokens)
    assert write(tokens) == write(replace(tokens))


def test_texts_and_reasons_are_those_of_each_token() -> None:
    tokens = replace(made.tokens(), reason=np.array([2, 1] + [0] * 12, np.uint8))
    assert tokens.texts() == [f" {number}" for number in tokens.token]
    assert [tokens.reason_of(place) for place in range(3)] == ["budget", "threshold", ""]
    assert [(place.start, place.stop) for place in tokens.responses()] == [(0, 5), (5, 6), (6, 14)]


def test_a_bounded_file_has_whole_responses() -> None:
    tokens, seen = made.tokens(lengths=(900, 50, 700, 0, 300)), set()
    for most in range(0, len(write(tokens)) + 200, 200):
        data = write_within(tokens, most)
        if data is None:
            assert len(write(tokens.first(1))) > most
            continue
        found = read(data, "the file")
        assert len(data) <= most and found.left_out == 5 - len(found.ends)
        same(found, tokens.first(len(found.ends)))
        assert found.ends.tolist() == np.cumsum([900, 50, 700, 0, 300])[: len(found.ends)].tolist()
        seen.add(len(found.ends))
    assert {1, 2, 5} <= seen
    assert write_within(tokens, len(write(tokens))) == write(tokens)
    paper = made.tokens(lengths=(16_384,), spread=0.05)  # the part of a step in the paper's room
    assert write_within(paper, int(50 * 2**20 / 113 * 0.6)) is not None


@pytest.mark.parametrize(
    "trained, most, chosen",
    [([3, 5, 8, 9], 2, [9, 5]), ([3, 5, 8, 9], 1, [9]), ([3, 5], 9, [5, 3]), ([], 2, []), ([3], 0, [])],
)
def test_groups_are_spread_and_the_last_one_comes_first(
    trained: list[int], most: int, chosen: list[int]
) -> None:
    assert chosen_groups(trained, most) == chosen


COVER, LENGTHS = "its responses do not cover its tokens", "its columns have different lengths"
FINITE, RANGE = "one of advantage, .* keep is not finite", "a divergence, or a share kept, is out of range"
ORDER, NUMBER = "its order is not a permutation", "a number of a response, or a test, is out of range"
VOCABULARY = "its vocabulary is not sorted, or has no text for each entry"


@pytest.mark.parametrize(
    "change, why",
    [
        ({"ends": [5, 6, 13]}, COVER),
        ({"ends": [6, 5, 14]}, COVER),
        ({"ends": [-1, 6, 14]}, COVER),
        ({"group": [0, 0]}, LENGTHS),
        ({"logp": [0.0] * 13}, LENGTHS),
        ({"group": [0, -1, 0]}, NUMBER),
        ({"draw": [0, 1, -1]}, NUMBER),
        ({"reason": [3] * 14}, NUMBER),
        ({"keep": [1.5] * 14}, RANGE),
        ({"divergence": [-0.1] * 14}, RANGE),
        ({"keep": [math.nan] * 14}, FINITE),
        ({"logp": [math.inf] * 14}, FINITE),
        ({"order": [0] * 3}, ORDER),
        ({"order": [14] * 14}, ORDER),
        ({"pieces": ()}, VOCABULARY),
        ({"vocabulary": [1, 0], "pieces": ("a", "b")}, VOCABULARY),
        ({"vocabulary": [1, 1], "pieces": ("a", "b")}, VOCABULARY),
        ({"vocabulary": [], "pieces": ()}, "a token is not in its vocabulary"),
        (
            {"rule": RuleUsed("cppo", None, {"delta": math.nan}, "binary", "tv")},
            "a constant .* is no number",
        ),
        ({"rule": RuleUsed("cppo", None, {"delta": [1]}, "binary", "tv")}, "rule.constants"),  # type: ignore[dict-item]
        ({"rule": RuleUsed(1, None, {}, "binary", "tv")}, "rule.name=1: "),  # type: ignore[arg-type]
        ({"rule": SimpleNamespace(constants={})}, "rule.name: Field required"),
        ({"step": -1}, "step=-1: "),
        ({"tests": (1, 2)}, "tests.0=1: "),
        ({"tests": "threshold"}, "tests='threshold': "),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict[str, Any], why: str) -> None:
    with user_error(rf"stranger\.npz has no tokens of training responses \(.*{why}.*\): delete that file"):
        read(write(made.forged(made.tokens(), **change)), "stranger.npz")


def test_values_at_their_limits_are_taken() -> None:
    zeros = np.zeros(14, np.float32)
    tokens = replace(made.tokens(), order=np.arange(14, dtype=np.int32), divergence=zeros, keep=zeros)
    same(read(write(tokens), "the file"), tokens)
