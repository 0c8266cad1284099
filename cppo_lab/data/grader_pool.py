"""A pool of child processes that run math-verify and can be killed.

math-verify's timeout is a signal, which works in the main thread alone and can't stop C code such as the power of
two big integers. verl grades in threads. So each grade is made in a child, and a child that does not answer within
the limit is killed and replaced: one bad grade, no worker lost, no thread stuck.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cppo_lab.errors import UserError

CHILD = Path(__file__).with_name("grader_child.py")
MEMORY_BYTES = 2 << 30  # address space of a child; math-verify itself takes about 60 MB
START_SECONDS = 120  # for the import of math-verify on a busy machine or a slow network disk
# Deaths that the answer itself brings about, so that asking again would kill the next child as well.
_OWN_FAULT = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS}
_OUT_OF_TIME = -signal.SIGXCPU  # its limit of processor time, before this process looked at the clock


@dataclass(frozen=True)
class MathVerifyResult:
    """Whether math-verify calls the answer right, and what kept it from deciding ("timeout", "error") if anything."""

    right: bool
    fault: str | None = None


class _Child:
    """One process and the pipes to it. Used by one thread at a time."""

    def __init__(self, limit_seconds: float, memory_bytes: int) -> None:
        # -P: the script's folder, with our module names, must not shadow the child's imports.
        command = [sys.executable, "-P", str(CHILD), str(limit_seconds), str(memory_bytes)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        assert self.process.stdin and self.process.stdout
        self._send, self._receive = self.process.stdin, self.process.stdout
        self._poll = select.poll()
        self._poll.register(self._receive, select.POLLIN)
        self._pending = b""
        self._ready = False

    def wait_ready(self) -> None:
        """Wait until math-verify is imported.

        Raises:
            UserError: it is not installed, or the process does not start.
        """
        if self._ready:
            return
        try:
            message = self._read(time.monotonic() + START_SECONDS)
        except EOFError:
            message = None
        if message is not None and "missing" in message:
            raise UserError(
                f"package {message['missing']!r} is needed to grade answers: pip install math-verify==0.9.0"
            )
        if message is None:
            raise UserError(
                f"the grading process ({sys.executable} {CHILD}) did not start within {START_SECONDS} s: "
                "run `python -c 'import math_verify'` to see why"
            )
        self._ready = True

    def ask(self, question: dict[str, Any], deadline: float) -> dict[str, Any] | None:
        """The reply to one question, or None if it does not come in time.

        Raises:
            EOFError: the process has died.
        """
        try:
            self._send.write(json.dumps(question).encode() + b"\n")
        except OSError:
            raise EOFError from None
        return self._read(deadline)

    def kill(self) -> int:
        """End the process now. Returns its exit code, -N for a death by signal N."""
        self.process.kill()
        self._send.close()
        self._receive.close()
        return self.process.wait()

    def exit_code(self) -> int:
        """How a process ended that has closed its output."""
        try:
            code = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = 0
        self.kill()
        return code

    def _read(self, deadline: float) -> dict[str, Any] | None:
        while b"\n" not in self._pending:
            seconds = deadline - time.monotonic()
            if seconds <= 0 or not self._poll.poll(seconds * 1000):
                return None
            data = os.read(self._receive.fileno(), 1 << 16)
            if not data:
                raise EOFError
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer


class GraderPool:
    """Grades answers in at most `workers` children, which are started when they are first needed.

    Safe to call from any number of threads; a call waits while all children are busy.

    Args:
        limit_seconds: the longest that one grade may take. The wait for a free child and the start of a child
            (about half a second; the first calls, and the call after a child was killed) come on top.
        workers: the most children at a time.
        memory_bytes: the most address space of a child.
    """

    def __init__(self, limit_seconds: float, workers: int, memory_bytes: int = MEMORY_BYTES) -> None:
        if not (limit_seconds > 0 and workers >= 1):
            raise UserError(
                f"limit_seconds={limit_seconds!r} and workers={workers!r}: give a limit above 0 and at least 1 worker"
            )
        self.limit_seconds = limit_seconds
        self._memory_bytes = memory_bytes
        self._workers = workers
        self._count = 0
        self._idle: list[_Child] = []
        self._changed = threading.Condition()

    def grade(self, answer: str, marked: bool, truth: str) -> MathVerifyResult:
        """Math-verify's verdict.

        Raises:
            UserError: no child can be started.
        """
        question = {"answer": answer, "marked": marked, "truth": truth}
        seconds = self.limit_seconds
        child = self._take()
        try:
            # A child that somebody else killed says nothing about the answer: it is asked once more.
            for _ in range(2):
                child.wait_ready()
                begun = time.monotonic()
                try:
                    reply = child.ask(question, begun + seconds)
                except EOFError:
                    code = child.exit_code()
                    seconds -= time.monotonic() - begun
                    child = self._new_child()
                    if code == _OUT_OF_TIME:
                        return MathVerifyResult(False, "timeout")
                    if code in _OWN_FAULT or seconds <= 0:
                        break
                    continue
                if reply is None:
                    child.kill()
                    child = self._new_child()
                    return MathVerifyResult(False, "timeout")
                if reply["last"]:
                    child.kill()
                    child = self._new_child()
                return MathVerifyResult(bool(reply.get("right")), "error" if "error" in reply else None)
            return MathVerifyResult(False, "error")
        except (
            BaseException
        ):  # an interrupt in the middle of an exchange: the child's next reply would be late
            child.kill()
            raise
        finally:
            self._give_back(child)

    def close(self) -> None:
        """End the children that are not grading."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._count -= len(idle)
            self._changed.notify_all()
        for child in idle:
            child.kill()

    def processes(self) -> list[int]:
        """Process ids of the children that are not grading."""
        with self._changed:
            return [child.process.pid for child in self._idle]

    def _new_child(self) -> _Child:
        return _Child(self.limit_seconds, self._memory_bytes)

    def _take(self) -> _Child:
        with self._changed:
            while not self._idle and self._count >= self._workers:
                self._changed.wait()
            if self._idle:
                return self._idle.pop()
            self._count += 1
        try:
            return self._new_child()
        except BaseException:
            self._forget()
            raise

    def _give_back(self, child: _Child) -> None:
        if child.process.returncode is not None:
            self._forget()
            return
        with self._changed:
            self._idle.append(child)
            self._changed.notify()

    def _forget(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify()
