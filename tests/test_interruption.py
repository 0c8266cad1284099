"""A closed terminal ends a command in order, unless `nohup` keeps it."""

import signal
import subprocess
import sys

import pytest

TOLD = """
import os, signal
from cppo_lab.interruption import take_for_ctrl_c
take_for_ctrl_c()
try:
    os.kill(os.getpid(), signal.SIGHUP)
    print("goes on")
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGHUP)  # the shell says it again
    print("ends in order")
"""


@pytest.mark.parametrize(("before", "says"), [(signal.SIG_DFL, "ends in order"), (signal.SIG_IGN, "goes on")])
def test_a_terminal_that_closes(before: signal.Handlers, says: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", TOLD],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, before),
    )
    assert told.stdout.strip() == says
