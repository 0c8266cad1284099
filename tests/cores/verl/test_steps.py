"""The trainer's record: what a kill at any moment leaves of it can be read, followed and continued."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cppo_lab import schema
from cppo_lab.cores.verl import checkpoints
from cppo_lab.errors import UserError
from cppo_lab.schema import Outcome

ROOT = Path(__file__).parents[3]


def checkpoint(folder: Path, step: int, whole: bool = True) -> Path:
    path = checkpoints.checkpoint_folder(folder, step)
    (path / "actor" if whole else path).mkdir(parents=True)
    (path / "data.pt").write_text("state")
    return path


def record(folder: Path, *numbers: int) -> None:
    for number in numbers:
        checkpoints.append_row(folder, number, {"train/reward": number / 10})


def read(folder: Path) -> list[int]:
    return [step for _, (step, _) in checkpoints.rows(folder)]


def test_rows_come_back_with_the_offset_behind_them(tmp_path: Path) -> None:
    assert list(checkpoints.rows(tmp_path)) == []
    record(tmp_path, 0, 1)
    found = list(checkpoints.rows(tmp_path))
    assert [row for _, row in found] == [(0, {"train/reward": 0.0}), (1, {"train/reward": 0.1})]
    record(tmp_path, 2)
    assert [row[0] for _, row in checkpoints.rows(tmp_path, found[-1][0])] == [2]
    assert (
        found[-1][0]
        < list(checkpoints.rows(tmp_path))[-1][0]
        == (tmp_path / checkpoints.STEPS).stat().st_size
    )


def test_numbers_are_exact_and_not_finite_ones_come_back(tmp_path: Path) -> None:
    metrics = {"a": 0.1 + 0.2, "b": 1e-300, "c": float("inf")}
    checkpoints.append_row(tmp_path, 1, metrics)
    assert [row for _, row in checkpoints.rows(tmp_path)] == [(1, metrics)]


def test_a_torn_line_waits_until_it_is_whole(tmp_path: Path) -> None:
    record(tmp_path, 1, 2)
    path = tmp_path / checkpoints.STEPS
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for end in range(first, len(content)):
        path.write_bytes(content[:end])
        assert read(tmp_path) == [1], end
    path.write_bytes(content)
    assert [row[0] for _, row in checkpoints.rows(tmp_path, first)] == [2]


def test_cutting_drops_what_will_be_trained_again(tmp_path: Path) -> None:
    record(tmp_path, 0, 1, 2, 3)
    checkpoints.write_outcome(tmp_path, Outcome(schema.DONE, 3))
    kept = checkpoints.cut_after(tmp_path, 2)
    assert [step for step, _ in kept] == read(tmp_path) == [0, 1, 2]
    assert checkpoints.read_outcome(tmp_path) is None
    record(tmp_path, 3)
    assert read(tmp_path) == [0, 1, 2, 3]
    assert checkpoints.cut_after(tmp_path, None) == []
    assert read(tmp_path) == []
    assert (tmp_path / checkpoints.STEPS).stat().st_size == 0  # it is there: its follower begins at its end


def test_cutting_takes_a_torn_line_away(tmp_path: Path) -> None:
    record(tmp_path, 0, 1)
    with (tmp_path / checkpoints.STEPS).open("a") as file:
        file.write('{"step": 2, "metr')
    checkpoints.cut_after(tmp_path, 1)
    record(tmp_path, 2)
    assert read(tmp_path) == [0, 1, 2]


def test_where_a_run_continues(tmp_path: Path) -> None:
    assert checkpoints.resume_step(tmp_path) is None
    record(tmp_path, 0, 1, 2)
    assert checkpoints.resume_step(tmp_path) is None  # rows without a checkpoint
    checkpoint(tmp_path, 2)
    assert checkpoints.resume_step(tmp_path) == 2
    record(tmp_path, 3)
    checkpoint(tmp_path, 4)  # killed before its row was written: perhaps it is not whole
    assert checkpoints.resume_step(tmp_path) == 2
    record(tmp_path, 4)
    assert checkpoints.resume_step(tmp_path) == 4


def test_a_checkpoint_whose_weights_are_gone_is_none(tmp_path: Path) -> None:
    """verl removes the weights of an old checkpoint and leaves the rest of it."""
    record(tmp_path, 0, 2, 4, 6)
    for step, whole in ((2, False), (4, True), (6, False)):
        checkpoint(tmp_path, step, whole)
    assert checkpoints.resume_step(tmp_path) == 4


def test_outcomes(tmp_path: Path) -> None:
    assert checkpoints.read_outcome(tmp_path) is None
    for outcome in (Outcome(schema.DONE, 4), Outcome(schema.COLLAPSED, 2, "score fell: äöü")):
        checkpoints.write_outcome(tmp_path, outcome)
        assert checkpoints.read_outcome(tmp_path) == outcome
    (tmp_path / f"{checkpoints.OUTCOME}.partial").write_text('{"stat')  # killed while it was written
    assert checkpoints.read_outcome(tmp_path) == Outcome(schema.COLLAPSED, 2, "score fell: äöü")


BROKEN = (
    b"\0" * 40,
    b"[" * 100_000,
    b'{"step": 2, "metr\xff',
    b'{"step": 2}',
    b'{"step": "x", "metrics": {}}',
    b'{"step": 2, "metrics": {"a": "much"}}',
    b'{"step": 2, "metrics": [1]}',
    b'{"step": Infinity, "metrics": {}}',
    b"[1, 2]",
    b"7",
)


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: repr(line[:30]))
def test_a_bad_line_ends_the_reading_and_is_cut_away(tmp_path: Path, line: bytes) -> None:
    record(tmp_path, 0, 1)
    with (tmp_path / checkpoints.STEPS).open("ab") as file:
        file.write(line + b"\n")
    record(tmp_path, 3)
    assert read(tmp_path) == [0, 1]
    checkpoints.cut_after(tmp_path, 1)
    record(tmp_path, 2)
    assert read(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, kind: str) -> None:
    for name in (checkpoints.STEPS, checkpoints.OUTCOME):
        if kind == "pipe":
            os.mkfifo(tmp_path / name)
        else:
            (tmp_path / name).symlink_to("/dev/zero")
    assert read(tmp_path) == []
    assert checkpoints.read_outcome(tmp_path) is None
    checkpoints.cut_after(tmp_path, None)
    record(tmp_path, 0)
    assert read(tmp_path) == [0]


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, "{}", '{"status": "done"}', '{"status": [], "step": 1, "reason": ""}']
)
def test_an_outcome_of_another_format_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / checkpoints.OUTCOME).write_text(text)
    assert checkpoints.read_outcome(tmp_path) is None


# Where each process dies, in turn (see `writer`), with the last row and the step to continue from that it leaves. The
# first synchronising of every process is that of the record it has cut; a checkpoint comes with every fifth row.
DEATHS = [
    ("written:8", 6, 5),  # a row that is written, not yet brought to the disk
    ("half:1", 6, 5),  # a cut record, half written
    ("synced:1", 6, 5),
    ("replace:1", 6, 5),
    ("replaced:1", 5, 5),
    ("row:1", 5, 5),
    ("checkpoint:1", 9, 5),  # a checkpoint without its row
    ("half:7", 10, 10),  # a row half written
    ("half:1", 10, 10),  # with the torn row still there
    ("synced:3", 12, 10),
    ("half:2", 10, 10),
    ("checkpoint:2", 19, 15),
]


def written(folder: Path, *points: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.cores.verl.writer", str(folder), *points]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kills_between_and_within_writes_lose_no_step(tmp_path: Path) -> None:
    """A process after the other is killed, and each one continues where it can."""
    lives = written(tmp_path, *(point for point, _, _ in DEATHS))
    assert len(lives) == len(DEATHS)
    begin = 0
    for life, (point, last, resume) in zip(lives, DEATHS, strict=True):
        assert life["killed"], point
        assert life["begin"] == begin
        assert life["kept"] in (None, list(range(begin)))
        assert life["rows"] == [[n, n / 7] for n in range(last + 1)], point
        assert life["resume"] == resume
        begin = resume + 1
    assert (
        len({life["kept"] is None for life in lives}) == 2
    )  # some died while they cut the record, some later


def test_one_writer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PATIENCE_SECONDS", 0.0)
    with checkpoints.writing(tmp_path):
        second = checkpoints.writing(tmp_path)
        with pytest.raises(UserError, match="an earlier attempt still writes to"):
            second.__enter__()
    with checkpoints.writing(tmp_path):  # the next one may
        pass


def test_a_writer_that_dies_makes_way(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cppo_lab.cores.verl import checkpoints\n"
        "with checkpoints.writing(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoints, "PATIENCE_SECONDS", 0.0)
            with pytest.raises(UserError), checkpoints.writing(tmp_path):
                pass
        process.kill()
        with checkpoints.writing(tmp_path):  # the kernel has let go of its lock, or does so in an instant
            pass
