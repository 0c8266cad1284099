"""The file of a run's metric history: what goes in comes out, and nothing in a foreign file is taken on trust."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.errors import UserError
from cppo_lab.store import history
from cppo_lab.store.history import HISTORY, History, from_rows, pack, unpack

NAMES = st.sampled_from(["train/loss", "val/a/avg_at_16", "perf/step_seconds", "x", "é"])
INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.tuples(st.integers(-5, 5) | INT64, INT64, st.dictionaries(NAMES, st.floats())), max_size=40
)


def plain(found: History) -> dict[tuple[str, int], tuple[bytes, int]]:
    """(metric, step) -> (the value's bits, time)."""
    return {
        (name, step): (struct.pack("<d", value), time_ms)
        for name, place in found.points()
        for step, value, time_ms in zip(
            found.step[place].tolist(),
            found.value[place].tolist(),
            found.time_ms[place].tolist(),
            strict=True,
        )
    }


def arrays(**replaced: Any) -> dict[str, Any]:
    """The arrays of a small right file, some of them replaced."""
    about = json.dumps({"format": 1, "metrics": ["a", "b"]}).encode()
    right = {
        "about": np.frombuffer(about, dtype=np.uint8),
        "ends": np.array([2, 3]),
        "step": np.array([1, 2, 1]),
        "value": np.array([0.5, np.nan, -np.inf]),
        "time_ms": np.array([7, 8, 7]),
    }
    return right | replaced


def saved(**replaced: Any) -> bytes:
    """Them as a file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays(**replaced))
    return buffer.getvalue()


@given(ROWS)
def test_every_point_comes_back_and_the_first_of_a_step_counts(rows: list[history.Row]) -> None:
    expected: dict[tuple[str, int], tuple[bytes, int]] = {}
    for step, time_ms, values in rows:
        for name, value in values.items():
            expected.setdefault((name, step), (struct.pack("<d", value), time_ms))
    data = pack(from_rows(rows))
    found = unpack(data, HISTORY)
    assert plain(found) == expected
    assert list(plain(found)) == sorted(expected)
    assert pack(found) == data == pack(from_rows(list(rows)))


@given(ROWS, st.sets(NAMES))
def test_only_some_metrics(rows: list[history.Row], wanted: set[str]) -> None:
    whole = from_rows(rows)
    part = whole.only(wanted.__contains__)
    assert plain(part) == {key: value for key, value in plain(whole).items() if key[0] in wanted}
    assert pack(unpack(pack(part), HISTORY)) == pack(part)


def test_the_file_is_what_its_description_says() -> None:
    found = unpack(saved(), HISTORY)
    assert found.metrics == ("a", "b")
    assert list(plain(found)) == [("a", 1), ("a", 2), ("b", 1)]
    assert np.isnan(found.value[1]) and found.value[2] == -np.inf
    with np.load(io.BytesIO(pack(found)), allow_pickle=False) as file:
        for name, values in arrays().items():
            assert file[name].dtype.itemsize == (1 if name == "about" else 8)
            np.testing.assert_array_equal(file[name], values)


def about(**values: Any) -> Any:
    """The names' array with other content."""
    content = {"format": 1, "metrics": ["a", "b"]} | values
    return np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)


def header(name: str, shape: tuple[int, ...], kind: str = "<f8") -> Callable[[], bytes]:
    """A right file but for the header of one array, which says `shape`."""

    def make() -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(saved())) as old, zipfile.ZipFile(buffer, "w") as new:
            for member in old.namelist():
                content = old.read(member)
                if member == f"{name}.npy":
                    file = io.BytesIO()
                    np.lib.format.write_array_header_1_0(
                        file, {"descr": kind, "fortran_order": False, "shape": shape}
                    )
                    content = file.getvalue() + content[128:]
                new.writestr(member, content)
        return buffer.getvalue()

    return make


def encrypted() -> bytes:
    """The flag of an encrypted member set in both places."""
    data = bytearray(saved())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def many_members() -> bytes:
    """Thousands of empty files in one zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for number in range(2000):
            file.writestr(str(number), b"")
    return buffer.getvalue()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"not a history, whatever its name says",
    "truncated": lambda: saved()[:-30],
    "beginning_lost": lambda: saved()[200:],
    "more_behind": lambda: saved() + b"x",
    "encrypted": encrypted,
    "many_members": many_members,
    "huge_header": header("value", (2**60,)),
    "negative_header": header("value", (-3,)),
    "header_of_objects": header("value", (3,), "|O"),
    "too_long_header": header("step", tuple([1] * 9000), "<i8"),
    "objects": lambda: saved(value=np.array([1.0, "x", None], dtype=object)),
    "float32": lambda: saved(value=np.array([1, 2, 3], dtype=np.float32)),
    "big_endian": lambda: saved(value=np.array([1, 2, 3], dtype=">f8")),
    "float_steps": lambda: saved(step=np.array([1.0, 2.0, 1.0])),
    "two_dimensions": lambda: saved(value=np.ones((3, 1))),
    "no_dimension": lambda: saved(value=np.float64(3.0)),
    "short_column": lambda: saved(value=np.ones(2)),
    "unsorted": lambda: saved(step=np.array([2, 1, 1])),
    "twice": lambda: saved(step=np.array([1, 1, 1])),
    "ends_too_far": lambda: saved(ends=np.array([2, 4])),
    "ends_too_near": lambda: saved(ends=np.array([1, 2])),
    "ends_negative": lambda: saved(ends=np.array([-1, 3])),
    "metric_without_points": lambda: saved(ends=np.array([3, 3])),
    "ends_for_one": lambda: saved(ends=np.array([3])),
    "names_unsorted": lambda: saved(about=about(metrics=["b", "a"])),
    "name_twice": lambda: saved(about=about(metrics=["a", "a"])),
    "names_no_text": lambda: saved(about=about(metrics=[1, 2])),
    "no_names": lambda: saved(about=about(metrics=None)),
    "other_format": lambda: saved(about=about(format=2)),
    "no_json": lambda: saved(about=np.frombuffer(b"{", dtype=np.uint8)),
    "deep_json": lambda: saved(about=np.frombuffer(b"[" * 100_000, dtype=np.uint8)),
    "no_utf8": lambda: saved(about=np.frombuffer(b"\xff\xfe", dtype=np.uint8)),
    "another_array": lambda: saved(more=np.ones(1)),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_is_none_is_named(make: Callable[[], bytes]) -> None:
    with pytest.raises(UserError, match=r"^run 7's history.npz is no metric history \(.+\): delete") as error:
        unpack(make(), "run 7's history.npz")
    assert "\n" not in str(error.value)


def test_a_flipped_byte_is_seen_or_does_no_harm() -> None:
    whole, harmed = saved(), []
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 0x55
        try:
            found = unpack(bytes(data), HISTORY)
        except UserError:
            continue
        if list(plain(found)) != [("a", 1), ("a", 2), ("b", 1)]:
            harmed.append(position)
    assert harmed == []


def test_what_would_be_too_large_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(step, 0, {"a": 0.0}) for step in range(100_000)]
    bomb = pack(from_rows(rows))
    assert len(bomb) * 10 < 24 * len(rows)
    monkeypatch.setattr(history, "LARGEST_UNPACKED", 2_000_000)
    monkeypatch.setattr(zipfile.ZipFile, "read", None)
    with pytest.raises(UserError, match=r"unpacked it has 2\d{6} bytes"):
        unpack(bomb, HISTORY)
    monkeypatch.setattr(history, "LARGEST", 1000)
    with pytest.raises(UserError, match="more than the 1000 allowed"):
        unpack(bomb, HISTORY)
