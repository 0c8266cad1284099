"""What a run records is on file when it says so, outlives its attempts, and is read while it is written.

How far a store has got is stored behind what it has taken, never before; with a store that only takes points.
"""

import contextlib
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.runs.spool import (
    SPOOL_FOLDER,
    Artifact,
    Begin,
    End,
    Line,
    RunRows,
    Scores,
    Shipped,
    ShippedRecord,
    Spool,
    StepEvent,
    Tags,
    files,
    lines,
    load_shipped,
    newest_record,
    open_spool,
    read_lines,
    read_rows,
    save_shipped,
    score_text,
    summarise,
    unsent,
)
from cppo_lab.tracking import upload
from cppo_lab.tracking.upload import ship
from tests.conftest import ROOT

URI = "http://store"
SCORE = schema.validation_metric(schema.MEAN, 4)
ROWS = [StepEvent(step, 1000 + step, {"train/reward": step / 3}) for step in range(3)]
BEGIN = Begin("a" * 32, "cppo-mini", "a run", 999, {"cppo.seed": "0"}, {"rule.name": "cppo"}, [])
OTHER = Begin("b" * 32, "cppo-mini", "a run", 3000, {}, {}, [])
END = End(BEGIN.record, schema.PARTIAL, 2, 2000, "interrupted: cancelled at step 2")
ALL: list[Line] = [BEGIN, Artifact("config.json"), Tags({schema.TAG_WARM_START: "0123"}), *ROWS, END]


def row(step: int, score: float | None = None, second: float = 0.0) -> StepEvent:
    scores = {} if score is None else {SCORE: score}
    return StepEvent(step, round(1000 * second), {"train/loss": 1.0, **scores})


def written(folder: Path, *some: Line) -> Spool:
    spool = open_spool(folder)
    for line in some or ALL:
        spool.add(line)
    spool.close()
    return spool


def test_a_record_goes_on_in_the_files_of_later_attempts_until_another_begins(tmp_path: Path) -> None:
    assert (newest_record(tmp_path), read_rows(tmp_path), list(tmp_path.iterdir())) == (None, [], [])
    written(tmp_path)
    again, new = StepEvent(2, 9999, {"train/reward": -1.0}), StepEvent(3, 5000, {"train/reward": 1.0})
    written(tmp_path, BEGIN, again, new)
    assert newest_record(tmp_path).end is None
    assert read_rows(tmp_path) == [*ROWS, new]  # step 2 stands as it was measured first
    for line in (OTHER, END):  # the end is that of the first record
        written(tmp_path, line)
        record = newest_record(tmp_path)
        assert (record.begin, record.rows, record.end) == (OTHER, {}, None)


def test_files_are_ordered_and_never_shared(tmp_path: Path) -> None:
    spools = [open_spool(tmp_path) for _ in range(3)]
    others = ("1.jsonl", "x.jsonl", "0002.json", "shipped.json", "-001.jsonl", "²³.jsonl", "00004.jsonl")
    for name in ("10000.jsonl", "9999.jsonl", *others):  # the last are none of a recorder's
        (tmp_path / SPOOL_FOLDER / name).touch()
    assert [path.stem for path in files(tmp_path)] == ["0001", "0002", "0003", "9999", "10000"]
    assert open_spool(tmp_path).path.name == "10001.jsonl"
    assert [spool.path for spool in spools] == files(tmp_path)[:3]
    with pytest.raises(FileExistsError):
        Spool(spools[0].path)


def test_cut_off_anywhere_the_whole_lines_stand(tmp_path: Path) -> None:
    path = written(tmp_path).path
    content = path.read_bytes()
    last_row = {"step": 2, "time_ms": 1002, "metrics": {"train/reward": 2 / 3}}
    assert json.loads(content.splitlines()[-2]) == last_row
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends)
        assert list(read_lines(path)) == list(zip(ALL, ends, strict=True))[:whole], length
    for number, end in enumerate(ends, start=1):  # reading goes on where it stopped
        assert [line for line, _ in read_lines(path, end)] == ALL[number:]


