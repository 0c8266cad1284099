"""Our jobs in Slurm's queue, and what that says of the runs in the ledger.

One `squeue` for all of them, and `sacct` for jobs that it has forgotten, some minutes after their end. Nothing depends
on accounting alone, since many clusters have none.
"""

import contextlib
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cppo_lab.errors import UserError
from cppo_lab.launch.slurm.ledger import NAME, Ledger, LedgerTask, name_of

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
    "%k|%j",
)  # comment and name come last, since they may hold any character, even line breaks
# Variables of the user's shell, or of a job that this process runs in, that would change what Slurm's commands answer
# or what a job is. Not those that say which cluster, and who asks. `SBATCH_*`: `submit.py`.
_FOREIGN = re.compile(
    r"(?!SLURM_(CONF|CONF_SERVER|CLUSTERS|JWT)\Z)"
    r"(SQUEUE|SCANCEL|SACCT|SINFO|SCONTROL|SRUN|SUBMITIT|SLURMD?)_"
)

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"})
ACTIVE = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})

NAME_OF_JOBS = "cppo"  # and, of jobs whose comment is the user's, a dash and the token
SETTLING_SECONDS = 10.0  # an sbatch of a killed launcher may still be in progress
LEFT = "left Slurm's queue"
_ANSWER_SECONDS = 60.0  # after this time, sbatch has returned or its launcher is dead
# Slurm's states and reasons of jobs that a user, an administrator or a failed node holds: it does not start them.
_HELD = re.compile(r"held|JobHold|REQUEUE_HOLD|SPECIAL_EXIT", re.I)
_UNEVENTFUL = frozenset({"", "COMPLETED", LEFT})


@dataclass(frozen=True)
class QueuedJob:
    """A job, or one task of an array, as the queue shows it. `state` is Slurm's, `seconds` its run time so far.

    `owner` is the uid of its user, `comment` its token if it is ours.
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
    text = _answer("squeue", f"--user={users}", *options, f"--format={mark}{fields}")
    return [job for record in text.split(mark)[1:] if (job := _parse(record)) is not None]


def shows_others() -> bool:
    """Whether the cluster shows the jobs of other users to this one (PrivateData); False if it does not say."""
    if os.getuid() == 0:
        return True
    said = configured("PrivateData")
    return said is not None and not {"jobs", "all"} & set(said.lower().split(","))


def configured(name: str) -> str | None:
    """A setting of the cluster; None if it does not say."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = re.search(rf"^{name}\s*=(.*)$", command_output("scontrol", "show", "config").stdout, re.M)
        return said[1].strip() if said else None
    return None


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
        options = ("--noheader", "--allocations", "--parsable2", "--format=JobID,State")
        try:
            done = command_output("sacct", *options, "--jobs", some)
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
        _answer("scancel", "--quiet", *jobs)


def command_output(*command: str, seconds: float | None = None) -> "subprocess.CompletedProcess[str]":
    """The output of one of Slurm's commands in `environment()`; undecodable bytes are replaced.

    Raises FileNotFoundError and subprocess.TimeoutExpired.
    """
    return subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=PATIENCE_SECONDS if seconds is None else seconds,
        env=environment(),
    )


def environment() -> dict[str, str]:
    """The variables of this process without options of Slurm's commands and of a job that it may run in."""
    return {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}


def _parse(record: str) -> QueuedJob | None:
    """A job from its record; None for one with other fields than were asked for."""
    fields = record.removesuffix("\n").split("|", len(_FIELDS) - 1)
    if len(fields) < len(_FIELDS):
        return None
    job, owner, state, seconds, node, reason, comment = fields
    if not (owner.isascii() and owner.isdecimal()):
        return None
    before, _, name = comment.rpartition("|")
    if name == NAME_OF_JOBS:
        comment = before
    elif name.startswith(f"{NAME_OF_JOBS}-"):
        comment = name.removeprefix(f"{NAME_OF_JOBS}-")
    reason = "" if reason == "None" else reason
    return QueuedJob(job, int(owner), state, reason, _seconds(seconds), node, comment)


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


def ask(*command: str) -> "subprocess.CompletedProcess[str]":
    """The same, also if it fails. Raises UserError if it cannot be started or does not answer."""
    try:
        return command_output(*command)
    except OSError as error:
        require_slurm()
        raise UserError(
            f"{command[0]} cannot be started ({error.strerror}): check Slurm's installation"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{command[0]}: Slurm's controller did not answer within {PATIENCE_SECONDS:.0f} s: try again later"
        ) from None


