"""The file of a run's metric history: what goes in comes out, and nothing in a foreign file is taken on trust."""

import io
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.tracking import history
from cppo_lab.tracking.history import HISTORY, History, from_rows, pack, unpack
from tests.conftest import user_error
from tests.fuzz.mangling import members, zipped

NAMES = st.sampled_from(["train/loss", "val/a/avg_at_16", "perf/step_seconds", "x", "é"])
INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.tuples(st.integers(-5, 5) | INT64, INT64, st.dictionaries(NAMES, st.floats())), max_size=40
)


def plain(history: History) -> dict[tuple[str, int], tuple[bytes, int]]:
    """(metric, step) -> (the value's bits, time)."""
    return {
        (name, step): (struct.pack("<d", value), time_ms)
        for name, columns in history.items()
        for step, value, time_ms in zip(*(column.tolist() for column in columns), strict=True)
    }


def about(**values: Any) -> Any:
    """The array of the names, with other content."""
    return np.frombuffer(json.dumps({"format": 1, "metrics": ["a", "b"]} | values).encode(), np.uint8)


RIGHT = {
    "about": about(),
    "ends": np.array([2, 3]),
    "step": np.array([1, 2, 1]),
    "value": np.array([0.5, np.nan, -np.inf]),
    "time_ms": np.array([7, 8, 7]),
}


def saved(**replaced: Any) -> bytes:
    """A right file, some of its arrays replaced."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **(RIGHT | replaced))
    return buffer.getvalue()


def headed(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    """A right file, but for the header of the values, which says `shape`."""
    files = members(saved())
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    return zipped(files | {"value.npy": header.getvalue() + files["value.npy"][128:]})


@given(ROWS)
def test_every_point_comes_back_and_the_first_of_a_step_counts(rows: list[history.Row]) -> None:
    expected: dict[tuple[str, int], tuple[bytes, int]] = {}
    for step, time_ms, values in rows:
        for name, value in values.items():
            expected.setdefault((name, step), (struct.pack("<d", value), time_ms))
    data = pack(from_rows(rows))
    read = unpack(data, HISTORY)
    assert plain(read) == expected
    assert list(plain(read)) == sorted(expected)
    assert pack(read) == data == pack(from_rows(list(rows)))


def test_the_file_is_what_its_description_says() -> None:
    read = unpack(saved(), HISTORY)
    assert list(plain(read)) == [("a", 1), ("a", 2), ("b", 1)]
    with np.load(io.BytesIO(pack(read)), allow_pickle=False) as file:
        for name, values in RIGHT.items():
            assert file[name].dtype == values.dtype
            np.testing.assert_array_equal(file[name], values)


# Why -> files that are refused for it.
BROKEN = {
    ".+": [
        *(b"", b"not a history, whatever its name says", saved()[:-30], saved()[200:], saved() + b"x"),
        zipped({str(number): b"" for number in range(2000)}),
        *(headed((size,)) for size in (2**60, 2**40, 10**30, -3)),
        *(headed((2**60,), "|V0"), headed((3,), "|O"), headed((1,) * 9000)),
        saved(more=np.ones(1)),
        saved(value=np.array([1.0, "x", None], dtype=object)),
        saved(step=np.array([1.0, 2.0, 1.0])),
        saved(value=np.ones((3, 1))),
        *(saved(about=about(**other)) for other in ({"format": 2}, {"metrics": None}, {"metrics": {"a": 1}})),
        *(saved(about=np.frombuffer(text, np.uint8)) for text in (b"{", b"[1]", b"[" * 100_000, b"\xff\xfe")),
    ],
    "its columns have different lengths": [saved(value=np.ones(2)), saved(ends=np.array([3]))],
    "its metrics do not cover its points": [
        saved(ends=np.array(ends)) for ends in ([2, 4], [1, 2], [-1, 3], [3, 3])
    ],
    "its steps are not sorted": [saved(step=np.array(steps)) for steps in ([2, 1, 1], [1, 1, 1])],
    "its metrics are not different names in order": [
        saved(about=about(metrics=names)) for names in (["b", "a"], ["a", "a"], [1, 2])
    ],
}
REFUSED = [(why, file) for why, files in BROKEN.items() for file in files]


@pytest.mark.parametrize("why, file", REFUSED, ids=map(str, range(len(REFUSED))))
def test_a_file_that_is_none_is_named(why: str, file: bytes) -> None:
    with user_error(rf"^run 7's history.npz is no metric history \({why}\): delete"):
        unpack(file, "run 7's history.npz")


def test_what_would_be_too_large_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = pack(from_rows((step, 0, {"a": 0.0}) for step in range(100_000)))
    assert len(bomb) * 10 < 2_400_000
    monkeypatch.setattr("zipfile.ZipFile.read", None)
    for largest, reason in (
        (2_000_000, r"unpacked it has 2\d{6} bytes"),
        (1000, "more than the 1000 allowed"),
    ):
        monkeypatch.setattr(history, "LARGEST_UNPACKED", largest)
        with user_error(reason):
            unpack(bomb, HISTORY)
