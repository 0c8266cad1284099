"""What the launcher has submitted (the ledger, `slurm.db` beside the runs), and our jobs in Slurm's queue.

A run is claimed before its job is submitted, and the job id is recorded afterwards. Every submission has a token, which
is also the comment of its job: if a launcher dies between the two, its job can be found in Slurm's queue by the token.
Only launchers write to the ledger, one at a time; jobs never do.

One `squeue` for all of them, and `sacct` for jobs that it has forgotten, some minutes after their end. Nothing depends
on accounting alone, since many clusters have none.
"""

import contextlib
import fcntl
import os
import pwd
import re
import secrets
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cppo_lab.errors import UserError, say
from cppo_lab.files import has_database, open_append, open_lock
from cppo_lab.launch.base import slurm_environment
from cppo_lab.launch.slurm import LEDGER
from cppo_lab.runs.machine import user_name
from cppo_lab.runs.state import QueueEntry

LOCK = "slurm.lock"
SUBMISSIONS = "slurm"  # of all submissions
BUSY_SECONDS = 30.0  # how long to wait for another launcher's transaction

_TABLES = """
CREATE TABLE IF NOT EXISTS submission (
    token TEXT PRIMARY KEY,
    created REAL NOT NULL,
    job_id INTEGER,           -- of the array; NULL between the claim and the answer of sbatch
    owner INTEGER,            -- the user's number who submitted it; NULL in records of older versions: whoever looks
    cluster TEXT              -- Slurm's name of the cluster; NULL in records of older versions: whichever is asked
) STRICT;
CREATE TABLE IF NOT EXISTS task (
    name TEXT NOT NULL,        -- of the launcher's job: the id of a run, mostly
    token TEXT NOT NULL REFERENCES submission (token),
    position INTEGER NOT NULL,  -- its index in the array; runs of one job share it
    ended TEXT,                 -- why the job is no longer in the queue; NULL while it is
    PRIMARY KEY (name, token)
) STRICT;
CREATE INDEX IF NOT EXISTS open_task ON task (name) WHERE ended IS NULL;
"""
_ADDED = {"owner": "INTEGER", "cluster": "TEXT"}  # columns that databases of older versions lack
_ALL_TASKS = """
SELECT * FROM task JOIN submission USING (token)
JOIN (SELECT token, COUNT(DISTINCT position) AS size FROM task GROUP BY token) USING (token)
"""


@dataclass(frozen=True)
class LedgerTask:
    """A job's task of an array; its `name` is usually the id of a run.

    `job_id` is None if the response of sbatch was never recorded.
    """

    name: str
    token: str
    job_id: int | None
    position: int
    size: int  # tasks of the submission
    created: float  # seconds since the epoch
    ended: str | None = None
    owner: int | None = None  # the uid of the user who submitted it, if known
    cluster: str | None = None  # which Slurm has the job, if known

    @property
    def is_mine(self) -> bool:
        """Whether this account submitted it."""
        return self.owner in (None, os.getuid())

    @property
    def job(self) -> str:
        """Slurm's name of the job, as `squeue`, `scancel` and submitit write it."""
        if self.job_id is None:
            return ""
        return str(self.job_id) if self.size == 1 else f"{self.job_id}_{self.position}"


