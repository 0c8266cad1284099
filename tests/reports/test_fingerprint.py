"""Fingerprints: equal for what is equal, in every process; different for what could look alike."""

import os
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cppo_lab.reports.fingerprint import Unknown, drawing_code, fingerprint, report_code, tree


class Colour(Enum):
    RED = 1


@dataclass(frozen=True)
class Info:
    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Other:
    name: str
    values: tuple[float, ...]


def drawn(info: Info, headed: bool = True) -> None: ...


DIFFERENT = [
    *(None, True, False, 0, 1, 0.0, -0.0, 1.0, "1", "", b"", b"1", (), (1,), ((1,),), (1, 2), (2, 1)),
    *({"a": 1}, {"a": 1.0}, {1: "a"}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, frozenset({1}), float("nan"), float("inf")),
    *(Colour.RED, Info("a", (1.0,)), Info("a", (1.0, 2.0)), Other("a", (1.0,))),
    *(drawn, partial(drawn), partial(drawn, Info("a", ())), partial(drawn, Info("b", ()))),
    partial(drawn, headed=False),
    *(np.zeros(2), np.zeros(3), np.zeros((2, 1)), np.zeros(2, np.float32), np.float32(0.0), 1 / 3, 0.1 + 0.2, 0.3),
    *("float", ("float", "1"), ("items", 1), ("enum", "RED")),
]  # fmt: skip


def test_different_values_have_different_fingerprints() -> None:
    found = [fingerprint(value) for value in DIFFERENT]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "value", [lambda: 0, object(), Info, np.array([object()]), partial(lambda: 0), open, {1: object()}]
)
def test_what_has_no_content_of_its_own_has_none(value: object) -> None:
    with pytest.raises(Unknown):
        fingerprint(value)


def test_it_is_the_same_in_another_process() -> None:
    code = (
        "from cppo_lab.reports.fingerprint import fingerprint, report_code, drawing_code;"
        "print(fingerprint((frozenset('abcdef'), {'a': 1.5})), report_code(), drawing_code())"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, PYTHONHASHSEED=seed),
        capture_output=True,
        text=True,
        check=True,
    )
    ours = (fingerprint((frozenset("abcdef"), {"a": 1.5})), report_code(), drawing_code())
    assert other.stdout == " ".join(ours) + "\n"


def test_a_tree_is_its_files_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.py").write_text("1")
    first = tree(tmp_path)
    (tmp_path / "notes.txt").write_text("not read")
    assert tree(tmp_path) == first
    (tmp_path / "inner" / "a.py").rename(tmp_path / "a.py")
    assert tree(tmp_path) != first
    (tmp_path / "a.py").write_text("2")
    assert tree(tmp_path) != first
