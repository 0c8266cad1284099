"""The reaper: a session of pytest leaves nothing running, whether it ends in order, is interrupted or is killed."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import reaper
from tests.conftest import ROOT
from tests.waiting import CEILING_SECONDS, is_alive, until

# A test that starts a process in a new session. The process writes its id to a file and waits; the test may wait, too.
MADE = """
import signal, subprocess, sys

def test_leaves_a_process():
    note = "import os, signal; open({!r}, 'w').write(str(os.getpid())); print(flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", note], start_new_session=True, stdout=subprocess.PIPE)
    process.stdout.readline()
    if {}:
        signal.pause()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the reaper needs /proc")


@pytest.mark.parametrize(("end", "workers"), [(None, 1), (signal.SIGINT, 0), (signal.SIGKILL, 1)])
def test_nothing_is_left_of_a_session(tmp_path: Path, end: signal.Signals | None, workers: int) -> None:
    note, made = tmp_path / "pid", tmp_path / "test_made.py"
    made.write_text(MADE.format(str(note), end is not None))
    environment = {key: value for key, value in os.environ.items() if key != reaper.MARK}
    words = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    words += ["-n", str(workers), str(made)]
    session = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)
    try:
        pid = int(until("the test's process has run", lambda: note.exists() and note.read_text()))
        if end is None:
            assert session.wait(CEILING_SECONDS) == 0 and not is_alive(pid)
        else:
            assert is_alive(pid)
            session.send_signal(end)
            session.wait(CEILING_SECONDS)
            until("its process has been killed", lambda: not is_alive(pid))
    finally:
        session.kill()
        session.wait()
        if note.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(note.read_text()), signal.SIGKILL)
