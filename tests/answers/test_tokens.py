"""Tokens of training responses: the file, what fits into its room, which groups, and what is refused."""

import itertools
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
    assert [*tokens.responses()] == [slice(0, 5), slice(5, 6), slice(6, 14)]


def test_a_bounded_file_has_whole_responses() -> None:
    lengths, seen = (900, 50, 700, 0, 300), set()
    tokens = made.tokens(lengths)
    for most in range(0, len(write(tokens)) + 200, 200):
        data = write_within(tokens, most)
        if data is None:
            assert len(write(tokens.first(1))) > most
            continue
        found = read(data, "the file")
        seen.add(count := len(found.ends))
        assert len(data) <= most and found.left_out == 5 - count
        same(found, tokens.first(count))
        assert [*found.ends] == [*itertools.accumulate(lengths[:count])]
    assert {1, 2, 5} <= seen
    assert write_within(tokens, len(write(tokens))) == write(tokens)
    paper = made.tokens(lengths=(16_384,), spread=0.05)  # the part of a step in the paper's room
    assert write_within(paper, int(50 * 2**20 / 113 * 0.6)) is not None


def test_groups_are_spread_and_the_last_one_comes_first() -> None:
    four = [3, 5, 8, 9]
    for trained, most, chosen in (
        (four, 2, [9, 5]),
        (four, 1, [9]),
        ([3, 5], 9, [5, 3]),
        ([], 2, []),
        ([3], 0, []),
    ):
        assert chosen_groups(trained, most) == chosen


@pytest.mark.parametrize(
    "name, value, why",
    [
        ("ends", [5, 6, 13], "its responses do not cover its tokens"),
        ("ends", [6, 5, 14], "its responses do not cover its tokens"),
        ("ends", [-1, 6, 14], "its responses do not cover its tokens"),
        ("group", [0, 0], "its columns have different lengths"),
        ("logp", [0.0] * 13, "its columns have different lengths"),
        ("group", [0, -1, 0], "a number of a response, or a test, is out of range"),
        ("draw", [0, 1, -1], "a number of a response, or a test, is out of range"),
        ("reason", [3] * 14, "a number of a response, or a test, is out of range"),
        ("keep", [1.5] * 14, "a divergence, or a share kept, is out of range"),
        ("divergence", [-0.1] * 14, "a divergence, or a share kept, is out of range"),
        ("keep", [math.nan] * 14, "one of advantage, .* keep is not finite"),
        ("logp", [math.inf] * 14, "one of advantage, .* keep is not finite"),
        ("order", [0] * 3, "its order is not a permutation"),
        ("order", [14] * 14, "its order is not a permutation"),
        ("pieces", (), "its vocabulary is not sorted, or has no text for each entry"),
        ("vocabulary", [1, 0], "its vocabulary is not sorted, or has no text for each entry"),
        ("vocabulary", [1, 1], "its vocabulary is not sorted, or has no text for each entry"),
        ("vocabulary", [], "a token is not in its vocabulary"),
        ("rule", RuleUsed("cppo", None, {"delta": math.nan}, "binary", "tv"), "a constant .* is no number"),
        ("rule", RuleUsed("cppo", None, {"delta": [1]}, "binary", "tv"), "rule.constants"),  # type: ignore[dict-item]
        ("rule", RuleUsed(1, None, {}, "binary", "tv"), "rule.name=1: "),  # type: ignore[arg-type]
        ("rule", SimpleNamespace(constants={}), "rule.name: Field required"),
        ("step", -1, "step=-1: "),
        ("tests", (1, 2), "tests.0=1: "),
        ("tests", "threshold", "tests='threshold': "),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, value: Any, why: str) -> None:
    pieces = {"pieces": ("a", "b")[: len(value)]} if name == "vocabulary" else {}  # a text for each
    with user_error(rf"stranger\.npz has no tokens of training responses \(.*{why}.*\): delete that file"):
        read(write(made.forged(made.tokens(), **{name: value}, **pieces)), "stranger.npz")


def test_values_at_their_limits_are_taken() -> None:
    zeros = np.zeros(14, np.float32)
    tokens = replace(made.tokens(), order=np.arange(14, dtype=np.int32), divergence=zeros, keep=zeros)
    same(read(write(tokens), "the file"), tokens)
