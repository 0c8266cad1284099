"""The launcher's record of what it has submitted: `slurm.db` beside the runs.

A run is claimed before its job is submitted, and the job id is recorded afterwards. Every submission has a token, which
is also the comment of its job: if a launcher dies between the two, its job can be found in Slurm's queue by the token.
Only launchers write here, one at a time; jobs never do.
"""

import contextlib
import fcntl
import os
import pwd
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
        self.path = runs / NAME
        if not self.path.exists():  # SQLite ignores the umask and gives the group no write permission
            open_append(self.path).close()
        with self._naming_faults():
            self._database = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
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

        `positions`: the place of each in the array, for jobs of several runs; None: one after the other. `cluster`: the
        name of the cluster, if known.

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
        """The tasks that may still be in Slurm's queue, of one submission or of all."""
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
        return self.path.parent / FOLDER / token

    def _tasks(self, condition: str, *values: object) -> list[LedgerTask]:
        with self._naming_faults():
            cursor = self._database.execute(
                f"{_ALL_TASKS} WHERE {condition} ORDER BY created DESC, position", values
            )
            columns = [column for column, *_ in cursor.description]
            return [LedgerTask(**dict(zip(columns, row, strict=True))) for row in cursor]

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
        f"{path} is writable only for {name_of(path.stat().st_uid)}: ask them to share the folder of runs with your "
        f"group (chmod -R g+w {path.parent}; docs/slurm.md, Two people on one folder)"
    )


def name_of(account: int) -> str:
    """The login name of a uid, or the uid if it has none."""
    try:
        return pwd.getpwuid(account).pw_name
    except KeyError:
        return str(account)