JUNK = [
    "\x00\x00\x00", "[1, 2]", '{"step": 1}', "", "null", '{"kind": "begun"}',
    '{"kind": "begin", "record": "a"}', '{"step": 1, "time_ms": 2, "metrics": {"train/reward": "high"}}',
    '{"step": 1, "time_ms": 2, "metrics": 3}', "[" * 100_000, '{"step": Infinity, "time_ms": 2, "metrics": {}}',
    '{"step": 1, "time_ms": 2, "metrics": {"train/reward": 1' + "0" * 400 + "}}",
]  # fmt: skip


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: junk[:30] or "empty")
def test_what_follows_a_broken_line_is_not_believed(tmp_path: Path, junk: str) -> None:
    path = written(tmp_path).path
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(content[:3]) + junk.encode() + b"\n" + b"".join(content[3:]))
    assert list(lines(tmp_path)) == ALL[:3]


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """The kernel takes files of at most `size` bytes, as under `ulimit -f`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("partly", [0, 1, 30])  # bytes that get through
def test_on_a_full_disk_lines_wait_and_none_is_torn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], partly: int
) -> None:
    spool = open_spool(tmp_path)
    spool.add(BEGIN)
    with room_for(spool.path.stat().st_size + partly):
        spool.add(ROWS[0])
        spool.add(ROWS[1])
    assert list(lines(tmp_path)) == [BEGIN]
    assert spool.path.read_bytes().endswith(b"\n")
    assert spool.unwritten == ROWS[:2]
    assert capsys.readouterr().err.count("(File too large): metrics are held in memory\n") == 1  # said once
    spool.add(ROWS[2])
    assert (list(lines(tmp_path)), spool.unwritten) == ([BEGIN, *ROWS], [])


def test_rows_are_read_once_and_a_new_record_begins_from_nothing(tmp_path: Path) -> None:
    rows = RunRows(tmp_path, since=15.0)

    def news() -> list[int]:
        return [row.step for row in rows.news()]

    written(tmp_path, BEGIN, row(0, 0.25, second=10), row(1, second=20))
    assert (news(), news()) == ([0, 1], [])
    written(tmp_path, BEGIN, row(3, 0.5, second=30))
    assert news() == [3]
    assert (rows.scores, rows.step, rows.times) == ({0: 0.25, 3: 0.5}, 3, [(1, 20.0), (3, 30.0)])
    path = written(tmp_path, BEGIN, row(3, 0.9, second=40), row(4, 0.75, second=50)).path
    assert news() == [4]
    assert rows.scores == {0: 0.25, 3: 0.5, 4: 0.75}
    whole = path.read_bytes()
    for text, steps in {"": [], ', "metrics": {}}\n': [5]}.items():  # a line that is being written
        path.write_bytes(whole + b'{"step": 5, "time_ms": 60000' + text.encode())
        assert news() == steps
    written(tmp_path, OTHER)
    assert news() == []
    assert (rows.scores, rows.step, rows.times) == ({}, None, [])


def test_the_three_scores_by_hand() -> None:
    """Of [0, 10] the last 30 % are the steps 8, 9 and 10; the first of two equal scores is the best."""
    scores = summarise({0: 0.1, 2: 0.6, 4: 0.2, 6: 0.6, 7: 0.3, 8: 0.4, 10: 0.5}, t_stop=10)
    assert scores == Scores(0.5, 0.6, 2, pytest.approx(0.45))
    assert scores.metrics == {"val/best": 0.6, "val/best_step": 2.0, "val/final_mean": scores.final_mean}
    assert summarise({}, 10) == Scores(None, None, None, None) and not summarise({}, 10).metrics
    assert "val/final_mean" not in summarise({0: 0.1, 7: 0.2}, t_stop=10).metrics
    # 0.7 x 90 is below 63 in binary; step 63 is none of the last 27.
    assert summarise({63: 0.2, 64: 0.4, 90: 0.6}, t_stop=90).final_mean == pytest.approx(0.5)
    for t_stop in range(10, 3000, 10):
        assert (schema.late_after(t_stop), schema.early_until(t_stop)) == (7 * t_stop // 10, 3 * t_stop // 10)


def test_scores_in_words() -> None:
    assert score_text(0.432) == "last 43.2 %"
    assert score_text(0.432, 0.441, 8, 0.435) == "last 43.2 %, best 44.1 % (step 8), final mean 43.5 %"


@pytest.mark.parametrize(
    "last, best, warns",
    [(0.049, 0.5, True), (0.05, 0.5, False), (0.001, 0.04, False), (0.0, 0.05, True), (None, 0.5, False)],
)
def test_early_signs_by_hand(last: float | None, best: float | None, warns: bool) -> None:
    assert bool(schema.early_signs(last, best)) == warns


def test_the_chance_of_a_warning_is_that_of_the_recorded_runs() -> None:
    """Counted with the product's own rule, from the validations of step 5 on, without that by which a run collapsed."""
    rows = pd.read_csv(ROOT / "docs" / "evidence" / "early_warning.csv").sort_values("step")
    runs = rows.groupby(["variant", "seed"])
    rows["best"] = runs.score.cummax()
    seen = rows[(rows.step >= 5) & ~((rows.collapsed == 1) & (rows.step == rows.end))]
    warns = seen[[bool(schema.early_signs(*scores)) for scores in zip(seen.score, seen.best, strict=True)]]
    warned = warns.groupby(["variant", "seed"]).collapsed.first()
    assert (len(runs), len(warned), warned.sum()) == (136, schema.WARNED, schema.WARNED_COLLAPSED)


NAMES = [f"train/{name}" for name in ("reward", "loss", "entropy", "kl", "length", "norm", "rate")]


class Taker:
    """The store: keeps points, and is away after so many requests. Whatever else it is asked for fails."""

    def __init__(self, requests: int = 10**9) -> None:
        self.left, self.requests, self.taken = requests, 0, list[tuple[str, int]]()

    def log_batch(self, mlflow_id: str, metrics: list[Metric], **_: object) -> None:
        if self.requests == self.left:
            raise MlflowException("the server is away")
        assert mlflow_id == "known"
        assert len(metrics) <= upload.BATCH
        self.requests += 1
        self.taken += [(point.key, point.step) for point in metrics]

    def get_run(self, mlflow_id: str) -> Any:
        return SimpleNamespace(
            info=SimpleNamespace(run_id=mlflow_id, experiment_id="1"), data=SimpleNamespace(tags={})
        )

    def search_runs(self, *_: Any, **__: Any) -> list[Any]:
        return []