class Ledger:
    """The ledger of the runs in folder `runs`, created if it does not exist.

    Every call raises UserError if the file is not a database or cannot be written.
    """

    def __init__(self, runs: Path) -> None:
        runs.mkdir(parents=True, exist_ok=True)
        self.path = runs / LEDGER
        if not self.path.exists():  # SQLite ignores the umask and gives the group no write permission
            open_append(self.path).close()
        with self._naming_faults():
            self._database = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            self._database.row_factory = sqlite3.Row
            self._database.executescript(_TABLES)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def claim(
        self, names: Sequence[str], positions: Sequence[int] | None = None, cluster: str | None = None
    ) -> str:
        """Record that an array is about to be submitted for these jobs; returns its token.

        `positions`: the place of each in the array, for jobs of several runs; None: in order. `cluster`: the name of
        the cluster, if known.

        Raises ValueError if a job is in the queue already: the caller reconciles first, holding the lock.
        """
        token = secrets.token_hex(8)
        with self._transaction() as database:
            columns = {row[1] for row in database.execute("PRAGMA table_info(submission)")}
            for column in _ADDED.keys() - columns:
                database.execute(f"ALTER TABLE submission ADD COLUMN {column} {_ADDED[column]}")
            queued = {name for (name,) in database.execute("SELECT name FROM task WHERE ended IS NULL")}
            if taken := [name for name in names if name in queued]:
                raise ValueError(f"{', '.join(taken)} are in the queue already")
            database.execute(
                "INSERT INTO submission (token, created, owner, cluster) VALUES (?, ?, ?, ?)",
                (token, time.time(), os.getuid(), cluster),
            )
            rows = zip(names, positions or range(len(names)), strict=True)
            database.executemany(
                "INSERT INTO task (name, token, position) VALUES (?, ?, ?)",
                [(name, token, position) for name, position in rows],
            )
        return token

    def submitted(self, token: str, job_id: int) -> None:
        """Record the job id of an array that Slurm has accepted."""
        with self._transaction() as database:
            database.execute("UPDATE submission SET job_id = ? WHERE token = ?", (job_id, token))

    def end(self, tasks: Iterable[LedgerTask], reason: str) -> None:
        """Record that these tasks are no longer in Slurm's queue."""
        with self._transaction() as database:
            database.executemany(
                "UPDATE task SET ended = ? WHERE name = ? AND token = ? AND ended IS NULL",
                [(reason, task.name, task.token) for task in tasks],
            )

    def open_tasks(self, token: str | None = None) -> list[LedgerTask]:
        """The tasks that may still be in Slurm's queue, of a submission or of all."""
        return self._tasks("ended IS NULL AND token = IFNULL(?, token)", token)

    def unanswered(self) -> list[str]:
        """Tokens of submissions without a recorded response of sbatch, even if their tasks have ended."""
        with self._naming_faults():
            rows = self._database.execute("SELECT token FROM submission WHERE job_id IS NULL").fetchall()
        return [token for (token,) in rows]

    def tasks_of(self, name: str) -> list[LedgerTask]:
        """Every place in the queue that a job has had, newest first."""
        return self._tasks("name = ?", name)

    def newest_tasks(self) -> dict[str, LedgerTask]:
        """The last place in the queue of every job that was ever queued, by name."""
        return {task.name: task for task in reversed(self._tasks("TRUE"))}

    def folder_of(self, token: str) -> Path:
        """Where a submission keeps its batch script, functions and output."""
        return self.path.parent / SUBMISSIONS / token

    def _tasks(self, condition: str, *values: object) -> list[LedgerTask]:
        with self._naming_faults():
            order = "ORDER BY created DESC, position"
            rows = self._database.execute(f"{_ALL_TASKS} WHERE {condition} {order}", values)
            return [LedgerTask(**dict(row)) for row in rows]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._naming_faults(), self._database:  # which commits, or takes everything back
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database

    @contextlib.contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if self.path.exists() and not os.access(self.path, os.W_OK):
                raise _not_ours(self.path) from None
            raise UserError(
                f"{self.path}: {error}: the record of submitted jobs cannot be used; move it away if it is damaged "
                "(jobs in Slurm's queue are then found by their runs' locks alone)"
            ) from None


@contextlib.contextmanager
def submitting(runs: Path) -> Iterator[None]:
    """Let one launcher at a time check the queue and submit. The kernel releases the lock however the launcher ends.

    Raises UserError if this account may not write to the lock file, or it is a link.
    """
    runs.mkdir(parents=True, exist_ok=True)
    try:
        file = open_lock(runs / LOCK)
    except PermissionError:
        raise _not_ours(runs / LOCK) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _not_ours(path: Path) -> UserError:
    """The error for a file in a shared folder that another account made and others cannot write."""
    return UserError(
        f"{path} is writable only for {user_name(path.stat().st_uid)}: ask them to share the folder of runs with your "
        f"group (chmod -R g+w {path.parent}; docs/slurm.md, Two people on one folder)"
    )


PATIENCE_SECONDS = 60.0
PING_SECONDS = 10.0
SETTLING_SECONDS = 10.0  # an sbatch of a killed launcher may still be in progress
SACCT_JOBS = 500  # per request
SACCT_SECONDS = 30.0  # accounting is slow at large sites, and only says why a job ended
_CACHED_SECONDS = 120.0  # how old the answers of some sites' squeue may be
_ANSWER_SECONDS = 60.0  # after this time, sbatch has returned or its launcher is dead

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"})
ACTIVE = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})
LEFT = "left Slurm's queue"
_KIND = "Slurm job"
# Where the user sets the comment, the token ends the name of the job; older versions called that cppo-TOKEN.
_TOKEN_IN_NAME = re.compile(r"(?:^cppo-|@)([0-9a-f]{16})$")
# Of a job for squeue. Comment and name come last, since they may hold any character, even line breaks.
_FIELDS = "%i|%U|%T|%r|%k|%j"
_JOB = re.compile(r"[0-9]{1,18}(_.*)?")  # its number, and the task of an array
# Slurm's states and reasons of jobs that a user, an administrator or a failed node holds: it does not start them.
_HELD = re.compile(r"held|JobHold|REQUEUE_HOLD|SPECIAL_EXIT", re.I)


