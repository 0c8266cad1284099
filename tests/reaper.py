"""Ends what a pytest session has started and left running, however the session ends: in order, by Ctrl-C, by SIGKILL.

The session puts a token of its own into the environment that every process of its tests inherits (`MARK`). This
script, started beside the session, waits until the session's process is gone and kills whoever carries the token,
and the Slurm clusters among them with their jobs. It needs /proc, so it does nothing but on Linux.
"""

import os
import select
import sys
from pathlib import Path

from dev.slurm.daemons import CLUSTER, Process, end, everything, of_cluster

MARK = "CPPO_TEST_SESSION"


def started_by(token: str) -> list[Process]:
    """The running processes of the session with this token, but for this one."""
    found, clusters = [], set()
    for process in everything():
        environment = process.environment()
        if environment.get(MARK) == token and process.pid != os.getpid():
            found.append(process)
            clusters.add(environment.get(CLUSTER, ""))
    # Slurm's step daemons overwrite their environment; the cluster finds them by what they have open.
    of_clusters = [of_cluster(Path(folder)) for folder in clusters if folder]
    steps = [process for daemons in of_clusters for group in daemons.values() for process in group]
    return found + [process for process in steps if process not in found]


def end_all(token: str) -> list[str]:
    """Kills them all at once; the names of their programs, but for multiprocessing's trackers, which end with their
    owner.
    """
    left = [
        process for process in started_by(token) if "multiprocessing.resource_tracker" not in process.words()
    ]
    names = sorted({process.command() for process in left} - {""})
    end(lambda: started_by(token), patience=0)
    return names


def main(token: str) -> None:
    # Ctrl-C is for the session; this process begins its work when that has ended.
    os.setsid()
    parent = os.getppid()
    try:
        session = os.pidfd_open(parent)
    except ProcessLookupError:
        pass  # it has ended before we looked
    else:
        if os.getppid() == parent:
            select.select([session], [], [])
    end_all(token)


if __name__ == "__main__":
    main(sys.argv[1])
