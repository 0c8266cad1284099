"""What reports read back, from a store or from this machine, is checked: it is used as it was written, or named."""

import json
from typing import Any

import pytest
from hypothesis import example, given

from cppo_lab.analysis.search import parse_search
from cppo_lab.analysis.study import PositionGaps, TokenWindow, parse_diagnostics
from cppo_lab.reports.build import record
from cppo_lab.reports.saved import compare, compare_lines, read_record
from cppo_lab.tracking.history import from_rows, pack, unpack
from tests.analysis.made_search import made_search
from tests.analysis.made_sweeps import scored
from tests.analysis.test_study import POSITIONS, WINDOW
from tests.fuzz.mangling import altered, as_json, damaged, fuzz, refused
from tests.reports.conftest import DEMO_RUNS, page_of

HISTORY = pack(from_rows([(step, 1000 + step, {"a": step / 3, "b": -1.0}) for step in range(5)]))
# Of one run of each of two methods.
RECORD = json.loads(record(page_of(scored(DEMO_RUNS[::2]))[0], {"index.html": b"<p>"}))


@fuzz(200)
@given(data=damaged(HISTORY))
@example(data=HISTORY + HISTORY)
def test_history(data: bytes) -> None:
    def load() -> None:
        found = unpack(data, "history.npz of run x")
        assert list(found) == sorted(set(found))
        assert all(len(step) == len(value) == len(time_ms) > 0 for step, value, time_ms in found.values())

    refused(load, "history.npz of run x")


@fuzz(100)
@given(values=altered(RECORD))
def test_record(tmp_path_factory: pytest.TempPathFactory, values: Any) -> None:
    folder = tmp_path_factory.getbasetemp() / "record"
    folder.mkdir(exist_ok=True)
    (folder / "report.json").write_bytes(as_json(RECORD))
    whole = read_record(folder)
    (folder / "report.json").write_bytes(as_json(values))

    def read() -> None:
        for pair in ((whole, read_record(folder)), (read_record(folder), whole)):
            found = compare(*pair, ("one", "two"))
            assert all(line.isprintable() for line in compare_lines(found))
            json.dumps(found)

    refused(read, str(folder / "report.json"))


@fuzz(60)
@given(values=altered(POSITIONS))
def test_positions(values: Any) -> None:
    refused(lambda: parse_diagnostics(PositionGaps, as_json(values), "positions.json"), "positions.json")


@fuzz(60)
@given(values=altered(WINDOW))
def test_window(values: Any) -> None:
    def read() -> None:
        window = parse_diagnostics(TokenWindow, as_json(values), "window.json")
        assert len(window.cut(4).symbols) <= 4
        assert len(window.effective()) == len(window.symbols)

    refused(read, "window.json")


@fuzz(60)
@given(values=altered(made_search(trials=3)))
@example(
    values=made_search(trials=1)
    | {"parameters": {"rule.w_min": {"low": True, "high": 2, "log": False, "step": 1}}}
)
def test_search(values: Any) -> None:
    refused(lambda: parse_search(as_json(values).decode(), "ab"), "search.json")
