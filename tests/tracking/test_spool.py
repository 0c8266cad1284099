"""The file of a run's metrics outlives the attempts that write it."""

import json
from pathlib import Path

from cppo_lab.tracking.spool import NAME, Row, Spool, read_rows

ROWS = [Row(step, 1000 + step, {"train/reward": step / 3}) for step in range(3)]


def written(folder: Path) -> bytes:
    spool = Spool(folder, keep=False)
    for row in ROWS:
        spool.add(row)
    spool.close()
    return (folder / NAME).read_bytes()


def test_rows_are_on_file_when_they_are_added(tmp_path: Path) -> None:
    spool = Spool(tmp_path, keep=False)
    for row in ROWS:
        spool.add(row)
        last = (tmp_path / NAME).read_text().splitlines()[-1]
        assert json.loads(last) == {"step": row.step, "time_ms": row.time_ms, "metrics": row.metrics}
    spool.close()


def test_a_continued_run_keeps_them_with_their_times(tmp_path: Path) -> None:
    written(tmp_path)
    second = Spool(tmp_path, keep=True)
    assert second.earlier == ROWS
    second.add(Row(3, 5000, {"train/reward": 1.0}))
    second.close()
    assert [row.step for row in Spool(tmp_path, keep=True).earlier] == [0, 1, 2, 3]


def test_a_run_that_begins_anew_forgets_them(tmp_path: Path) -> None:
    written(tmp_path)
    assert Spool(tmp_path, keep=False).earlier == []
    assert (tmp_path / NAME).read_bytes() == b""


def test_without_a_file_there_is_nothing_to_keep(tmp_path: Path) -> None:
    assert Spool(tmp_path, keep=True).earlier == []


def test_a_line_cut_off_anywhere_is_cut_away(tmp_path: Path) -> None:
    content = written(tmp_path)
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content) + 1):
        (tmp_path / NAME).write_bytes(content[:length])
        spool = Spool(tmp_path, keep=True)
        whole = sum(end <= length for end in ends)
        assert spool.earlier == ROWS[:whole], length
        spool.add(ROWS[0])  # what follows begins on a line of its own
        spool.close()
        assert Spool(tmp_path, keep=True).earlier == [*ROWS[:whole], ROWS[0]], length


def test_what_follows_a_broken_line_is_not_believed(tmp_path: Path) -> None:
    lines = written(tmp_path).splitlines(keepends=True)
    for broken in (b"\x00\x00\x00\n", b"[1, 2]\n", b'{"step": 1}\n', b"\n"):
        (tmp_path / NAME).write_bytes(lines[0] + broken + lines[2])
        assert Spool(tmp_path, keep=True).earlier == ROWS[:1]
        assert (tmp_path / NAME).read_bytes() == lines[0]


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path, keep=False)
    spool.add(Row(1, 1, {"train/loss": float("inf")}))
    spool.close()
    assert Spool(tmp_path, keep=True).earlier == [Row(1, 1, {"train/loss": float("inf")})]


def test_reading_what_another_process_writes_changes_nothing(tmp_path: Path) -> None:
    assert read_rows(tmp_path) == []
    spool = Spool(tmp_path, keep=False)
    spool.add(Row(0, 1, {"train/reward": 0.5}))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "time')  # a line on its way
    content = (tmp_path / "metrics.jsonl").read_bytes()
    assert read_rows(tmp_path) == [Row(0, 1, {"train/reward": 0.5})]
    assert (tmp_path / "metrics.jsonl").read_bytes() == content
    spool.close()
