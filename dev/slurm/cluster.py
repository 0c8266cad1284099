"""A development cluster in its folder: query, disturb and stop it. `starting` starts it."""

import contextlib
import fcntl
import fnmatch
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from dev.ceiling import CEILING_SECONDS
from dev.errors import DevError
from dev.slurm import daemons, network
from dev.slurm.settings import Settings

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
# States of nodes that accept jobs, or are full.
READY = ("idle", "mixed", "allocated")


def default_folder(name: str) -> Path:
    """Where the cluster of this name lives."""
    return Path(f"/tmp/cppo-slurm-{os.getuid()}") / name


class Cluster:
    """The development cluster in one folder. Its state is in that folder and in /proc, so any process can control it.

    All failures raise `DevError`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def conf(self) -> Path:
        """The path of slurm.conf, for SLURM_CONF."""
        return self.folder / "slurm.conf"

    @property
    def log(self) -> Path:
        """The folder of the daemons' logs; kept after a stop until the next start."""
        return self.folder / "log"

    def settings(self) -> Settings:
        """The size and kind with which the cluster was started."""
        try:
            return Settings(**json.loads((self.folder / "settings.json").read_text()))
        except FileNotFoundError:
            raise DevError(f"no cluster in {self.folder}: `python3 -m dev.slurm start` starts one") from None

    def running(self) -> list[str]:
        """The daemons that run, by name: `munged`, `mariadbd`, `slurmdbd`, `slurmctld`, `slurmd-n1`, ..."""
        return sorted(name for name in daemons.of_cluster(self.folder) if not name.startswith("jobs-"))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lets one process at a time start or stop the cluster. The folder must be root's: its daemons run as root."""
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise DevError(f"{self.folder} belongs to somebody else: name another one with --folder")
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # -- commands

    def inside(self, command: Sequence[str]) -> list[str]:
        """`command` wrapped to run in the cluster's network, which may be a private one."""
        if not self.settings().private_network:
            return list(command)
        holder = daemons.of_cluster(self.folder).get("munged")
        if not holder:
            raise DevError(
                f"the cluster in {self.folder} does not run: `python3 -m dev.slurm start` starts it"
            )
        return network.enter_private(holder[0].pid, command)

    def env(self) -> dict[str, str]:
        """This process's environment, with what Slurm's commands need."""
        return {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.conf)}

    def run(self, *command: str, seconds: float = CEILING_SECONDS) -> subprocess.CompletedProcess[str]:
        """Runs a command against this cluster, for at most `seconds`, and returns its result."""
        try:
            return subprocess.run(
                self.inside(command),
                env=self.env(),
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DevError(
                f"`{' '.join(command)}` took longer than {seconds:g} s (logs in {self.log})"
            ) from None

    def call(self, words: str, *more: str) -> str:
        """The standard output of a command that must succeed, its first words in one text."""
        command = [*words.split(), *more]
        done = self.run(*command)
        if done.returncode:
            raise DevError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def problem(self, *command: str) -> str:
        """The last line of a command's error output; empty if it succeeds."""
        done = self.run(*command)
        lines = (done.stderr or done.stdout or f"status {done.returncode}").strip().splitlines()
        return lines[-1] if done.returncode else ""

    def wait(self, what: str, problem: Callable[[], str]) -> None:
        """Polls `problem()` until it returns an empty text, more often at first.

        An exception also means to wait: a daemon cannot be found by its environment at the moment of its exec.
        """
        began = time.monotonic()
        while reason := _complaint(problem):
            waited = time.monotonic() - began
            if waited > CEILING_SECONDS:
                raise DevError(f"{what} not ready after {CEILING_SECONDS:g} s: {reason} (logs in {self.log})")
            time.sleep(min(0.02 + waited / 20, 0.5))

    def node_states(self) -> dict[str, str]:
        """Node -> state in Slurm's words: `idle`, `allocated`, `mixed`, `down`, ...; with `*` it does not answer."""
        lines = self.call("sinfo -h -N -p debug -o", "%N %T").splitlines()
        return {node: state for node, _, state in (line.partition(" ") for line in lines)}

    def wait_for_nodes(self, nodes: Sequence[str]) -> None:
        """Waits until these nodes take jobs."""

        def unready() -> str:
            states = self.node_states()
            return ", ".join(f"{node} is {states[node]}" for node in nodes if states[node] not in READY)

        self.wait("nodes", unready)

    # -- daemons

    def spawn(self, name: str, command: Sequence[str], **env: str) -> None:
        """Starts a daemon, in the foreground, with only what it needs of the environment."""
        needed = {"PATH": PATH, "LANG": "C.UTF-8", "SLURM_CONF": str(self.conf)}
        marks = {daemons.CLUSTER: str(self.folder), daemons.DAEMON: name}
        if session := os.environ.get(daemons.SESSION):
            marks[daemons.SESSION] = session
        daemons.start(command, {**needed, **marks, **env}, self.log / f"{name}.out")

    def start_controller(self) -> None:
        """Starts slurmctld and waits until it answers."""
        self.spawn("slurmctld", self.inside(["slurmctld", "-D"]))
        self.wait("slurmctld", lambda: self.problem("scontrol", "show", "config"))

    def end(self, *names: str, patience: float = CEILING_SECONDS) -> None:
        """Ends daemons (or `jobs-<node>`) by name or pattern; those that do not run are skipped."""

        def find() -> list[daemons.Process]:
            running = daemons.of_cluster(self.folder)
            ending = {name for wanted in names for name in fnmatch.filter(running, wanted)}
            return [process for name in ending for process in running[name]]

        daemons.end(find, patience)

    def end_jobs(self) -> None:
        """Cancels all jobs and waits until they are gone. Those that ignore SIGTERM are killed without KillWait."""

        def left() -> str:
            for name, group in daemons.of_cluster(self.folder).items():
                for process in group:
                    # Spare Slurm's step daemon, which reports the end of the job to the controller.
                    if name.startswith("jobs-") and process.command() not in ("", "slurmstepd"):
                        process.send(signal.SIGKILL)
            return self.call("squeue --noheader --all")

        if queued := self.call("squeue --noheader --all --format=%A").split():
            self.call("scancel", *queued)
            self.wait("an empty queue", left)

    def restart_controller(self) -> None:
        """Stops slurmctld and starts it again. Jobs continue meanwhile, and it recovers them from its state folder."""
        self.end("slurmctld")
        self.start_controller()

    def start_node(self, node: str) -> None:
        """Starts a node's slurmd; `wait_for_nodes` says when it takes jobs."""
        self.spawn(f"slurmd-{node}", self.inside(["slurmd", "-D", "-N", node]))

    def fail_node(self, node: str, noticed: bool = True) -> None:
        """Kills a node's slurmd and all its jobs' processes at once, as a crash of the machine would.

        With `noticed` slurmctld learns of it; without, it finds out after SlurmdTimeout.
        """
        self._check_node(node)
        self.end(f"slurmd-{node}", f"jobs-{node}", patience=0)
        if noticed:
            self.call("scontrol update", f"NodeName={node}", "State=DOWN", "Reason=failed on purpose")

    def resume_node(self, node: str) -> None:
        """Restarts a failed node and waits until it accepts jobs. A drained node is resumed."""
        self._check_node(node)
        if f"slurmd-{node}" in self.running():
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        else:
            began = datetime.now().replace(microsecond=0).isoformat()
            self.start_node(node)
            # Until it has registered, slurmctld may believe that the old slurmd is still alive.
            self.wait(node, lambda: "" if self._started(node) >= began else "it has not registered")
        self.wait_for_nodes([node])

    def _started(self, node: str) -> str:
        """When slurmctld believes that a node's slurmd has started (ISO 8601, local time); empty if it never did."""
        found = re.search(r"SlurmdStartTime=(\d\S+)", self.call("scontrol show node", node))
        return found[1] if found else ""

    def _check_node(self, node: str) -> None:
        if node not in (nodes := self.settings().node_names()):
            raise DevError(f"no node {node}: there are {', '.join(nodes)}")

    # -- stop

    def stop(self) -> bool:
        """Ends all daemons and all jobs; only the logs stay. Returns whether anything ran."""
        with self.lock() if self.folder.exists() else contextlib.nullcontext():
            ran = bool(self.running())
            self.end_all()
            self.clear("lock", "log")
        return ran

    def clear(self, *kept: str) -> None:
        """Removes what is in the folder, but for these names."""
        for path in self.folder.glob("*"):
            if path.name in kept:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def end_all(self) -> None:
        """Ends all processes of this cluster: the controller first, so that it requeues nothing, munged last."""
        self.end("slurmctld")
        self.end("slurmd-*", "jobs-*", patience=2)
        for name in ("slurmdbd", "mariadbd", "munged"):
            self.end(name)
        if left := daemons.of_cluster(self.folder):
            raise DevError(f"can't end {', '.join(left)} of the cluster in {self.folder}")


def _complaint(problem: Callable[[], str]) -> str:
    try:
        return problem()
    except DevError as error:
        return str(error)
