"""Submits runs to Slurm: equal ones as one array. A run has at most one job, even if the launcher is killed."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError

from cppo_lab.batch import Batch
from cppo_lab.errors import UserError
from cppo_lab.launch.base import Event, J, Job, LauncherSpec
from cppo_lab.launch.slurm.container import after, before
from cppo_lab.launch.slurm.job import SlurmTask
from cppo_lab.launch.slurm.ledger import FOLDER, Ledger, submitting
from cppo_lab.launch.slurm.parameters import groups
from cppo_lab.launch.slurm.queue import command_output, require_slurm
from cppo_lab.launch.slurm.reconcile import refresh
from cppo_lab.launch.slurm.settings import SlurmSpec
from cppo_lab.safe_open import replace_file

SETTLING_SECONDS = 30.0  # a controller that has just started first polls its nodes
LARGEST_ARRAY = 1000  # if the cluster does not report its limit
REASON_TRIES, REASON_SECONDS = 10, 0.5  # until Slurm has a reason for a waiting job
# Reasons of pending jobs that could never start, whatever the nodes' states.
_NEVER = frozenset({"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"})
_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|Connection refused"
    r"|Communication connection failure",
    re.I,
)
SLOW_SECONDS = 10.0  # sbatch returns within a second, unless the controller accepts no more jobs for now


def launch_slurm(jobs: Sequence[J], spec: LauncherSpec, report: Callable[[Event[J]], None]) -> None:
    """Submit the jobs that are not in Slurm's queue and return; Slurm runs them.

    Raises UserError if Slurm is not available or would refuse one of them; nothing has been submitted then.
    """
    assert isinstance(spec, SlurmSpec)
    require_slurm()
    if not jobs:
        return
    runs = jobs[0].folder.parent
    _require_plain(runs)
    with _outside_of_jobs(), submitting(runs), Ledger(runs) as ledger:
        refresh(ledger)
        busy = {task.name for task in ledger.open_tasks()}
        todo = groups([left for job in jobs if (left := _without(job, busy)) is not None], spec)
        for values, _ in todo:
            _rehearse(values, runs, spec)
        largest = _largest_array()
        for values, equal in todo:
            for start in range(0, len(equal), largest):
                some = equal[start : start + largest]
                _submit(some, values, ledger, spec)
                for job in some:
                    report(Event("submitted", job))


def _submit(jobs: Sequence[J], values: dict[str, Any], ledger: Ledger, spec: SlurmSpec) -> None:
    names = [_names(job) for job in jobs]
    places = [place for place, own in enumerate(names) for _ in own]
    token = ledger.claim([name for own in names for name in own], places)
    executor = _executor(ledger.folder_of(token), values, spec, token, len(jobs))
    try:
        with _warning_if_slow(), executor.batch():
            submitted = [executor.submit(SlurmTask(job, spec.requeues)) for job in jobs]
    except FailedJobError as error:
        ledger.end(ledger.open_tasks_of(token), "not submitted")
        raise _refused(str(error)) from None
    except FailedSubmissionError as error:  # it may be in the queue all the same: the next launch checks
        said = " ".join(str(error).split())
        raise UserError(
            f"{said}: launch again; if this persists, check which `sbatch` this is (`type sbatch`)"
        ) from None
    ledger.submitted(token, int(str(submitted[0].job_id).partition("_")[0]))


def _names(job: Job) -> tuple[str, ...]:
    """The names of a job in the ledger: those of the runs of a batch."""
    return job.run_ids if isinstance(job, Batch) else (job.name,)


def _without(job: J, busy: Collection[str]) -> J | None:
    """`job` without the runs that are in the queue already; None if nothing is left of it."""
    if isinstance(job, Batch):
        return cast(J | None, job.without(busy))
    return None if job.name in busy else job


@contextlib.contextmanager
def _warning_if_slow() -> Iterator[None]:
    """Print a warning if sbatch is slow: it retries for minutes, silently, if the controller accepts no more jobs."""
    timer = threading.Timer(
        SLOW_SECONDS,
        lambda: print(
            f"cppo: sbatch has not answered for {SLOW_SECONDS:.0f} s: the cluster may have reached its limit of jobs "
            "(MaxJobCount), or its controller is slow; sbatch tries again by itself, and Ctrl-C loses nothing",
            file=sys.stderr,
            flush=True,
        ),
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _executor(folder: Path, values: dict[str, Any], spec: SlurmSpec, token: str, size: int) -> SlurmExecutor:
    options = dict(values)
    executor = SlurmExecutor(folder, max_num_timeout=spec.requeues, python=options.pop("python", None))
    if spec.container.runtime:
        options |= {"setup": [*options["setup"], *before(folder.resolve())], "teardown": after()}
    executor.update_parameters(**options, comment=token, array_parallelism=spec.workers or size)
    return executor


def _require_plain(runs: Path) -> None:
    """Raises UserError for a folder whose name Slurm would change or misread.

    An option of a batch script ends with its line, and Slurm expands `%` in the names of output files.
    """
    if set(str(runs)) & set("\n\r%\\"):
        raise UserError(
            f"launcher=slurm: the folder {str(runs)!r} has a line break, % or a backslash in its name, which Slurm "
            "misreads: rename it, or work in another folder"
        )


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Remove the variables of a Slurm job that this process may run in: they do not apply to new jobs."""
    hidden = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
    for name in hidden.keys() - {"SLURM_CONF", "SLURM_CLUSTERS"}:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def _rehearse(values: dict[str, Any], runs: Path, spec: SlurmSpec) -> None:
    """Have Slurm validate a batch script without running it. Raises UserError with Slurm's objection."""
    folder = runs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "rehearsal.sh"
    text = _executor(folder, values, spec, "rehearsal", 1)._make_submission_file_text("true", "rehearsal")
    # Replaced, since the file of a killed launcher of another account could not be overwritten.
    replace_file(script, text)
    deadline = time.monotonic() + SETTLING_SECONDS
    try:
        done = _ask("sbatch", "--test-only", str(script))
        # A controller that has just started knows no nodes yet, and refuses jobs that need one.
        while (
            done.returncode
            and time.monotonic() < deadline
            and "unknown" in _ask("sinfo", "-h", "-o%T").stdout
        ):
            time.sleep(1.0)
            done = _ask("sbatch", "--test-only", str(script))
        refusal = done.stderr if done.returncode else ""
        if refusal and _AWAY.search(refusal) is None:
            refusal = _refused_for_ever(script, refusal)
    finally:
        script.unlink()
    if refusal:
        raise _refused(refusal)


