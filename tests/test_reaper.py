"""The reaper: a session of pytest that is interrupted or killed leaves nothing running."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import reaper
from tests.waiting import CEILING_SECONDS, until

ROOT = Path(__file__).parents[1]
# A test that has started a process in a session of its own, and waits. The process notes its id.
MADE = """
import signal, subprocess, sys

def test_waits():
    note = "import os, pathlib, signal; pathlib.Path({!r}).write_text(str(os.getpid())); signal.pause()"
    subprocess.Popen([sys.executable, "-c", note], start_new_session=True)
    signal.pause()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the reaper needs /proc")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_session_that_ends_early(tmp_path: Path, end: signal.Signals) -> None:
    note, made = tmp_path / "pid", tmp_path / "test_made.py"
    made.write_text(MADE.format(str(note)))
    environment = {key: value for key, value in os.environ.items() if key != reaper.MARK}
    words = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(made)]
    session = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)
    try:
        until("the test's process runs", lambda: note.exists() and note.read_text())
        left = Path("/proc", note.read_text())
        mark = f"{reaper.MARK}="
        [token] = [one for one in (left / "environ").read_text().split("\0") if one.startswith(mark)]
        session.send_signal(end)
        session.wait(CEILING_SECONDS)
        until("nothing is left", lambda: not reaper.started_by(token.removeprefix(mark)))
    finally:
        session.kill()
        session.wait()
        if note.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(note.read_text()), signal.SIGKILL)
