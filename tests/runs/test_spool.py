"""What a run records is on file when it says so, and outlives the attempts that write it."""

import json
import os
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.runs import spool as spool_module
from cppo_lab.runs.spool import (
    FOLDER,
    Artifact,
    Begin,
    End,
    StepEvent,
    Tags,
    files,
    lines,
    newest_record,
    open_spool,
    read_lines,
    read_rows,
)

ROWS = [StepEvent(step, 1000 + step, {"train/reward": step / 3}) for step in range(3)]
BEGIN = Begin("a" * 32, "cppo-mini", "a run", 999, {"cppo.seed": "0"}, {"rule.name": "cppo"})
END = End(BEGIN.record, schema.PARTIAL, 2, 2000, "interrupted: cancelled at step 2")
ALL = [BEGIN, Artifact("config.json"), Tags({schema.TAG_WARM_START: "0123"}), *ROWS, END]


def written(folder: Path, *some: object) -> Path:
    spool = open_spool(folder)
    for line in some or ALL:
        spool.add(line)  # type: ignore[arg-type]
    spool.close()
    return spool.path


def test_lines_are_on_file_when_they_are_added(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    for number, line in enumerate(ALL, start=1):
        spool.add(line)
        assert list(lines(tmp_path)) == ALL[:number]
    spool.close()
    last_row = json.loads(spool.path.read_text().splitlines()[-2])
    assert last_row == {"step": 2, "time_ms": 1002, "metrics": {"train/reward": 2 / 3}}


def test_every_attempt_has_a_file_of_its_own_and_a_record_may_have_several(tmp_path: Path) -> None:
    written(tmp_path)
    second = [BEGIN, StepEvent(2, 9999, {"train/reward": -1.0}), StepEvent(3, 5000, {"train/reward": 1.0})]
    written(tmp_path, *second)
    assert [path.name for path in files(tmp_path)] == ["0001.jsonl", "0002.jsonl"]
    record = newest_record(tmp_path)
    assert record is not None
    assert record.end is None  # it goes on
    assert read_rows(tmp_path) == [*ROWS, second[2]]  # step 2 stands as it was measured first


def test_a_new_record_begins_with_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    other = Begin("b" * 32, "cppo-mini", "a run", 3000, {}, {})
    written(tmp_path, other)
    record = newest_record(tmp_path)
    assert record is not None
    assert (record.begin, record.rows, record.end) == (other, {}, None)
    written(tmp_path, END)  # of the first record
    again = newest_record(tmp_path)
    assert again is not None
    assert (again.begin, again.end) == (other, None)


def test_without_files_there_is_nothing(tmp_path: Path) -> None:
    assert newest_record(tmp_path) is None
    assert read_rows(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_of_ours_is_left_alone(tmp_path: Path) -> None:
    written(tmp_path)
    for name in ("1.jsonl", "x.jsonl", "0002.json", "shipped.json", "-001.jsonl", "²³.jsonl"):
        (tmp_path / FOLDER / name).write_text("{}\n")
    assert [path.name for path in files(tmp_path)] == ["0001.jsonl"]


def test_cut_off_anywhere_the_whole_lines_stand(tmp_path: Path) -> None:
    path = written(tmp_path)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends)
        assert [line for line, _ in read_lines(path)] == ALL[:whole], length
        assert [place for _, place in read_lines(path)] == ends[:whole]


def test_reading_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = written(tmp_path)
    places = [place for _, place in read_lines(path)]
    for number, place in enumerate(places, start=1):
        assert [line for line, _ in read_lines(path, place)] == ALL[number:]


JUNK = [
    "\x00\x00\x00",
    "[1, 2]",
    '{"step": 1}',
    "",
    "null",
    '{"kind": "begun"}',
    '{"kind": "begin", "record": "a"}',
    '{"kind": "end", "record": 3, "status": "done", "step": 1, "time_ms": 1}',
    '{"kind": "artifact", "path": ["x"]}',
    '{"step": 1, "time_ms": 2, "metrics": {"train/reward": "high"}}',
    '{"step": 1, "time_ms": 2, "metrics": 3}',
    "[" * 100_000,
    '{"step": Infinity, "time_ms": 2, "metrics": {}}',
    '{"step": 1, "time_ms": 2, "metrics": {"train/reward": 1' + "0" * 400 + "}}",
]


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: junk[:30] or "empty")
def test_what_follows_a_broken_line_is_not_believed(tmp_path: Path, junk: str) -> None:
    path = written(tmp_path)
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(content[:3]) + junk.encode() + b"\n" + b"".join(content[3:]))
    assert list(lines(tmp_path)) == ALL[:3]


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    row = StepEvent(1, 1, {"train/loss": float("inf"), "train/entropy": float("-inf")})
    written(tmp_path, BEGIN, row)
    assert read_rows(tmp_path) == [row]


@pytest.mark.parametrize("partly", [0, 1, 30], ids=lambda count: f"{count} bytes got through")
def test_on_a_full_disk_lines_wait_and_none_is_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], partly: int
) -> None:
    real, room = os.write, [10**9]

    def write(file: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        done = real(file, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(spool_module.os, "write", write)
    spool = open_spool(tmp_path)
    spool.add(BEGIN)
    room[0] = partly
    spool.add(ROWS[0])
    spool.add(ROWS[1])
    assert list(lines(tmp_path)) == [BEGIN]
    assert spool.path.read_bytes().endswith(b"\n")
    assert spool.unwritten == ROWS[:2]
    assert capsys.readouterr().err.count("No space left on device") == 1  # said once
    room[0] = 10**9
    spool.add(ROWS[2])
    assert list(lines(tmp_path)) == [BEGIN, *ROWS]
    assert spool.unwritten == []


def test_two_processes_never_write_one_file(tmp_path: Path) -> None:
    spools = [open_spool(tmp_path) for _ in range(3)]
    assert len({spool.path for spool in spools}) == 3
