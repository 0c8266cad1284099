"""Ending processes, without a cluster."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dev.slurm import daemons
from dev.slurm.daemons import Process, look_up

# Notes the end of its children, as a step daemon tells the controller of its task's.
PARENT = """
import os, subprocess, sys
children = [subprocess.Popen(["sleep", "infinity"]) for _ in range(40)]
print(*(child.pid for child in children), flush=True)
os.wait()
open(sys.argv[1], "w").close()
"""

# Starts one process after the other, as a step daemon does whose job begins.
STARTER = """
import subprocess, time
print(1, flush=True)
while True:
    subprocess.Popen(["sleep", "infinity"])
    time.sleep(0.01)
"""


def test_without_patience_nobody_sees_another_one_die(tmp_path: Path) -> None:
    """A node whose task dies a moment before its daemons would report a failed job, and lose it."""
    noted = tmp_path / "noted"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, os.fspath(noted)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [*map(int, parent.stdout.readline().split()), parent.pid]
    processes = [found for pid in pids if (found := look_up(pid)) is not None]
    assert len(processes) == 41
    daemons.end(lambda: processes, patience=0)
    assert not noted.exists()
    assert not [process for process in processes if process.alive()]


def test_patience_is_for_what_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import signal, time; signal.signal(15, lambda *_: exit(7)); print(1, flush=True); signal.pause()"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    found = look_up(child.pid)
    assert isinstance(found, Process)
    clock = [0.0]

    def sleep(seconds: float) -> None:
        """It has ended when this clock goes on."""
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        clock[0] += seconds

    # `alive` would take the exit status before this test does.
    monkeypatch.setattr(daemons.os, "waitpid", lambda *_: (0, 0))
    monkeypatch.setattr(daemons, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock[0]))
    daemons.end(lambda: [found], patience=20)
    monkeypatch.undo()
    assert child.wait() == 7
    assert clock[0] < 1


@pytest.mark.parametrize("patience", [0, 0.2])
def test_what_is_started_meanwhile_ends_too(patience: float, tmp_path: Path) -> None:
    """A job that begins while its node fails would outlive the node."""
    env = {**os.environ, daemons.CLUSTER: os.fspath(tmp_path), daemons.DAEMON: "starter"}
    program = STARTER if not patience else f"import signal; signal.signal(15, signal.SIG_IGN){STARTER}"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env)
    assert child.stdout is not None
    child.stdout.readline()
    daemons.end(lambda: daemons.of_cluster(tmp_path).get("starter", []), patience)
    assert daemons.of_cluster(tmp_path) == {}
    child.communicate()