def _answer(*command: str) -> str:
    """The output of a command. Raises UserError if it fails as well."""
    done = ask(*command)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
        raise UserError(f"{command[0]}: {said[0]}: check that Slurm's controller is up (`scontrol ping`)")
    return done.stdout


def _query(tasks: Sequence[LedgerTask]) -> tuple[list[QueuedJob], dict[str, QueuedJob]]:
    """The queue's jobs of the accounts that submitted `tasks`, and the tasks that are in it, by name.

    Raises UserError if Slurm's controller does not answer, or if its answer cannot be that of these tasks' queue.
    """
    clusters = {task.cluster for task in tasks} - {None}
    if clusters and (cluster := configured("ClusterName")) and (others := clusters - {cluster}):
        raise UserError(
            f"jobs of these runs are on the cluster {', '.join(sorted(map(str, others)))}, and Slurm's commands ask "
            f"{cluster}: set SLURM_CONF (or SLURM_CLUSTERS) as when they were submitted, or work in another folder"
        )
    jobs = jobs_of({task.owner for task in tasks if task.owner is not None})
    if not jobs:
        _require_none({task.job_id for task in tasks if task.job_id is not None})
    return jobs, _in_queue(tasks, jobs)


def _require_none(job_ids: Iterable[int]) -> None:
    """Raises UserError if one of these jobs is in the queue, although `squeue` has shown no job at all."""
    if shutil.which("scontrol") is None:
        return
    for job_id in sorted(job_ids):
        states = set(re.findall(r"\bJobState=(\w+)", ask("scontrol", "show", "job", str(job_id)).stdout))
        if states & (WAITING | ACTIVE):
            raise UserError(
                f"squeue shows none of your jobs, and `scontrol show job {job_id}` one: nothing is known of the queue; "
                "try again later, and check which squeue this is (`type squeue`)"
            )


def _in_queue(tasks: Sequence[LedgerTask], jobs: Sequence[QueuedJob]) -> dict[str, QueuedJob]:
    """Which of the tasks are in the queue, by name.

    If the cluster hides the jobs of other users, those count as pending: only their owner can see that they have ended.
    """
    live = {job.job: job for job in jobs if job.state in WAITING | ACTIVE}
    here = {task.name: live[task.job] for task in tasks if task.job in live}
    unseen = [task for task in tasks if task.name not in here and not task.is_mine]
    if unseen and not shows_others():
        for task in unseen:
            assert task.owner is not None
            why = f"a job of {name_of(task.owner)}, which Slurm does not show to you"
            here[task.name] = QueuedJob(task.job, task.owner, "PENDING", why, 0, "", task.token)
    return here


def refresh(ledger: Ledger) -> dict[str, QueuedJob]:
    """Update the ledger; returns the queue's view of the runs that are in it, by name.

    The caller holds the ledger's lock. Raises UserError if Slurm's controller does not answer.
    """
    tasks = ledger.open_tasks()
    if not tasks:
        return {}
    lost = [task.created for task in tasks if task.job_id is None]
    if lost and (wait := max(lost) + SETTLING_SECONDS - time.time()) > 0:
        time.sleep(min(wait, SETTLING_SECONDS))
    jobs, _ = _query(tasks)
    _adopt(ledger, jobs)
    tasks = ledger.open_tasks()
    here = _in_queue(tasks, jobs)
    _end(ledger, [task for task in tasks if task.name not in here], jobs)
    return here


def in_queue(runs: Path) -> Mapping[str, QueuedJob]:
    """The part of the ledger that is in Slurm's queue, by name. Writes nothing.

    Raises UserError if Slurm's controller does not answer.
    """
    seen = view(runs)
    if seen.silent:
        raise UserError(seen.silent)
    return seen.here


def _adopt(ledger: Ledger, jobs: Sequence[QueuedJob]) -> None:
    """Find the jobs of launchers that died before they recorded the job id, by the token in the comment.

    submitit stores a task's function after sbatch has returned, so tasks without one could only fail. They are
    cancelled, and their runs can be submitted again. So is a whole array that entered the queue after it had been given
    up. This account cannot cancel those of another account; they fail as soon as they start.
    """
    by_token = {job.comment: job for job in jobs}
    for token in by_token.keys() & set(ledger.unanswered()):
        number = by_token[token].job.partition("_")[0]
        ledger.submitted(token, int(number))
        if by_token[token].owner != os.getuid():
            continue
        tasks = ledger.open_tasks_of(token)
        hollow = [task for task in tasks if not _function(ledger, task).exists()]
        cancel([task.job for task in hollow] if tasks else [number])
        ledger.end(hollow, "cancelled: its launcher was killed before it was complete")


