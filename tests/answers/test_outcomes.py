"""Outcomes of problems: ids, the file, and what is refused of it."""

import io
import math
from typing import Any

import numpy as np
import pytest

from cppo_lab.answers import outcomes, tokens
from cppo_lab.answers.outcomes import chosen_problems, no_outcomes, problem_ids, read, write
from tests.answers import made
from tests.conftest import user_error


def test_a_file_holds_what_was_written_and_equal_outcomes_are_equal_bytes() -> None:
    written = made.outcomes()
    found = read(write(written), "the file")
    for name, value in vars(written).items():
        np.testing.assert_array_equal(getattr(found, name), value)
        assert getattr(getattr(found, name), "dtype", None) == getattr(value, "dtype", None)
    assert write(found) == write(made.outcomes()) == write(written)
    assert len(write(made.outcomes(problems=90, validations=112))) <= 2**20  # the paper's validations


def test_rows_behind_a_checkpoint_go() -> None:
    whole = made.outcomes(validations=4)
    for step, rows in {-1: 0, 0: 1, 9: 1, 10: 2, 30: 4, 99: 4}.items():
        found = whole.until(step)
        assert found.steps.tolist() == [0, 10, 20, 30][:rows]
        assert found.right.shape == found.cut_off.shape == found.length.shape == (rows, 6)


def test_ids_are_of_problems_not_of_places() -> None:
    ids = problem_ids(["a", "a", "b"], ["x", "y", "x"])
    assert problem_ids(["b", "a", "a"], ["x", "y", "x"]) == (ids[2], ids[1], ids[0])
    assert len(set(ids)) == 3
    assert problem_ids(["a", "a", "a"], ["x", "x", "x"]) == (ids[0], f"{ids[0]}-2", f"{ids[0]}-3")


def test_chosen_problems_are_of_all_benchmarks() -> None:
    benchmark_of = [0] * 5 + [1] * 2 + [2] * 5
    every = list(range(12))
    for most, chosen in ((8, [0, 1, 2, 5, 6, 7, 8, 9]), (0, []), (None, every), (99, every)):
        assert chosen_problems(benchmark_of, most) == chosen


@pytest.mark.parametrize(
    "name, value, why",
    [
        ("samples", 3, "more answers are right, or truncated, than there are"),
        ("samples", 0, "samples=0: 1 to 65535 are wanted"),
        ("samples", True, "it has samples=True: Input should be a valid integer"),
        ("samples", 2**16, "samples=65536: 1 to 65535"),
        ("problems", ("p",) * 6, "a problem or a benchmark is named twice"),
        ("benchmarks", ("aime24", "aime24"), "a problem or a benchmark is named twice"),
        ("problems", ("p",), "its problems and benchmarks have different numbers"),
        ("benchmarks", ("aime24",), "a problem has no benchmark, or a benchmark no problem"),
        ("benchmarks", ("aime24", "aime25", "nobody's"), "a problem has no benchmark, or a benchmark no"),
        ("steps", [0, 10, 10], "its steps do not increase from 0"),
        ("steps", [-1, 10, 20], "its steps do not increase from 0"),
        ("length", [[math.nan] * 6] * 3, "a length is not a number >= 0"),
        ("length", [[-1] * 6] * 3, "a length is not a number >= 0"),
        ("cut_off", [[17] * 6] * 3, "more answers are right, or truncated, than there are"),
        ("right", [[0] * 3] * 6, "its columns have different shapes"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, value: Any, why: str) -> None:
    with user_error(rf"stranger\.npz has no outcomes of validations \({why}.*\): delete that file"):
        read(write(made.forged(made.outcomes(), **{name: value})), "stranger.npz")


def test_values_at_their_limits_are_taken() -> None:
    most = np.full(2, 2**16 - 1)
    full = no_outcomes(2**16 - 1, ["a"], ["a-1", "a-2"], [0, 0]).append(0, most, most, np.zeros(2))
    assert (full.right.tolist(), full.length.tolist()) == ([[65535, 65535]], [[0.0, 0.0]])


@pytest.mark.parametrize(
    "right, why",
    [
        ([1], r"of shape \(1,\), of 2 problems"),
        ([[1, 2]], r"of shape \(1, 2\), of 2 problems"),
        ([-1, 2], "a count is not a whole number >= 0"),
        ([0.5, 2], "a count is not a whole number >= 0"),
        ([2**16, 0], "a count is not a whole number >= 0"),
        ([5, 0], "more answers are right"),
    ],
)
def test_a_validation_that_is_none_is_refused(right: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        no_outcomes(4, ["a"], ["a-1", "a-2"], [0, 0]).append(0, np.array(right), np.zeros(2), np.ones(2))


@pytest.mark.parametrize("module, content", [(outcomes, made.outcomes()), (tokens, made.tokens())])
def test_no_file_is_trusted(monkeypatch: pytest.MonkeyPatch, module: Any, content: Any) -> None:
    """Cut off, pickled, of another format, too large."""
    data, pickled = module.write(content), io.BytesIO()
    np.savez(pickled, **dict(np.load(io.BytesIO(data))) | {"about": np.array([{"a": 1}], dtype=object)})
    for broken in (b"", b"PK", data[:100], data[:-1], b"\x00" * 100):
        with user_error("the file has no (outcomes|tokens) of .*truncated"):
            module.read(broken, "the file")
    with user_error("allow_pickle=False"):
        module.read(pickled.getvalue(), "the file")
    for name, value, message in (("FORMAT", 2, "is not of format 2"), ("LARGEST", 10, "more than the 10")):
        monkeypatch.setattr(module, name, value)
        with user_error(message):
            module.read(data, "the file")
