"""The state of our jobs in Slurm: one `squeue` for all of them, and `sacct` if the cluster has accounting.

Nothing depends on accounting alone, since many clusters have none. `squeue` forgets a job some minutes after its end.
"""

import contextlib
import os
import pwd
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cppo_lab.errors import UserError

PATIENCE_SECONDS = 60.0
PING_SECONDS = 10.0
SACCT_JOBS = 500  # per request
_FIELDS = (
    "%i",
    "%U",
    "%T",
    "%M",
    "%N",
    "%r",
    "%k",
)  # the comment comes last, since it may hold any character, even line breaks
# Environment variables that add the user's options to commands whose output is parsed here. `SBATCH_*` stays, since it
# is how the user wants jobs submitted.
_CHANGES_ANSWERS = re.compile(r"(SQUEUE|SCANCEL|SACCT|SINFO)_|SLURM_TIME_FORMAT\Z|SLURM_BITSTR_LEN\Z")

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"})
ACTIVE = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})


@dataclass(frozen=True)
class QueuedJob:
    """A job, or one task of an array, as the queue shows it. `state` is Slurm's, `seconds` its run time so far.

    `owner` is the uid of its user.
    """

    job: str
    owner: int
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


def jobs_of(owners: Iterable[int]) -> list[QueuedJob]:
    """The jobs of this account and of `owners`, each array task separately, including those that ended recently.

    They are queried by owner, not by id, so that a job whose launcher died before it recorded the id is found too.
    Accounts that the machine no longer knows are skipped.
    Raises UserError if the controller does not answer.
    """
    users = ",".join(str(owner) for owner in sorted({os.getuid(), *filter(_is_account, owners)}))
    _require_answer()
    mark = secrets.token_hex(16)  # starts a record; random, so that no comment can contain it
    fields = "|".join(_FIELDS)
    # --all: otherwise squeue omits jobs in hidden partitions, even the user's own.
    options = ("--all", "--noheader", "--array", "--states=all")
    text = _ask("squeue", f"--user={users}", *options, f"--format={mark}{fields}")
    return [job for record in text.split(mark)[1:] if (job := _parse(record)) is not None]


def shows_others() -> bool:
    """Whether the cluster shows the jobs of other users to this one (PrivateData); False if it does not say."""
    if os.getuid() == 0:
        return True
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = re.search(
            r"^PrivateData\s*=\s*(.*)$", command_output("scontrol", "show", "config").stdout, re.M
        )
        return said is not None and not {"jobs", "all"} & set(said[1].strip().lower().split(","))
    return False


def _is_account(number: int) -> bool:
    try:
        pwd.getpwuid(number)
    except (KeyError, OverflowError):
        return False
    return True


def _require_answer() -> None:
    """Raises UserError at once if the controller is down, which `squeue` takes some ten seconds to notice."""
    if shutil.which("scontrol") is None:
        return
    try:
        done = command_output("scontrol", "ping", seconds=PING_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(f"scontrol ping: no answer within {PING_SECONDS:.0f} s") from None
    if done.returncode and " is UP" not in done.stdout:  # a backup controller may answer
        said = (done.stdout.strip() or done.stderr.strip() or f"exit status {done.returncode}").splitlines()
        raise UserError(f"Slurm's controller does not answer ({said[0]})")


def ended_as(jobs: Iterable[str]) -> dict[str, str]:
    """Slurm's final state of jobs, by job; empty if the cluster has no accounting."""
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
            done = command_output(*command)
        except subprocess.TimeoutExpired:  # its server hangs
            return {}
        if done.returncode:  # accounting is off, or its server does not answer
            return {}
        for line in done.stdout.splitlines():
            job, _, state = line.partition("|")
            found[job] = state.split()[0] if state else ""  # "CANCELLED by 1000"
    return found


def cancel(jobs: Sequence[str]) -> None:
    """Cancel jobs, running or pending. Jobs that are already gone are not an error.

    Raises UserError if the controller does not answer.
    """
    if jobs:
        _ask("scancel", "--quiet", *jobs)


def command_output(*command: str, seconds: float | None = None) -> "subprocess.CompletedProcess[str]":
    """The output of one of Slurm's commands, without the user's environment options; undecodable bytes are replaced.

    Raises FileNotFoundError and subprocess.TimeoutExpired.
    """
    plain = {name: value for name, value in os.environ.items() if not _CHANGES_ANSWERS.match(name)}
    return subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=PATIENCE_SECONDS if seconds is None else seconds,
        env=plain,
    )


def _parse(record: str) -> QueuedJob | None:
    """A job from its record; None for one with other fields than were asked for."""
    fields = record.removesuffix("\n").split("|", len(_FIELDS) - 1)
    if len(fields) < len(_FIELDS):
        return None
    job, owner, state, seconds, node, reason, comment = fields
    if not (owner.isascii() and owner.isdecimal()):
        return None
    return QueuedJob(
        job, int(owner), state, "" if reason == "None" else reason, _seconds(seconds), node, comment
    )


def _seconds(text: str) -> int:
    """Slurm's [days-][[hours:]minutes:]seconds; 0 for anything else (INVALID)."""
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
        done = command_output(*command)
    except OSError as error:
        require_slurm()
        raise UserError(
            f"{command[0]} cannot be started ({error.strerror}): check Slurm's installation"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{command[0]}: Slurm's controller did not answer within {PATIENCE_SECONDS:.0f} s: try again later"
        ) from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[
            0
        ]
        raise UserError(f"{command[0]}: {said}: check that Slurm's controller is up (`scontrol ping`)")
    return done.stdout