@dataclass(frozen=True)
class QueuedJob:
    """A job, or a task of an array, as the queue shows it; `state` and `reason` are Slurm's.

    `owner` is the uid of its user, `comment` its token if it is ours.
    """

    job: str
    owner: int
    state: str
    reason: str
    comment: str

    @property
    def active(self) -> bool:
        """Whether it has begun, and has not left its machine."""
        return self.state in ACTIVE


def missing_commands() -> list[str]:
    """The commands of Slurm that are not installed, of those that every launch needs."""
    return [name for name in ("sbatch", "squeue", "scancel", "srun") if shutil.which(name) is None]


def require_slurm() -> None:
    """Raises UserError where Slurm's commands are not installed."""
    if missing := missing_commands():
        raise UserError(
            f"launcher=slurm: {', '.join(missing)} not found on this machine: go to a login node of the cluster, or "
            "choose launcher=local (`make slurm-dev` starts a Slurm to try things out)"
        )


def require_controller() -> None:
    """Raises UserError if Slurm's controller does not answer: squeue takes ten seconds to notice it, sbatch minutes."""
    if not os.access(path := os.environ.get("SLURM_CONF", "/"), os.R_OK):  # Slurm's commands wait for it
        raise UserError(f"SLURM_CONF={path} cannot be read: name Slurm's configuration, or unset it")
    if shutil.which("scontrol") is not None:
        done = ask("scontrol", "ping", seconds=PING_SECONDS)
        if done.returncode and " is UP" not in done.stdout:  # a backup controller may answer
            raise UserError(
                f"Slurm's controller does not answer ({complaint(done)}): check that it is up, and SLURM_CONF"
            )


def command_output(*command: str, seconds: float | None = None) -> "subprocess.CompletedProcess[str]":
    """The output of a command of Slurm, on which no variable of the shell has an effect; undecodable bytes are
    replaced.

    Raises FileNotFoundError and subprocess.TimeoutExpired.
    """
    return subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=PATIENCE_SECONDS if seconds is None else seconds,
        env=slurm_environment(),
    )


def ask(*command: str, seconds: float | None = None) -> "subprocess.CompletedProcess[str]":
    """The same, also if it fails. Raises UserError if it cannot be started or does not answer."""
    seconds = PATIENCE_SECONDS if seconds is None else seconds
    try:
        return command_output(*command, seconds=seconds)
    except OSError as error:
        require_slurm()
        raise UserError(
            f"{command[0]} cannot be started ({error.strerror}): check Slurm's installation"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{command[0]}: Slurm's controller did not answer within {seconds:.0f} s: try again later"
        ) from None


def _answer(*command: str) -> str:
    """The output of a command. Raises UserError if it fails as well."""
    done = ask(*command)
    if done.returncode:
        raise UserError(
            f"{command[0]}: {complaint(done)}: check that Slurm's controller is up (`scontrol ping`)"
        )
    return done.stdout


