"""`last`, `best` and `final mean`, against hand counts; and rows as they are read while they are written."""

import time
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.runs.spool import Begin, RunRows, StepEvent, open_spool, score_text, summarise

SCORE = schema.validation_metric(schema.MEAN, 4)


def begin(record: str) -> Begin:
    return Begin(record, "cppo-mini", "a run", 1, {}, {})


def row(step: int, score: float | None = None, second: float = 0.0) -> StepEvent:
    return StepEvent(
        step, round(1000 * second), {"train/loss": 1.0} | ({} if score is None else {SCORE: score})
    )


def test_the_three_scores_by_hand() -> None:
    """Of [0, 10] the last 30 % are the steps 8, 9 and 10; the first of two equal scores is the best."""
    found = summarise({0: 0.1, 2: 0.6, 4: 0.2, 6: 0.6, 7: 0.3, 8: 0.4, 10: 0.5}, t_stop=10)
    assert found is not None
    assert (found.last, found.best, found.best_step) == (0.5, 0.6, 2)
    assert found.final_mean == pytest.approx(0.45)
    assert found.metrics == {"val/best": 0.6, "val/best_step": 2.0, "val/final_mean": found.final_mean}


def test_before_the_late_part_there_is_no_final_mean() -> None:
    assert summarise({}, 10) is None
    early = summarise({0: 0.1, 7: 0.2}, t_stop=10)
    assert early is not None
    assert early.final_mean is None
    assert "val/final_mean" not in early.metrics


def test_scores_in_words() -> None:
    assert score_text(0.432) == "last 43.2 %"
    assert score_text(0.432, 0.441, 8, 0.435) == "last 43.2 %, best 44.1 % (step 8), final mean 43.5 %"


def test_rows_are_read_once_and_a_new_record_begins_from_nothing(tmp_path: Path) -> None:
    spool, rows = open_spool(tmp_path), RunRows(tmp_path, since=15.0)
    spool.add(begin("a"))
    spool.add(row(0, 0.25, second=10))
    spool.add(row(1, second=20))
    assert [one.step for one in rows.news()] == [0, 1]
    assert list(rows.news()) == []
    spool.add(row(3, 0.5, second=30))
    assert [one.step for one in rows.news()] == [3]
    assert (rows.scores, rows.step, rows.pace) == ({0: 0.25, 3: 0.5}, 3, 5.0)  # 10 s for the steps 2 and 3
    spool.close()
    again = open_spool(tmp_path)
    again.add(begin("a"))
    again.add(row(3, 0.9, second=40))  # was recorded already
    again.add(row(4, 0.75, second=50))
    assert [one.step for one in rows.news()] == [4]
    assert rows.scores == {0: 0.25, 3: 0.5, 4: 0.75}
    again.close()
    other = open_spool(tmp_path)
    other.add(begin("b"))
    assert list(rows.news()) == []
    assert (rows.scores, rows.step, rows.pace) == ({}, None, None)
    other.close()


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    spool, rows = open_spool(tmp_path), RunRows(tmp_path)
    spool.add(begin("a"))
    spool.add(row(0, 0.25, second=time.time()))
    spool.close()
    text = spool.path.read_bytes()
    spool.path.write_bytes(text[:-10])
    assert list(rows.news()) == []
    spool.path.write_bytes(text)
    assert [one.step for one in rows.news()] == [0]


def test_the_first_step_of_the_last_part_does_not_depend_on_rounding() -> None:
    """0.7 x 90 is below 63 in binary; step 63 is none of the last 27."""
    found = summarise({63: 0.2, 64: 0.4, 90: 0.6}, t_stop=90)
    assert found is not None and found.final_mean == pytest.approx(0.5)
    for t_stop in range(10, 3000, 10):
        assert schema.late_after(t_stop) == 7 * t_stop // 10
        assert schema.early_until(t_stop) == 3 * t_stop // 10
