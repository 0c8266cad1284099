"""The trainer's record: what a kill at any moment leaves of it can be read, followed and continued."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.cores.verl import steps
from cppo_lab.errors import UserError
from cppo_lab.schema import Outcome

ROOT = Path(__file__).parents[3]


def checkpoint(folder: Path, step: int, whole: bool = True) -> Path:
    path = steps.checkpoint_folder(folder, step)
    (path / "actor" if whole else path).mkdir(parents=True)
    (path / "data.pt").write_text("state")
    return path


def record(folder: Path, *numbers: int) -> None:
    for number in numbers:
        steps.append_row(folder, number, {"train/reward": number / 10})


def read(folder: Path) -> list[int]:
    return [step for _, (step, _) in steps.rows(folder)]


def test_rows_come_back_with_the_offset_behind_them(tmp_path: Path) -> None:
    assert list(steps.rows(tmp_path)) == []
    record(tmp_path, 0, 1)
    found = list(steps.rows(tmp_path))
    assert [row for _, row in found] == [(0, {"train/reward": 0.0}), (1, {"train/reward": 0.1})]
    record(tmp_path, 2)
    assert [row[0] for _, row in steps.rows(tmp_path, found[-1][0])] == [2]
    assert found[-1][0] < list(steps.rows(tmp_path))[-1][0] == (tmp_path / steps.STEPS).stat().st_size


def test_numbers_are_exact_and_not_finite_ones_come_back(tmp_path: Path) -> None:
    metrics = {"a": 0.1 + 0.2, "b": 1e-300, "c": float("inf")}
    steps.append_row(tmp_path, 1, metrics)
    assert [row for _, row in steps.rows(tmp_path)] == [(1, metrics)]


def test_a_torn_line_waits_until_it_is_whole(tmp_path: Path) -> None:
    record(tmp_path, 1, 2)
    path = tmp_path / steps.STEPS
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for end in range(first, len(content)):
        path.write_bytes(content[:end])
        assert read(tmp_path) == [1], end
    path.write_bytes(content)
    assert [row[0] for _, row in steps.rows(tmp_path, first)] == [2]


def test_cutting_drops_what_will_be_trained_again(tmp_path: Path) -> None:
    record(tmp_path, 0, 1, 2, 3)
    steps.write_outcome(tmp_path, Outcome(schema.DONE, 3))
    kept = steps.cut_after(tmp_path, 2)
    assert [step for step, _ in kept] == read(tmp_path) == [0, 1, 2]
    assert steps.read_outcome(tmp_path) is None
    record(tmp_path, 3)
    assert read(tmp_path) == [0, 1, 2, 3]
    assert steps.cut_after(tmp_path, None) == []
    assert read(tmp_path) == []
    assert (tmp_path / steps.STEPS).stat().st_size == 0  # it is there: its follower begins at its end


def test_cutting_takes_a_torn_line_away(tmp_path: Path) -> None:
    record(tmp_path, 0, 1)
    with (tmp_path / steps.STEPS).open("a") as file:
        file.write('{"step": 2, "metr')
    steps.cut_after(tmp_path, 1)
    record(tmp_path, 2)
    assert read(tmp_path) == [0, 1, 2]


def test_where_a_run_continues(tmp_path: Path) -> None:
    assert steps.resume_step(tmp_path) is None
    record(tmp_path, 0, 1, 2)
    assert steps.resume_step(tmp_path) is None  # rows without a checkpoint
    checkpoint(tmp_path, 2)
    assert steps.resume_step(tmp_path) == 2
    record(tmp_path, 3)
    checkpoint(tmp_path, 4)  # killed before its row was written: perhaps it is not whole
    assert steps.resume_step(tmp_path) == 2
    record(tmp_path, 4)
    assert steps.resume_step(tmp_path) == 4


def test_a_checkpoint_whose_weights_are_gone_is_none(tmp_path: Path) -> None:
    """verl removes the weights of an old checkpoint and leaves the rest of it."""
    record(tmp_path, 0, 2, 4, 6)
    for step, whole in ((2, False), (4, True), (6, False)):
        checkpoint(tmp_path, step, whole)
    assert steps.resume_step(tmp_path) == 4


def test_outcomes(tmp_path: Path) -> None:
    assert steps.read_outcome(tmp_path) is None
    for outcome in (Outcome(schema.DONE, 4), Outcome(schema.COLLAPSED, 2, "score fell: äöü")):
        steps.write_outcome(tmp_path, outcome)
        assert steps.read_outcome(tmp_path) == outcome
    (tmp_path / f"{steps.OUTCOME}.partial").write_text('{"stat')  # killed while it was written
    assert steps.read_outcome(tmp_path) == Outcome(schema.COLLAPSED, 2, "score fell: äöü")


WRITER = """
import sys
from pathlib import Path
from cppo_lab.cores.verl import steps
folder = Path(sys.argv[1])
with steps.writing(folder):
    step = steps.resume_step(folder)
    kept = steps.cut_after(folder, step)
    assert [n for n, _ in kept] == list(range(len(kept))), kept
    number = 0 if step is None else step + 1
    print(number, flush=True)
    while True:
        if number % 5 == 0:
            (steps.checkpoint_folder(folder, number) / "actor").mkdir(parents=True, exist_ok=True)
        steps.append_row(folder, number, {"train/reward": number / 7, "x" * 3000: 1.0})
        number += 1
"""


def test_kills_between_writes_lose_no_step(tmp_path: Path) -> None:
    """A process that writes as fast as it can is killed over and over; each one continues where it can."""
    begins = []
    for attempt in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        begins.append(int(process.stdout.readline()))
        # The first leaves a checkpoint, and the fifth one more; the others are killed as it comes.
        wanted = begins[-1] + {0: 0, 4: 5}.get(attempt, -1)
        while len(read(tmp_path)) <= wanted:
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(0.02 + 0.013 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        numbers = read(tmp_path)
        assert numbers == list(range(len(numbers)))
        found = dict(row for _, row in steps.rows(tmp_path))
        assert all(found[n]["train/reward"] == n / 7 for n in numbers)
        # Never behind the last row, and at most a checkpoint's distance from it.
        step = steps.resume_step(tmp_path)
        assert step is not None
        assert 0 <= numbers[-1] - step < 5
    assert begins == sorted(begins)
    assert begins[-1] > begins[1]


def test_one_writer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PATIENCE_SECONDS", 0.3)
    with steps.writing(tmp_path):
        second = steps.writing(tmp_path)
        with pytest.raises(UserError, match="an earlier attempt still writes to"):
            second.__enter__()
    with steps.writing(tmp_path):  # the next one may
        pass


def test_a_writer_that_dies_makes_way(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(UserError), steps.writing(tmp_path):
            pass
    process.kill()
    with steps.writing(tmp_path):  # the kernel has let go of its lock, or does so in an instant
        pass
    process.wait()
    process.stdout.close()