def complaint(done: "subprocess.CompletedProcess[str]") -> str:
    """The first line of what a command that failed has printed."""
    return (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[0]


def configured(name: str) -> str | None:
    """A setting of the cluster; None if it does not say."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        setting = re.search(rf"^{name}\s*=(.*)$", command_output("scontrol", "show", "config").stdout, re.M)
        return setting[1].strip() if setting else None
    return None


def cancel(jobs: Sequence[str]) -> None:
    """Cancel jobs, running or pending. Jobs that are already gone are not an error.

    Raises UserError if the controller does not answer.
    """
    if jobs:
        _answer("scancel", "--quiet", *jobs)


def jobs_of(owners: Iterable[int]) -> list[QueuedJob]:
    """The jobs of this account and of `owners`, each array task separately, including those that ended recently.

    They are queried by owner, not by id, so that a job whose launcher died before it recorded the id is found too.
    Accounts that the machine no longer knows are skipped, since squeue would refuse the whole request.
    Raises UserError if the controller does not answer.
    """
    users = ",".join(str(owner) for owner in sorted({os.getuid(), *filter(_is_account, owners)}))
    mark = secrets.token_hex(16)  # starts a record; random, so that no comment can contain it
    # --all: otherwise squeue omits jobs in hidden partitions, even those of the user.
    options = ("--all", "--noheader", "--array", "--states=all", f"--format={mark}{_FIELDS}")
    records = _answer("squeue", f"--user={users}", *options).split(mark)[1:]
    return [job for record in records if (job := _parse(record)) is not None]


def _is_account(uid: int) -> bool:
    with contextlib.suppress(KeyError, OverflowError):
        return bool(pwd.getpwuid(uid))
    return False


def _parse(record: str) -> QueuedJob | None:
    """A job from its record; None for a record with other fields than were asked for."""
    fields = record.removesuffix("\n").split("|", _FIELDS.count("|") - 1)
    if len(fields) < _FIELDS.count("|") or not (_JOB.fullmatch(fields[0]) and fields[1].isdecimal()):
        return None
    job, owner, state, reason, words = fields
    comment, _, name = words.rpartition("|")
    if token := _TOKEN_IN_NAME.search(name):
        comment = token[1]
    return QueuedJob(job, int(owner), state, "" if reason == "None" else reason, comment)


def shows_others() -> bool:
    """Whether the cluster shows the jobs of other users to this user (PrivateData); False if it does not say."""
    private = configured("PrivateData")
    return os.getuid() == 0 or (private is not None and not {"jobs", "all"} & set(private.lower().split(",")))


def ended_as(jobs: Sequence[str]) -> dict[str, str]:
    """Slurm's final state of jobs, by job; empty if the cluster has no accounting, or its server does not answer."""
    ended: dict[str, str] = {}
    for start in range(0, len(jobs), SACCT_JOBS):
        ids = ",".join(jobs[start : start + SACCT_JOBS])
        options = ("--noheader", "--allocations", "--parsable2", "--format=JobID,State", "--jobs", ids)
        try:
            done = command_output("sacct", *options, seconds=SACCT_SECONDS)
        except OSError:
            return {}
        except subprocess.TimeoutExpired:
            say(f"cppo: how Slurm jobs ended is not known: sacct did not answer within {SACCT_SECONDS:.0f} s")
            return {}
        if done.returncode:
            return {}
        for line in done.stdout.splitlines():
            job, _, state = line.partition("|")
            ended[job] = state.partition(" ")[0]  # "CANCELLED by 1000"
    return ended


def _final_states(tasks: Iterable[LedgerTask], remembered: Mapping[str, str]) -> dict[str, str]:
    """Slurm's final states of jobs that have left the queue, by job: those that it remembers, and from accounting."""
    states = {
        **ended_as([task.job for task in tasks if task.job and task.job not in remembered]),
        **remembered,
    }
    # Accounting lags some seconds behind the queue: jobs that it still reports as running have left it.
    return {job: state for job, state in states.items() if state not in WAITING | ACTIVE}


def _query(tasks: Sequence[LedgerTask]) -> list[QueuedJob]:
    """The queue's jobs of the accounts that submitted `tasks`.

    Raises UserError if Slurm's controller does not answer, or if its answer cannot be that of these tasks' queue.
    """
    require_controller()
    clusters = {task.cluster for task in tasks} - {None}
    if clusters and (cluster := configured("ClusterName")) and (others := clusters - {cluster}):
        raise UserError(
            f"jobs of these runs are on the cluster {', '.join(sorted(map(str, others)))}, and Slurm's commands ask "
            f"{cluster}: set SLURM_CONF (or SLURM_CLUSTERS) as when they were submitted, or work in another folder"
        )
    jobs = jobs_of({task.owner for task in tasks if task.owner is not None})
    seen = {job.job for job in jobs}
    unseen = {
        str(task.job_id) if not jobs else task.job
        for task in tasks
        if task.job not in seen and task.job_id and (not jobs or time.time() - task.created < _CACHED_SECONDS)
    }
    for job_id in sorted(unseen) if shutil.which("scontrol") else ():
        states = re.findall(r"\bJobState=(\w+)", ask("scontrol", "show", "job", job_id).stdout)
        if not (WAITING | ACTIVE).isdisjoint(states):
            raise UserError(
                f"squeue shows {'not all' if jobs else 'none'} of your jobs, and `scontrol show job {job_id}` one: "
                "nothing is known of the queue; try again later, and check which squeue this is (`type squeue`)"
            )
    return jobs


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
            why = f"a job of {user_name(task.owner)}, which Slurm does not show to you"
            here[task.name] = QueuedJob(task.job, task.owner, "PENDING", why, task.token)
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
    jobs = _query(tasks)
    _adopt(ledger, jobs)
    tasks = ledger.open_tasks()
    here = _in_queue(tasks, jobs)
    gone = [task for task in tasks if task.name not in here]
    states = _final_states(gone, {job.job: job.state for job in jobs})
    for task in gone:
        ledger.end([task], states.get(task.job) or LEFT)
    return here


def _adopt(ledger: Ledger, jobs: Sequence[QueuedJob]) -> None:
    """Find the jobs of launchers that died before they recorded the job id, by the token in the comment.

    submitit stores a task's function after sbatch has returned, so tasks without a function could only fail. They are
    cancelled, and their runs can be submitted again. So is a whole array that entered the queue after it had been given
    up. This account cannot cancel those of another account; they fail as soon as they start.
    """
    by_token = {job.comment: job for job in jobs}
    for token in by_token.keys() & set(ledger.unanswered()):
        job_id = by_token[token].job.partition("_")[0]
        if by_token[token].owner == os.getuid():
            from submitit.core.utils import JobPaths  # read-only commands do not need submitit

            folder = ledger.folder_of(token)
            tasks = [replace(task, job_id=int(job_id)) for task in ledger.open_tasks(token)]
            hollow = [task for task in tasks if not JobPaths(folder, task.job).submitted_pickle.exists()]
            cancel([task.job for task in hollow] if tasks else [job_id])
            ledger.end(hollow, "cancelled: its launcher was killed before it was complete")
        # Last: if this launcher is killed before, the next one does all of it.
        ledger.submitted(token, int(job_id))


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

    def places(self) -> dict[str, QueueEntry]:
        """The places of the runs that the ledger has."""
        return {
            run_id: _place(self.here[run_id]) if run_id in self.here else self._unseen(task)
            for run_id, task in self.tasks.items()
        }

    def _unseen(self, task: LedgerTask) -> QueueEntry:
        """The place of a task that is not known to be in the queue."""
        waits = None
        if task.ended is None and task.job_id is None and time.time() - task.created < _ANSWER_SECONDS:
            waits = "is being submitted"
        elif task.ended is None and task.job_id is not None and self.silent:
            waits = f"not known now: {self.silent}"
        return QueueEntry(task.job, _KIND, waits)

    def words(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Slurm's final states of the jobs of runs, where informative: OUT_OF_MEMORY, TIMEOUT, ..."""
        tasks = [self.tasks[run_id] for run_id in run_ids if run_id in self.tasks and run_id not in self.here]
        words = {task.name: task.ended or LEFT for task in tasks}
        if not self.silent:
            unsaid = [task for task in tasks if words[task.name] == LEFT]
            states = _final_states(unsaid, self.ended)
            words |= {task.name: states.get(task.job, LEFT) for task in unsaid}
        return {name: word for name, word in words.items() if word not in ("", "COMPLETED", LEFT)}


def _place(job: QueuedJob) -> QueueEntry:
    """The place of a job in the queue, and why it has not started."""
    if job.active:
        return QueueEntry(job.job, _KIND, active=True, ending=job.state == "COMPLETING")
    why = f", {job.reason}" if job.reason else ""
    if _HELD.search(f"{job.state} {job.reason}"):
        why += f": `scontrol release {job.job}` lets it start"
    return QueueEntry(job.job, _KIND, f"{_KIND} {job.job}: {job.state.lower()}{why}")


def view(runs: Path, warn: bool = False) -> SlurmView:
    """The state of everything that was submitted for the runs in folder `runs`. Writes nothing.

    `warn`: say on standard error if Slurm or the ledger does not answer. Otherwise UserError is raised for a ledger
    that cannot be read.
    """
    if not has_database(runs / LEDGER):
        return SlurmView()
    tasks: dict[str, LedgerTask] = {}
    try:
        with Ledger(runs) as ledger:
            tasks = ledger.newest_tasks()
        unended = [task for task in tasks.values() if task.ended is None]
        jobs = _query(unended) if unended else []
    except UserError as error:
        if warn:
            say(f"cppo: the state of Slurm's queue is unknown: {error}")
        elif not tasks:
            raise
        return SlurmView(tasks, silent=str(error))
    here = _in_queue(unended, jobs)
    live = {job.job for job in here.values()}
    return SlurmView(tasks, here, {job.job: job.state for job in jobs if job.job not in live})


def in_queue(runs: Path) -> Mapping[str, QueuedJob]:
    """The part of the ledger that is in Slurm's queue, by name. Writes nothing.

    Raises UserError if Slurm's controller does not answer.
    """
    seen = view(runs)
    if seen.silent:
        raise UserError(seen.silent)
    return seen.here
