"""What Slurm says of our jobs: one `squeue` for all of them, and `sacct` where the cluster keeps accounts.

Nothing is decided by accounting alone: many clusters have none. `squeue` forgets a job some minutes after its end.
"""

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cppo_lab.errors import UserError

PATIENCE_SECONDS = 60.0
PING_SECONDS = 10.0
SACCT_JOBS = 500  # per request
_FIELDS = {"job": "%i", "state": "%T", "reason": "%r", "seconds": "%M", "node": "%N", "comment": "%k"}

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"})
ACTIVE = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})


@dataclass(frozen=True)
class QueuedJob:
    """A job, or one task of an array, as the queue shows it. `state` is Slurm's word, `seconds` its time so far."""

    job: str
    state: str
    reason: str
    seconds: int
    node: str
    comment: str


def require_slurm() -> None:
    """Raises UserError where Slurm's commands are not installed."""
    missing = [name for name in ("sbatch", "squeue", "scancel", "srun") if shutil.which(name) is None]
    if missing:
        raise UserError(
            f"launcher=slurm: {', '.join(missing)} not found on this machine: go to a login node of the cluster, or "
            "choose launcher=local (`make slurm-dev` starts a Slurm to try things out)"
        )


def our_jobs() -> list[QueuedJob]:
    """This user's jobs, each task of an array by itself; those that ended lately too.

    Raises UserError if the controller does not answer.
    """
    _require_answer()
    text = _ask(
        "squeue", "--me", "--noheader", "--array", "--states=all", f"--format={'|'.join(_FIELDS.values())}"
    )
    return [_parse(line) for line in text.splitlines() if line]


def _require_answer() -> None:
    """Raises UserError at once if the controller is down: `squeue` takes some ten seconds to notice."""
    if shutil.which("scontrol") is None:
        return
    try:
        done = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=PING_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(f"scontrol ping: no answer within {PING_SECONDS:.0f} s") from None
    if done.returncode and " is UP" not in done.stdout:  # a backup controller may answer
        said = (done.stdout.strip() or done.stderr.strip() or f"exit status {done.returncode}").splitlines()
        raise UserError(f"Slurm's controller does not answer ({said[0]})")


def ended_as(jobs: Iterable[str]) -> dict[str, str]:
    """Slurm's word for how jobs ended; empty where the cluster keeps no accounts."""
    wanted = list(jobs)
    if not wanted or shutil.which("sacct") is None:
        return {}
    found: dict[str, str] = {}
    for start in range(0, len(wanted), SACCT_JOBS):
        some = ",".join(wanted[start : start + SACCT_JOBS])
        command = [
            "sacct",
            "--noheader",
            "--allocations",
            "--parsable2",
            "--format=JobID,State",
            "--jobs",
            some,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:  # its server hangs
            return {}
        if done.returncode:  # accounting is off, or its server is away
            return {}
        for line in done.stdout.splitlines():
            job, _, state = line.partition("|")
            found[job] = state.split()[0] if state else ""  # "CANCELLED by 1000"
    return found


def cancel(jobs: Sequence[str]) -> None:
    """End jobs, running or waiting. Those that are gone already are no error.

    Raises UserError if the controller does not answer.
    """
    if jobs:
        _ask("scancel", "--quiet", *jobs)


def _parse(line: str) -> QueuedJob:
    job, state, reason, seconds, node, comment = line.split("|", len(_FIELDS) - 1)
    return QueuedJob(job, state, "" if reason == "None" else reason, _seconds(seconds), node, comment)


def _seconds(text: str) -> int:
    """Slurm's [days-][[hours:]minutes:]seconds; 0 where it says something else (INVALID)."""
    days, _, rest = text.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        total = int(days or 0) * 86_400
    except ValueError:
        return 0
    for part, unit in zip(reversed(parts), (1, 60, 3600), strict=False):
        total += part * unit
    return total


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    except FileNotFoundError:
        require_slurm()
        raise
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{command[0]}: Slurm's controller did not answer within {PATIENCE_SECONDS:.0f} s: try again later"
        ) from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[
            0
        ]
        raise UserError(f"{command[0]}: {said}: see that Slurm's controller is up (`scontrol ping`)")
    return done.stdout