def _refused_for_ever(script: Path, refusal: str) -> str:
    """Why a job that `sbatch --test-only` refuses could never run; empty if it would only have to wait.

    The test refuses everything that no node can take now, also while nodes are drained, reserved or down. A real
    submission is queued then. So the script is submitted, and cancelled before it can start.
    """
    trial = [
        "--parsable",
        "--begin=now+1hour",
        "--comment=rehearsal",
        "--output=/dev/null",
        "--error=/dev/null",
    ]
    done = _ask("sbatch", *trial, str(script))
    if done.returncode:
        return done.stderr
    job = done.stdout.strip().partition(";")[0]
    try:
        reason = "None"
        for _ in range(REASON_TRIES):
            reason = _ask("squeue", "--noheader", f"--jobs={job}", "--format=%r").stdout.strip()
            if reason == "BeginTime":  # the scheduler has set this in place of the reason that is needed
                _ask("scontrol", "update", f"JobId={job}", "StartTime=now")
            elif reason != "None":
                break
            time.sleep(REASON_SECONDS)
    finally:
        _ask("scancel", "--quiet", job)
    return f"{refusal}\nit would never start ({reason})" if reason in _NEVER else ""


def _ask(*command: str) -> "subprocess.CompletedProcess[str]":
    try:
        return command_output(*command)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{command[0]}: Slurm's controller did not answer within 60 s: try again later"
        ) from None


def _refused(said: str) -> UserError:
    """What sbatch objects to, on one line."""
    lines = [
        line.strip().removeprefix("sbatch: ").removeprefix("error: ")
        for line in said.splitlines()
        if line.strip() and not line.startswith('Try "sbatch --help"')
    ]
    if _AWAY.search(said):
        return UserError(
            f"Slurm's controller does not answer ({'; '.join(lines)}): nothing was submitted; see that it is up "
            "(`scontrol ping`), and launch again"
        )
    return UserError(
        f"Slurm rejects these jobs: {'; '.join(lines) or 'it gave no reason'}: check resources.*, layout.* and "
        "launcher.sbatch of the runs (`sinfo` lists partitions, `cppo show` what a run requests)"
    )


def _largest_array() -> int:
    """How many tasks the cluster allows in an array."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = command_output("scontrol", "show", "config").stdout
        if found := re.search(r"MaxArraySize\s*=\s*(\d+)", said):
            return max(1, int(found[1]) - 1)
    return LARGEST_ARRAY
