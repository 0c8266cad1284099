"""A closed terminal ends a command and what it trains in order, unless `nohup` keeps it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab.cli import INTERRUPTED
from tests.conftest import ROOT, python
from tests.launch.slurm.jobs import notes
from tests.waiting import CEILING_SECONDS, until

HANG_UP = """
import os, signal
from cppo_lab.errors import interrupt_on_termination
interrupt_on_termination()
try:
    os.kill(os.getpid(), signal.SIGHUP)
    print("goes on")
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGHUP)  # the shell says it again
    print("ends in order")
"""


@pytest.mark.parametrize(("before", "says"), [(signal.SIG_DFL, "ends in order"), (signal.SIG_IGN, "goes on")])
def test_a_terminal_that_closes(before: signal.Handlers, says: str) -> None:
    done = python("-c", HANG_UP, preexec_fn=lambda: signal.signal(signal.SIGHUP, before))
    assert done.stdout.strip() == says


LAUNCHER = """
import sys
from pathlib import Path
from cppo_lab.errors import interrupt_on_termination
from cppo_lab.launch.launchers import load_launcher
from tests.launch.slurm.jobs import Long, slurm_spec
interrupt_on_termination()
jobs = [Long(Path(sys.argv[1]), "job", fresh_process=True)]
load_launcher(sys.argv[2])(jobs, slurm_spec(), lambda event: None)
"""


@pytest.mark.parametrize("name", ["inline", "local"])
def test_a_job_in_a_process_of_its_own_outlives_the_terminal_by_its_last_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the job is one of the tests'
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path), name],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    until("it has begun", lambda: notes(tmp_path) == [("job", "begin")])
    os.killpg(launcher.pid, signal.SIGHUP)
    assert launcher.wait(CEILING_SECONDS) != 0
    assert notes(tmp_path) == [("job", "begin"), ("job", f"interrupted {signal.SIGTERM.value}")]


IMPORT = """
import os, signal, sys

module, sys.argv[1] = sys.argv[1], "list"  # as the `cppo` command is started

class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
from cppo_lab.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["cppo_lab.cli.command", "cppo_lab.cli.names", "yaml"])
def test_ctrl_c_while_a_command_is_imported(module: str) -> None:
    """Before its parser, for its arguments, and in its function."""
    command = python("-c", IMPORT, module, check=False)
    assert (command.returncode, command.stderr) == (130, f"cppo: {INTERRUPTED}\n")
