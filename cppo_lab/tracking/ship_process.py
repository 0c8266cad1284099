"""Uploading in a process separate from the trainer.

MLflow needs CPU time for each point, most of all with a SQLite file. A thread of the training process would hold
Python's interpreter lock meanwhile, and training with many small operations would almost stop. This process can be
killed at any time: what it has not sent is sent by the next upload, from whichever process.
"""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from cppo_lab.errors import UserError
from cppo_lab.tracking.client import STORE_FAULTS, fault_line, open_client
from cppo_lab.tracking.upload import ship

PARENT_SECONDS = 5.0  # interval of the check whether the training process is alive
NICENESS = 5  # training comes first
_COMMAND = [sys.executable, "-c", "from cppo_lab.tracking.ship_process import main; main()"]


class ShipProcess:
    """The process that ships `folder` to the store at `uri`, as the training process sees it.

    Raises OSError if it cannot be started.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        # A new session, since Ctrl-C is for the training process, which then ends this one.
        self._process = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        # Not on the command line, which all users of the machine can read: the URI may hold a password.
        self._first = json.dumps({"folder": str(folder), "uri": uri}) + "\n"

    def ship(self) -> str:
        """Ship once; returns the store's fault, empty if there is none.

        Raises BrokenPipeError if the process is gone.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{self._first}\n")
        self._first = ""
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer.endswith("\n"):
            raise BrokenPipeError("the process that ships is gone")
        return str(json.loads(answer))

    def kill(self) -> None:
        """Kill the process; its unfinished work is repeated later."""
        self._process.kill()

    def close(self) -> None:
        """Release its resources. No thread may still be in `ship`."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # a request that it never read
                continue


def main() -> None:
    """Ship once for each line of standard input; ends with the training process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals all processes of a job
    os.nice(NICENESS)
    answers = os.dup(1)
    os.dup2(2, 1)  # keep output of libraries out of the answers
    parent, client, task = os.getppid(), None, json.loads(_first_line())
    if not task:
        return
    folder, uri = Path(task["folder"]), str(task["uri"])
    while _asked(parent):
        fault = ""
        try:
            client = client or open_client(uri)
            ship(folder, uri, client)
        except (*STORE_FAULTS, UserError) as error:
            fault = fault_line(error)
        try:
            os.write(answers, f"{json.dumps(fault)}\n".encode())
        except BrokenPipeError:
            return


def _first_line() -> bytes:
    """Read byte by byte, without buffering, since `select` waits for the next line on the descriptor."""
    text = b""
    while not text.endswith(b"\n") and (byte := os.read(0, 1)):
        text += byte
    return text or b"{}"


def _asked(parent: int) -> bool:
    """Waits for a line; False if the training process is gone. Its own children may keep the pipe open."""
    while not select.select([0], [], [], PARENT_SECONDS)[0]:
        if os.getppid() != parent:
            return False
    return os.read(0, 1) == b"\n"
