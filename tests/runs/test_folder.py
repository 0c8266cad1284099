"""A run's status whatever the disk does, what living launchers have on their lists, and what dead ones left."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from cppo_lab import files
from cppo_lab.runs.folder import QUEUES, announce, clear_status, queued, queueing, read_status, write_status

REPLACING = files.replacing


@contextlib.contextmanager
def full(path: Path, synced: bool = False) -> Iterator[Any]:
    """What `replacing` comes to on a full disk."""
    with REPLACING(path, synced):
        raise OSError(28, "No space left on device")
    yield


def test_a_status_on_a_full_disk_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(tmp_path, {"step": 1, "reason": "a long one"})
    monkeypatch.setattr("cppo_lab.files.replacing", full)
    write_status(tmp_path, {"step": 2})
    assert (read_status(tmp_path), len(list(tmp_path.iterdir()))) == ({"step": 2}, 1)
    (tmp_path / "status.json").unlink()
    with pytest.raises(OSError, match="No space left"):
        write_status(tmp_path, {"step": 3})
    assert list(tmp_path.iterdir()) == []


@patch.object(Path, "write_text", Mock(side_effect=OSError(28, "No space left on device")))
def test_a_run_announced_on_a_full_disk_leaves_no_draft(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        announce(tmp_path / "run", {"seed": 0})
    assert list((tmp_path / "run").iterdir()) == []


@patch("os.link", Mock(side_effect=PermissionError(1, "Operation not permitted")))
def test_a_run_is_announced_without_hard_links(tmp_path: Path) -> None:
    """On exFAT, and on shares of Windows."""
    for seed in (0, 1):
        announce(tmp_path / "run", {"seed": seed})
    assert read_status(tmp_path / "run")["seed"] == 0
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["status.json"]


@pytest.mark.parametrize("older", [{"seconds": 9}, {"seconds": 9, "machine_seconds": 3}])
def test_a_run_is_announced_once_and_begun_again_with_its_names(
    tmp_path: Path, older: dict[str, float]
) -> None:
    run = tmp_path / "run"
    for rule in ("cppo", "grpo"):
        announce(run, {"rule": rule, "seed": 0})
    announced = {"status": "", "step": None, "rule": "cppo", "seed": 0}
    assert read_status(run) == announced
    write_status(run, {**announced, "status": "failed", "reason": "bad", "step": 3, **older})
    clear_status(run)
    assert read_status(run) == {**announced, "machine_seconds": 9.0, **older}
    assert [path.name for path in run.iterdir()] == ["status.json"]


WRONG = (
    '"reason": 1e999',
    '"variants": true',
    '"seconds": "x"',
    '"step": [1]',
    '"updated": null',
    '"gpus": 1e400',
)


@pytest.mark.parametrize(
    "text", ["", '{"status": "runn', "[1]", "\x00", "[" * 100_000, *(f"{{{value}}}" for value in WRONG)]
)
def test_a_damaged_status_reads_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    assert read_status(tmp_path) == {}


HOLD = """
import sys
from pathlib import Path
from cppo_lab.runs.folder import queueing
with queueing(Path(sys.argv[1]), ["aaa", "bbb"]):
    print("there", flush=True)
    sys.stdin.read()
"""


def test_a_run_is_queued_until_it_has_ended(tmp_path: Path) -> None:
    assert queued(tmp_path) == frozenset()
    with queueing(tmp_path, ["a", "b", "c"]) as without:
        assert queued(tmp_path) == {"a", "b", "c"}
        without(["b"])
        with queueing(tmp_path, ["b", "d"]):
            assert queued(tmp_path) == {"a", "b", "c", "d"}
        [path] = (tmp_path / QUEUES).iterdir()
        with path.open("a") as file:
            file.write("+half")  # a line that is being written does not count
        assert queued(tmp_path) == {"a", "c"}
    with pytest.raises(KeyboardInterrupt), queueing(tmp_path, ["a"]):
        raise KeyboardInterrupt
    assert list((tmp_path / QUEUES).iterdir()) == []


def test_the_list_of_a_killed_launcher_counts_no_more_and_is_removed_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout.readline() == "there\n"
        assert queued(tmp_path) == {"aaa", "bbb"}
        launcher.kill()
    assert queued(tmp_path) == frozenset()
    [left] = (tmp_path / QUEUES).iterdir()  # looking writes nothing
    with queueing(tmp_path, ["c"]):
        assert not left.exists()
        assert queued(tmp_path) == {"c"}
