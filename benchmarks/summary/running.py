"""Running one benchmark in a separate process, with a time limit and its output in a file."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.summary.form import Result, read

GRACE_SECONDS = 60.0  # to stop the servers that a benchmark has started


@dataclass(frozen=True)
class Ran:
    """A benchmark that was run: its result, or `failure`, one line that says why there is none."""

    name: str
    command: str
    about: str  # the first sentence of its documentation
    seconds: float
    result: Result | None
    failure: str = ""


def run(script: Path, quick: bool, limit: float, log: Path) -> Ran:
    """Run `script` for at most `limit` seconds; what it prints goes to `log`. Never raises for what it does."""
    words = [sys.executable, str(script), *(["--quick"] if quick else [])]
    shown = f"python {script.parent.name}/{script.name}" + (" --quick" if quick else "")
    start = time.perf_counter()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_interruptible
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.perf_counter() - start
    text = log.read_text(encoding="utf-8", errors="replace")
    found, failure = outcome(code, text, limit)
    return Ran(script.stem, shown, first_sentence(script), seconds, found, failure)


def outcome(code: int | None, text: str, limit: float) -> tuple[Result | None, str]:
    """The result in what a benchmark printed, or why there is none; `code` None: it took longer than `limit`."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    if code is None:
        return None, f"it took longer than {limit:.0f} s and was ended"
    if code != 0:
        return None, f"it ended with exit code {code}: {lines[-1].strip():.200}"
    try:
        return read(lines[-1]), ""
    except ValueError as error:
        return None, str(error)


def first_sentence(script: Path) -> str:
    """What a script's documentation begins with."""
    text = script.read_text(encoding="utf-8")
    return text.split('"""')[1].split("\n\n")[0].replace("\n", " ").strip()


def _interruptible() -> None:
    """Let ctrl-C's signal through: a shell that starts something in the background lets it be ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End what still runs: first as ctrl-C does, after which servers are stopped and folders removed."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
