"""What killed test sessions have left goes, and what belongs to one that lives stays. Needs no Slurm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.sessions import alive

ROOT = Path(__file__).parents[2]
SESSION = """
import os, sys
from pathlib import Path
from tests.slurm.sessions import alive
with alive(Path(sys.argv[1])):
    print(os.getpid(), flush=True)
    input()
"""


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Where clusters are."""
    return tmp_path / "clusters"


def session(folders: Path) -> "subprocess.Popen[str]":
    """Another session, which has begun."""
    command = [sys.executable, "-c", SESSION, os.fspath(folders)]
    started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert int(started.stdout.readline()) == started.pid
    return started


def test_what_lives_stays_and_what_was_killed_goes(folders: Path) -> None:
    other = session(folders)
    theirs = [folders / f"tests-{other.pid}{what}" for what in ("", "-2")]
    for folder in (*theirs, folders / "default", folders / "tests-somebody"):
        folder.mkdir()
    with alive(folders):
        assert all(folder.is_dir() for folder in theirs)
    other.kill()
    other.communicate()
    with alive(folders):
        (folders / f"tests-{os.getpid()}").mkdir()
        third = session(folders)  # begins while this one lives
        found = {path.name for path in folders.iterdir() if path.is_dir()}
        assert found == {"default", "tests-somebody", f"tests-{os.getpid()}"}
        third.communicate("\n")
    assert third.returncode == 0
    assert [path.name for path in folders.glob("*.lock")] == ["sessions.lock"]


def test_a_process_of_the_same_number_is_not_the_session(folders: Path) -> None:
    """The session was killed, and its number is somebody else's now."""
    left = folders / "tests-1"
    left.mkdir(parents=True)
    (folders / "tests-1.lock").touch()
    with alive(folders):
        assert not left.exists()


def test_two_sessions_clear_away_at_once(folders: Path) -> None:
    for number in range(4):
        (folders / f"tests-1-{number}" / "log").mkdir(parents=True)
    (folders / "tests-1.lock").touch()
    both = [
        subprocess.Popen([sys.executable, "-c", SESSION, os.fspath(folders)], cwd=ROOT, stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    for one in both:
        one.communicate(b"\n")
    assert [one.returncode for one in both] == [0, 0]
    assert not list(folders.glob("tests-*"))