def _function(ledger: Ledger, task: LedgerTask) -> Path:
    """The file from which submitit's job loads its function."""
    from submitit.core.utils import JobPaths  # read-only commands do not need submitit

    return JobPaths(ledger.folder_of(task.token), task.job).submitted_pickle


def _end(ledger: Ledger, gone: Sequence[LedgerTask], jobs: Sequence[QueuedJob]) -> None:
    """Record that tasks have left the queue, and why, if that is known."""
    remembered = {job.job: job.state for job in jobs}
    unknown = [task.job for task in gone if task.job and task.job not in remembered]
    known = remembered | ended_as(unknown)
    for task in gone:
        ended = known.get(task.job, "")
        # Accounting lags some seconds behind the queue: jobs that it still reports as running have left it.
        ledger.end([task], ended if ended and ended not in WAITING | ACTIVE else LEFT)


@dataclass(frozen=True)
class SlurmView:
    """`tasks`: the newest of each run. `here`: those in the queue, by run.

    `ended`: Slurm's final state of jobs that have left it recently, by job. `silent`: why the queue could not be
    queried.
    """

    tasks: Mapping[str, LedgerTask] = field(default_factory=dict)
    here: Mapping[str, QueuedJob] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    silent: str = ""

    def job_of(self, run_id: str) -> str:
        """The newest job of a run, as Slurm's commands write it; empty if it had none."""
        if run_id in self.here:
            return self.here[run_id].job
        return self.tasks[run_id].job if run_id in self.tasks else ""

    def is_active(self, run_id: str) -> bool:
        """Whether its job has nodes."""
        return run_id in self.here and self.here[run_id].state in ACTIVE

    def is_ending(self, run_id: str) -> bool:
        """Whether Slurm is releasing its nodes."""
        return run_id in self.here and self.here[run_id].state == "COMPLETING"

    def waiting(self, run_id: str) -> str | None:
        """Why its job has not started; None if it is not known to be pending."""
        if job := self.here.get(run_id):
            if job.state in ACTIVE:
                return None
            why = f", {job.reason}" if job.reason else ""
            if _HELD.search(f"{job.state} {job.reason}"):
                why += f": `scontrol release {job.job}` lets it start"
            return f"Slurm job {job.job}: {job.state.lower()}{why}"
        task = self.tasks.get(run_id)
        if task is None or task.ended is not None:
            return None
        if task.job_id is None:
            return "is being submitted" if time.time() - task.created < _ANSWER_SECONDS else None
        return f"not known now: {self.silent}" if self.silent else None

    def words(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Slurm's final states of the jobs of runs, where informative: OUT_OF_MEMORY, TIMEOUT, ..."""
        tasks = [self.tasks[run_id] for run_id in run_ids if run_id in self.tasks and run_id not in self.here]
        unknown = [
            task.job
            for task in tasks
            if task.ended in (None, LEFT) and task.job and task.job not in self.ended
        ]
        known = {**(ended_as(unknown) if not self.silent else {}), **self.ended}
        found = {}
        for task in tasks:
            word = task.ended if task.ended not in (None, LEFT) else known.get(task.job, "")
            if word not in _UNEVENTFUL:
                found[task.name] = str(word)
        return found


def view(runs: Path) -> SlurmView:
    """The state of everything that was submitted for the runs in folder `runs`. Writes nothing."""
    if not (runs / NAME).is_file():
        return SlurmView()
    with Ledger(runs) as ledger:
        tasks = ledger.newest_tasks()
    if all(task.ended is not None for task in tasks.values()):
        return SlurmView(tasks)
    try:
        jobs, here = _query([task for task in tasks.values() if task.ended is None])
    except UserError as error:
        return SlurmView(tasks, silent=str(error))
    live = {job.job for job in here.values()}
    return SlurmView(tasks, here, {job.job: job.state for job in jobs if job.job not in live})


def view_or_warn(runs: Path) -> SlurmView:
    """The same. If Slurm or the ledger does not answer, prints a warning and continues without it."""
    try:
        found = view(runs)
    except UserError as error:  # the ledger cannot be read
        found = SlurmView(silent=str(error))
    if found.silent:
        print(f"cppo: the state of Slurm's queue is unknown: {found.silent}", file=sys.stderr)
    return found
