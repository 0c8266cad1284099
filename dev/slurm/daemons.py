"""Starts, finds and ends processes that outlive the command that started them.

No state is kept in files: each daemon has the cluster and its own name in its environment, which /proc shows. So
nothing can become stale when a machine is rebooted, a pid reused or a folder removed.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CLUSTER = "CPPO_SLURM_CLUSTER"  # the state folder
DAEMON = "CPPO_SLURM_DAEMON"  # munged, slurmctld, slurmd-n1, ...
SESSION = "CPPO_TEST_SESSION"  # of the tests that started it, which end what carries it (tests/reaper.py)


@dataclass(frozen=True)
class Process:
    """A process, identified by pid and start time, so that it is not mistaken for a later one with the same pid.

    `started` is its start, in clock ticks since boot; `parent` the pid of its parent when it was found.
    """

    pid: int
    started: int
    parent: int

    def alive(self) -> bool:
        """Whether it still runs. A zombie does not count."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        now = look_up(self.pid)
        return now is not None and now.started == self.started

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _read(self, name: str) -> str:
        """A file of it below /proc; empty if it has ended, or may not be read."""
        try:
            return (PROC / str(self.pid) / name).read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return ""

    def command(self) -> str:
        """The name of its program, at most 15 characters."""
        return self._read("comm").strip()

    def words(self) -> str:
        """Its command line."""
        return self._read("cmdline").replace("\0", " ")

    def environment(self) -> dict[str, str]:
        """The environment it was started with."""
        return dict(line.split("=", 1) for line in self._read("environ").split("\0") if "=" in line)

    def open_files(self) -> list[Path]:
        """The files, sockets and so on that it has open; empty if they may not be seen."""
        found = []
        try:
            for entry in (PROC / str(self.pid) / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    found.append(entry.readlink())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return []
        return found


def look_up(pid: int) -> Process | None:
    """The running process with this pid (proc(5), /proc/pid/stat)."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else Process(pid, started=int(fields[19]), parent=int(fields[1]))


def start(command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    """Starts a daemon in a new session. The command must stay in the foreground; its output goes to `log`."""
    with log.open("ab") as output:
        subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                         start_new_session=True)  # fmt: skip


def end(find: Callable[[], Iterable[Process]], patience: float) -> None:
    """Ends the processes that `find` sees: SIGTERM, and SIGKILL for those that are left after `patience` seconds.

    With a patience of 0 all end at the same time, as in a power cut, so that none can react to the death of another.
    `find` is called repeatedly, since any of them may be starting another one.
    """
    told: list[Process] = []
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if not any(process.alive() for process in told):
            if not (told := [process for process in find() if process.alive()]):
                return
            for process in told:
                process.send(signal.SIGTERM)
        time.sleep(0.05)
    # Stopped processes start no others: when a search finds no new ones, these are all.
    stopped: list[Process] = []
    while new := [one for one in (*told, *find()) if one not in stopped and one.alive()]:
        for process in new:
            process.send(signal.SIGSTOP)
        stopped += new
    for process in stopped:
        process.send(signal.SIGKILL)
    deadline = time.monotonic() + 60  # the kernel may need time: a process may be in a write to a busy disk
    while any(process.alive() for process in stopped) and time.monotonic() < deadline:
        time.sleep(0.05)


def everything() -> list[Process]:
    """All processes of this machine."""
    found = (look_up(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process is not None]


def of_cluster(folder: Path) -> dict[str, list[Process]]:
    """The processes of the cluster in `folder`, by the daemon's name; those of jobs as `jobs-` and the node's name.

    Slurm's step daemons overwrite their environment, but keep the log of their node's slurmd open; until they have
    opened it, they have slurmd's environment. Their children are found by descent or, if they have been reparented,
    by the environment that Slurm set. This process and its ancestors are left out.
    """
    processes = {process.pid: process for process in everything()}
    names = {pid: name for pid, process in processes.items() if (name := _name(process, folder))}
    spared = _line(os.getpid(), processes)
    found: dict[str, list[Process]] = {}
    for pid, process in processes.items():
        known = next((names[ancestor] for ancestor in _line(pid, processes) if ancestor in names), None)
        if known is not None and pid not in spared:
            found.setdefault(known, []).append(process)
    return found


def _line(pid: int, processes: Mapping[int, Process]) -> list[int]:
    """A process and its ancestors, the nearest first."""
    line: list[int] = []
    while pid in processes and pid not in line:
        line.append(pid)
        pid = processes[pid].parent
    return line


def _name(process: Process, folder: Path) -> str | None:
    """The daemon, or the node's job, that a process is, from the process itself."""
    steps = process.command() == "slurmstepd"
    if steps:
        logs = [path for path in process.open_files() if path.parent == folder / "log"]
        if logs:
            return logs[0].name.replace("slurmd-", "jobs-").split(".")[0]
    env = process.environment()
    if env.get(CLUSTER) == str(folder) and DAEMON in env:
        return env[DAEMON].replace("slurmd-", "jobs-") if steps else env[DAEMON]
    if env.get("SLURM_CONF") == str(folder / "slurm.conf") and "SLURMD_NODENAME" in env:
        return f"jobs-{env['SLURMD_NODENAME']}"
    return None
