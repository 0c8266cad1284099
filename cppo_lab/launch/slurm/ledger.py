"""The launcher's own record of what it has submitted: `slurm.db` beside the runs.

A run is claimed before its job is submitted, and the job id is recorded afterwards. Every submission has a token, which
is also the comment of its job: if a launcher dies between the two, its job can be found in Slurm's queue by the token.
Only launchers write here, one at a time; jobs never do.
"""

import contextlib
import fcntl
import os
import pwd
import re
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cppo_lab.errors import UserError
from cppo_lab.files import open_append, open_lock

NAME = "slurm.db"
LOCK = "slurm.lock"
FOLDER = "slurm"  # of all submissions
BUSY_SECONDS = 30.0  # how long to wait for another launcher's transaction

_TOKEN = re.compile(r"[0-9a-f]{16}")
_PART = re.compile(r"[^/\x00]{1,255}")

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
# Columns that databases of older versions lack.
_ADDED = {"owner": "INTEGER", "cluster": "TEXT"}


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

    Raises UserError if the file is not a database or cannot be written.
    """

    def __init__(self, runs: Path) -> None:
        runs.mkdir(parents=True, exist_ok=True)
        self.path = runs / NAME
        if not self.path.exists():  # SQLite ignores the umask and gives the group no write permission
            open_append(self.path).close()
        with self._naming_faults():
            self._database = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            self._database.executescript(_TABLES)
            columns = [row[1] for row in self._database.execute("PRAGMA table_info(submission)")]
        self._lacking = {name: kind for name, kind in _ADDED.items() if name not in columns}

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
        """Record that one array is about to be submitted for these jobs; returns its token.

        `positions`: the place of each in the array, for jobs of several runs; None: one after the other. `cluster`: the
        name of the cluster, if known.

        Raises ValueError if one of them is in the queue already: the caller reconciles first, holding the lock.
        """
        token = secrets.token_hex(8)
        with self._transaction():
            for name, kind in self._lacking.items():
                self._database.execute(f"ALTER TABLE submission ADD COLUMN {name} {kind}")
            self._lacking = {}
            taken = [name for name in names if self._open(name)]
            if taken:
                raise ValueError(f"{', '.join(taken)} are in the queue already")
            self._database.execute(
                "INSERT INTO submission (token, created, owner, cluster) VALUES (?, ?, ?, ?)",
                (token, time.time(), os.getuid(), cluster),
            )
            self._database.executemany(
                "INSERT INTO task (name, token, position) VALUES (?, ?, ?)",
                [
                    (name, token, place)
                    for name, place in zip(names, positions or range(len(names)), strict=True)
                ],
            )
        return token

    def submitted(self, token: str, job_id: int) -> None:
        """Record the job id of an array that Slurm has accepted."""
        with self._transaction():
            self._database.execute("UPDATE submission SET job_id = ? WHERE token = ?", (job_id, token))

    def end(self, tasks: Iterable[LedgerTask], reason: str) -> None:
        """Record that these tasks are no longer in Slurm's queue."""
        with self._transaction():
            self._database.executemany(
                "UPDATE task SET ended = ? WHERE name = ? AND token = ? AND ended IS NULL",
                [(reason, task.name, task.token) for task in tasks],
            )

    def open_tasks(self) -> list[LedgerTask]:
        """The tasks that may still be in Slurm's queue."""
        return self._tasks("WHERE task.ended IS NULL")

    def open_tasks_of(self, token: str) -> list[LedgerTask]:
        """Those of one submission."""
        return self._tasks("WHERE task.ended IS NULL AND task.token = ?", token)

    def unanswered(self) -> list[str]:
        """Tokens of submissions without a recorded response of sbatch, even if their tasks have ended."""
        with self._naming_faults():
            found = self._database.execute("SELECT token FROM submission WHERE job_id IS NULL")
            return [str(token) for (token,) in found]

    def tasks_of(self, name: str) -> list[LedgerTask]:
        """Every place in the queue that a job has had, newest first."""
        return self._tasks("WHERE task.name = ?", name)

    def newest_tasks(self) -> dict[str, LedgerTask]:
        """The last place in the queue of every job that ever had one, by name."""
        found: dict[str, LedgerTask] = {}
        for task in self._tasks(""):
            found.setdefault(task.name, task)
        return found

    def folder_of(self, token: str) -> Path:
        """Where a submission keeps its batch script, functions and output."""
        return self.path.parent / FOLDER / token

    def _tasks(self, where: str, *values: object) -> list[LedgerTask]:
        added = ", ".join("NULL" if name in self._lacking else name for name in _ADDED)
        with self._naming_faults():
            rows = self._database.execute(
                f"SELECT task.name, task.token, job_id, position, size, created, ended, {added} FROM task "  # noqa: S608  `added` and `where` are literals of this class
                "JOIN submission USING (token) "
                "JOIN (SELECT token, COUNT(DISTINCT position) AS size FROM task GROUP BY token) USING (token) "
                f"{where} ORDER BY created DESC, position",
                values,
            ).fetchall()
        tasks = [LedgerTask(*row) for row in rows]
        for task in tasks:
            if not _is_ours(task):
                raise self._fault(f"it has a task {str(vars(task))[:200]!r}, which no launcher has written")
        return tasks

    def _fault(self, what: str) -> UserError:
        return UserError(
            f"{self.path}: {what}: the record of submitted jobs cannot be used; move it away if it is damaged "
            "(jobs in Slurm's queue are then found by their runs' locks alone)"
        )

    @contextlib.contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if self.path.exists() and not os.access(self.path, os.W_OK):
                raise _not_ours(self.path) from None
            raise self._fault(str(error)) from None

    def _open(self, name: str) -> bool:
        found = self._database.execute("SELECT 1 FROM task WHERE name = ? AND ended IS NULL", (name,))
        return found.fetchone() is not None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._naming_faults():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._database.in_transaction:  # on disk errors SQLite may have rolled it back
                    self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")


def _is_ours(task: LedgerTask) -> bool:
    """Whether its values are valid, since names and tokens become parts of paths."""
    return (
        isinstance(task.name, str)
        and _PART.fullmatch(task.name) is not None
        and isinstance(task.token, str)
        and _TOKEN.fullmatch(task.token) is not None
        and (task.job_id is None or (isinstance(task.job_id, int) and task.job_id > 0))
        and isinstance(task.position, int)
        and task.position >= 0
        and isinstance(task.created, int | float)
        and isinstance(task.ended, str | None)
        and isinstance(task.owner, int | None)
        and isinstance(task.cluster, str | None)
    )


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
    owner = name_of(path.stat().st_uid)
    return UserError(
        f"{path} is writable only for {owner}: ask them to share the folder of runs with your group "
        f"(chmod -R g+w {path.parent}; docs/slurm.md, Two people on one folder)"
    )


def name_of(account: int) -> str:
    """The login name of a uid, or the uid if it has none."""
    try:
        return pwd.getpwuid(account).pw_name
    except KeyError:
        return str(account)