def wide(step: int, metrics: int = len(NAMES)) -> StepEvent:
    return StepEvent(step, 1_000 + step, dict.fromkeys(NAMES[:metrics], step / 8))


def points(*rows: StepEvent) -> list[tuple[str, int]]:
    return [(name, event.step) for event in rows for name in event.metrics]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """Of a run whose beginning the store has."""
    made = open_spool(tmp_path)
    made.add(BEGIN)
    offsets = {made.path.name: made.path.stat().st_size}
    save_shipped(tmp_path, URI, Shipped(offsets, {BEGIN.record: ShippedRecord("known")}))
    return made


def sent(folder: Path, client: Taker, *unwritten: Any) -> int:
    return ship(folder, URI, client, unwritten)  # type: ignore[arg-type]


@patch("cppo_lab.tracking.upload.BATCH", 3)
@pytest.mark.parametrize("metrics", [1, 2, 7])
def test_whatever_request_fails_every_point_arrives(tmp_path: Path, spool: Spool, metrics: int) -> None:
    """Points of one line in several requests, and of several lines in one: whole lines are not sent again."""
    rows = [wide(step, metrics) for step in range(8)]
    for event in rows:
        spool.add(event)
    before = load_shipped(tmp_path, URI)
    for survived in range(100):
        save_shipped(tmp_path, URI, before)
        failing, again = Taker(survived), Taker()
        try:
            number = sent(tmp_path, failing)
        except MlflowException:
            sent(tmp_path, again)
            assert {*failing.taken, *again.taken} == {*points(*rows)}, survived
            assert metrics > upload.BATCH or not {*failing.taken} & {*again.taken}
            continue
        assert (number, failing.taken) == (len(points(*rows)), points(*rows))
        assert sent(tmp_path, again) == 0
        break
    assert survived == failing.requests >= 8 * metrics / 3


def test_no_line_is_sent_before_the_disk_has_it(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store would have a step that a machine which goes down has lost, and trains again."""
    spool.add(wide(0))
    real = os.fsync

    def while_it_lasts(file: int) -> None:
        real(file)
        monkeypatch.undo()
        spool.add(wide(1))  # the run goes on meanwhile

    monkeypatch.setattr("cppo_lab.tracking.upload.os.fsync", while_it_lasts)
    store = Taker()
    for rows in ([wide(0)], [wide(0), wide(1)]):
        assert sent(tmp_path, store) == len(NAMES)
        assert store.taken == points(*rows)


def test_a_step_that_no_file_has_is_sent_only_of_a_run_that_has_finished(
    tmp_path: Path, spool: Spool
) -> None:
    """Whoever goes on with the run trains it again."""
    spool.add(wide(0))
    store = Taker()
    assert sent(tmp_path, store, wide(1)) == len(NAMES)
    for status, rows in {schema.PARTIAL: [wide(0)], schema.DONE: [wide(0), wide(1)]}.items():
        assert store.taken == points(wide(0))
        with pytest.raises(AttributeError, match="set_terminated"):  # the end itself is sent
            sent(tmp_path, store, wide(1), End(BEGIN.record, status, 1, 2_000))
        assert store.taken == points(*rows)


@pytest.mark.parametrize(
    "record, left",
    [
        (ShippedRecord("known"), False),
        (ShippedRecord("known", pending=["config.json"]), True),
        (ShippedRecord("known", ended=True), True),  # its history is a file to come
        (ShippedRecord("", pending=["config.json"]), False),  # nothing that the store has a run for
    ],
)
def test_files_that_the_store_has_not_got_are_unsent_though_every_line_is_sent(
    tmp_path: Path, spool: Spool, record: ShippedRecord, left: bool
) -> None:
    offsets = load_shipped(tmp_path, URI).offsets
    save_shipped(tmp_path, URI, Shipped(offsets, {BEGIN.record: record}))
    assert unsent(tmp_path, URI) == left
    spool.add(wide(0))
    assert unsent(tmp_path, URI)


@pytest.mark.parametrize("more", [{}, {"ended": True, "deleted": False, "doubtful": True}])
def test_what_another_version_has_noted_is_read(tmp_path: Path, spool: Spool, more: dict[str, bool]) -> None:
    """Without the fields that it did not have, and with those that are gone."""
    path = tmp_path / SPOOL_FOLDER / "shipped.json"
    values = json.loads(path.read_text())
    [stored] = values.values()
    stored["records"][BEGIN.record] = {"mlflow_id": "known", "pending": ["a"], **more}
    path.write_text(json.dumps(values))
    noted = load_shipped(tmp_path, URI)
    assert noted.records == {BEGIN.record: ShippedRecord("known", ["a"], more.get("ended", False))}
    assert noted.offsets == stored["offsets"]
