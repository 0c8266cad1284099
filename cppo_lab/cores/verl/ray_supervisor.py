"""Starts Ray on one machine, and ends all of its processes when the owner process ends, for whatever reason.

Run as `python -m cppo_lab.cores.verl.ray_supervisor FOLDER COMMAND ...` with a pipe as standard input, whose other end
the owner holds: when the pipe closes, or COMMAND ends by itself, all processes below this process are ended and FOLDER
is removed. `ray stop` would end every Ray of the machine, and a process group would miss processes that Ray puts into
other groups. As a subreaper (prctl(2)) this process adopts all orphaned descendants, so none escapes.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

SET_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
LOOK_SECONDS = 0.2
PATIENCE_SECONDS = 2.0  # from SIGTERM to SIGKILL: Slurm's KillWait is often 30 s, and may be 5


@contextmanager
def ray_process(
    command: Sequence[str], folder: Path, lock: int, environment: dict[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `command`, which starts Ray in the foreground, during the context.

    `folder` is Ray's and is removed afterwards; `lock` is the descriptor that holds its lock.
    """
    whole = [sys.executable, "-m", "cppo_lab.cores.verl.ray_supervisor", str(folder), *command]
    # In a new session, so that a signal to this process group leaves it time to clean up.
    keeper = subprocess.Popen(
        whole, env=environment, stdin=subprocess.PIPE, pass_fds=[lock], start_new_session=True
    )
    assert keeper.stdin is not None
    try:
        yield keeper
    finally:
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.close()
        keeper.wait()


def main(folder: Path, command: Sequence[str]) -> int:
    """Keep `command` until standard input closes; returns its exit status, 0 if it was ended from here."""
    # No signal ends this process, which Slurm sends to every process of a job step. SIGUSR2, a warning for the trainer,
    # is ignored, not handled: Ray's processes inherit this and survive it.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Handlers are not inherited: these signals end Ray, as they should.
        signal.signal(number, lambda *_: None)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # Slurm may kill this process after KillWait as well.
        preexec_fn=lambda: prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0),
    )
    try:
        while process.poll() is None:
            if select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
                return 0
        return process.returncode
    finally:
        _end_all_below()
        shutil.rmtree(folder, ignore_errors=True)


def _end_all_below() -> None:
    """End every process below this process, first by SIGTERM, then by SIGKILL."""
    me = psutil.Process()
    for method, seconds in ((psutil.Process.terminate, PATIENCE_SECONDS), (psutil.Process.kill, 1.0)):
        below = me.children(recursive=True)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                method(process)
        psutil.wait_procs(below, timeout=seconds)
    while orphans := me.children():  # orphans adopted meanwhile
        for process in orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(orphans, timeout=1.0)


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1]), sys.argv[2:]))
