"""What living launchers have on their lists, and what dead ones left."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab.runs.folder import QUEUES, Queue, queued

HOLD = """
import sys
from pathlib import Path
from cppo_lab.runs.folder import Queue
with Queue(Path(sys.argv[1]), ["aaa", "bbb"]):
    print("there", flush=True)
    sys.stdin.read()
"""


def test_a_run_is_queued_until_it_has_ended(tmp_path: Path) -> None:
    assert queued(tmp_path) == frozenset()
    with Queue(tmp_path, ["a", "b", "c"]) as first:
        assert queued(tmp_path) == {"a", "b", "c"}
        first.ended("b")
        with Queue(tmp_path, ["b", "d"]):
            assert queued(tmp_path) == {"a", "b", "c", "d"}
        assert queued(tmp_path) == {"a", "c"}
    assert queued(tmp_path) == frozenset()
    assert list((tmp_path / QUEUES).iterdir()) == []


def test_an_error_takes_the_list_away(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Queue(tmp_path, ["a"]):
        raise KeyboardInterrupt
    assert queued(tmp_path) == frozenset()


def test_the_list_of_a_killed_launcher_counts_no_more_and_is_removed_by_the_next(tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "there\n"
    assert queued(tmp_path) == {"aaa", "bbb"}
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    assert queued(tmp_path) == frozenset()
    [left] = (tmp_path / QUEUES).iterdir()  # looking writes nothing
    with Queue(tmp_path, ["c"]):
        assert not left.exists()
        assert queued(tmp_path) == {"c"}


def test_a_line_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    with Queue(tmp_path, ["a"]) as queue:
        queue._file.write("+half")
        queue._file.flush()
        assert queued(tmp_path) == {"a"}
