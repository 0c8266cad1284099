"""Outcomes of problems: averages, ids, the file, and what is refused of it."""

import io
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cppo_lab.answers import outcomes as files
from cppo_lab.answers.outcomes import chosen_problems, no_outcomes, problem_ids, read, write
from cppo_lab.errors import UserError
from tests.answers import made


def test_a_file_holds_what_was_written_and_equal_outcomes_are_equal_bytes() -> None:
    one = made.outcomes()
    found = read(write(one), "the file")
    assert (found.samples, found.benchmarks, found.problems) == (one.samples, one.benchmarks, one.problems)
    for name in ("benchmark_of", "steps", "right", "cut_off", "length"):
        np.testing.assert_array_equal(getattr(found, name), getattr(one, name))
        assert getattr(found, name).dtype == getattr(one, name).dtype
    assert write(found) == write(made.outcomes()) == write(one)


def test_the_papers_validations_fit_in_a_megabyte() -> None:
    assert len(write(made.outcomes(problems=90, validations=112))) <= 2**20


def test_averages_are_those_of_a_loop() -> None:
    one = made.outcomes()
    for row, name in itertools.product(range(3), range(2)):
        own = [int(one.right[row, p]) / 16 for p in range(6) if one.benchmark_of[p] == name]
        assert one.averages()[row, name] == pytest.approx(sum(own) / 3, rel=1e-15)


def test_rows_behind_a_checkpoint_go() -> None:
    one = made.outcomes(validations=4)
    for step, rows in ((-1, 0), (0, 1), (9, 1), (10, 2), (30, 4), (99, 4)):
        found = one.until(step)
        assert found.steps.tolist() == [0, 10, 20, 30][:rows]
        assert found.right.shape == found.cut_off.shape == found.length.shape == (rows, 6)


def test_ids_are_of_problems_not_of_places() -> None:
    there = problem_ids(["a", "a", "b"], ["x", "y", "x"])
    assert problem_ids(["b", "a", "a"], ["x", "y", "x"]) == (there[2], there[1], there[0])
    assert len(set(there)) == 3
    assert problem_ids(["a", "a", "a"], ["x", "x", "x"]) == (there[0], f"{there[0]}-2", f"{there[0]}-3")


def test_chosen_problems_are_of_all_benchmarks() -> None:
    of = [0] * 5 + [1] * 2 + [2] * 5
    assert chosen_problems(of, 8) == [0, 1, 2, 5, 6, 7, 8, 9]
    assert chosen_problems(of, 0) == []
    assert chosen_problems(of, None) == chosen_problems(of, 99) == list(range(12))


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 3},  # fewer than are right
        {"samples": 0},
        {"samples": 2**16},
        {"problems": ("p",) * 6},
        {"problems": ("p",)},
        {"benchmarks": ("aime24",)},
        {"benchmarks": ("aime24", "aime25", "nobody's")},
        {"steps": np.array([0, 10, 10])},
        {"steps": np.array([-1, 10, 20])},
        {"length": np.full((3, 6), np.nan, np.float32)},
        {"length": np.full((3, 6), -1, np.float32)},
        {"cut_off": np.full((3, 6), 17, np.uint16)},
        {"right": np.zeros((6, 3), np.uint16)},
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        replace(made.outcomes(), **change)
    forged = made.outcomes()
    for name, value in change.items():
        object.__setattr__(forged, name, value)
    with pytest.raises(UserError, match=r"stranger\.npz has no outcomes of validations .*: delete that file"):
        read(write(forged), "stranger.npz")


def test_a_validation_that_is_none_is_refused() -> None:
    empty = no_outcomes(4, ["a"], ["a-1", "a-2"], [0, 0])
    for right in ([1], [[1, 2]], [-1, 2], [0.5, 2], [5, 0]):
        with pytest.raises(ValueError):
            empty.append(0, np.array(right), np.array([0, 0]), np.array([1.0, 1.0]))


def test_no_file_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off, with a flipped byte in its list, of another format, pickled, too large."""
    data = write(made.outcomes())
    buffer = io.BytesIO()
    np.savez(buffer, about=np.array([{"a": 1}], dtype=object))
    for broken in (b"", b"PK", data[:100], data[:-1], buffer.getvalue(), b"\x00" * 100):
        with pytest.raises(UserError, match="the file has no outcomes"):
            read(broken, "the file")
    monkeypatch.setattr(files, "FORMAT", 2)
    with pytest.raises(UserError, match="format 2"):
        read(data, "the file")
    monkeypatch.setattr(files, "LARGEST", 10)
    with pytest.raises(UserError, match="more than the 10"):
        read(data, "the file")
