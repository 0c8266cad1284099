"""Trains one run of a trial in a separate process, monitors it, and ends it early if the search prunes it."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from cppo_lab.files import mask_output, open_append
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt, describe
from cppo_lab.runs.folder import AlreadyRunning, is_cancelled, is_held
from cppo_lab.signals import blocked
from cppo_lab.tracking.search_record import Point

POLL_SECONDS = 0.25
PATIENCE_SECONDS = 60.0  # for a run to end cleanly before it is killed
TRIES = 3  # of a run whose process is killed from outside; it resumes from its checkpoint


class Pruned(Exception):
    """The search prunes this trial; `step` is the trial's step."""

    def __init__(self, step: int) -> None:
        super().__init__(f"pruned by the search at step {step}")
        self.step = step


class TrainingFailed(Exception):
    """A training run failed with an error; the text is one line."""


@dataclass(frozen=True)
class Run:
    """A training run of a search: how to train it, and how to read its curve."""

    attempt: Attempt
    uri: str
    finished: Callable[[], list[Point] | None]  # the recorded curve; None while it is not done
    live: Callable[[], list[Point]]  # what it has written so far


def train(run: Run, see: Callable[[Sequence[Point]], int | None]) -> list[Point]:
    """Train `run` unless it is done, and return its curve. If another process is training it, wait for that.

    `see` takes the points so far and returns the step at which to stop, or None. It is called before training starts
    and after each validation. A run trained by another process is never ended. Raises Pruned, after the run has ended
    cleanly, and TrainingFailed.
    """
    died = 0
    while True:
        curve = run.finished()
        if curve is not None:
            see(curve)
            return curve
        if is_held(run.attempt.folder):
            while is_held(run.attempt.folder):
                see(run.live())
                time.sleep(POLL_SECONDS)
            continue
        _give_up_at(see(run.live()))
        reason = _train_here(run, see)
        if reason is None:
            continue
        if is_cancelled(run.attempt.folder, run.attempt.created):
            raise TrainingFailed("its run was cancelled")
        died += 1
        if died == TRIES:
            raise TrainingFailed(f"its process ended {TRIES} times before its last step: {reason}")


def _give_up_at(step: int | None) -> None:
    if step is not None:
        raise Pruned(step)


def _train_here(run: Run, see: Callable[[Sequence[Point]], int | None]) -> str | None:
    """Train in a child process. Returns None if it succeeded, or why it was killed."""
    # The child does not load Ray or verl, and does not inherit this process's locks.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(TrainingJob((run.attempt,), run.uri), sender))
    with blocked(signal.SIGHUP):  # the child is ended below
        child.start()
    try:
        sender.close()
        while child.is_alive():
            child.join(POLL_SECONDS)
            _give_up_at(see(run.live()) if child.is_alive() else None)
    finally:
        if child.is_alive():  # pruned or interrupted: its signal handler ends it cleanly
            child.terminate()
            child.join(PATIENCE_SECONDS)
            if child.is_alive():
                child.kill()
                child.join()
    with contextlib.suppress(EOFError):
        if receiver.poll():
            raise TrainingFailed(receiver.recv())
    if child.exitcode == 0:
        return None
    code = child.exitcode or 0
    return f"signal {-code}" if code < 0 else f"exit code {code}, see {_log(run.attempt)}"


def _log(attempt: Attempt) -> Path:
    return attempt.folder / "attempts" / "search_log.out"


def _child(job: TrainingJob, sender: Connection) -> None:
    """Runs in the child: train, and send an error as one line. Output goes to a file of the run."""
    (job.folder / "attempts").mkdir(parents=True, exist_ok=True)
    with open_append(_log(job.attempts[0])) as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    mask_output()
    try:
        job.run()
    except AlreadyRunning as error:
        print(error)
    except Exception as error:  # noqa: BLE001 - the attempt has recorded it; the trial fails
        sender.send(describe(error))
