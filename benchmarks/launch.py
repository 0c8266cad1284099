"""Submitting 500 runs to Slurm with `cppo launch`, and with single submitit submissions.

A development cluster (docs/slurm_dev.md) of its own is started and stopped; it needs root. Everything is submitted
held, so that nothing runs, and cancelled afterwards. Seconds are those until the last `sbatch` has answered, without
imports; calls of sbatch are counted by a wrapper of it that passes everything on. `cppo` includes all that its launcher
does: its record, the look at the queue, the rehearsal.

submitit   one `executor.submit` for each run. It sleeps 0.2 s between submissions, so 20 are measured and 500 are
           said to take 25 times as long; `no_pause` is without the sleep, measured with all of them.

    python benchmarks/launch.py [--quick]

The last line is JSON, see `common.py`.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common import Result, arguments, result

from dev.slurm import starting
from dev.slurm.cluster import PATH, Cluster, default_folder
from dev.slurm.settings import Settings

TARGETS = {"fewer_sbatch_calls": 20.0, "times_faster": 5.0}
MEASURED = 20  # single submissions
WRAPPER = """#!/bin/bash
here=$(dirname "$0"); export PATH=${PATH#"$here":}
echo call >> "$here/calls"; sbatch "$@"; status=$?
echo >> "$here/answers"; exit $status
"""


@dataclass(frozen=True)
class Nothing:
    """A job that does nothing, with what a launcher needs to know."""

    runs: Path
    name: str
    fresh_process: bool = False
    nodes: int = 1
    gpus: int = 0
    cpus: None = None
    places: tuple[Path, ...] = ()
    resources: None = None

    @property
    def folder(self) -> Path:
        """Below the folder of all."""
        return self.runs / self.name

    def run(self) -> None:
        """Nothing."""

    def give_up(self, why: str) -> None:
        """Nothing."""


class Sbatch:
    """The counting sbatch, in front of the real one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "sbatch").write_text(WRAPPER)
        (folder / "sbatch").chmod(0o755)

    def calls(self) -> int:
        """How often it has answered since the last time."""
        answers = self.folder / "answers"
        count = len(answers.read_text().splitlines()) if answers.exists() else 0
        answers.unlink(missing_ok=True)
        return count


def by_cppo(runs: int, folder: Path) -> float:
    """Seconds of launching that many jobs."""
    from cppo_lab.launch.slurm.submit import SlurmSpec, launch_slurm

    spec = SlurmSpec(
        name="slurm",
        workers=None,
        threads=1,
        requeues=10,
        grace_seconds=120,
        python=None,
        setup=(),
        srun=(),
        sbatch={"hold": True},
    )
    jobs = [Nothing(folder / "runs", f"job{number}") for number in range(runs)]
    start = time.perf_counter()
    launch_slurm(jobs, spec, lambda event: None)
    return time.perf_counter() - start


def by_submitit(runs: int, folder: Path, pause: bool) -> float:
    """Seconds of that many single submissions."""
    from submitit import SlurmExecutor

    executor = SlurmExecutor(folder / "submitit")
    executor.update_parameters(additional_parameters={"hold": True})
    if not pause:
        executor._throttling = 0.0
    job = Nothing(folder, "job")
    start = time.perf_counter()
    for _ in range(runs):
        executor.submit(job.run)
    return time.perf_counter() - start


@contextlib.contextmanager
def slurm() -> Iterator[Cluster]:
    """A cluster of this benchmark's own."""
    cluster = Cluster(default_folder(f"bench-{os.getpid()}"))
    starting.start(cluster, Settings(nodes=1, accounting=False))
    os.environ |= {"SLURM_CONF": str(cluster.conf), "PATH": PATH}
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder)


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "100 runs, 5 single submissions").quick
    runs, singles = (100, 5) if quick else (500, MEASURED)
    if reason := _absent():
        print(Result("launch", {}, quick, reason).line())
        return
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, slurm() as cluster:
        folder = Path(name)
        sbatch = Sbatch(folder / "bin")
        os.environ["PATH"] = f"{sbatch.folder}:{os.environ['PATH']}"

        def done(what: str, seconds: float, scale: float = 1.0) -> None:
            calls = sbatch.calls()
            said = f", of which {calls} calls measured" if scale != 1 else ""
            print(f"{what}: {seconds * scale:.2f} s, {calls * scale:.0f} calls of sbatch{said}", flush=True)
            figures[f"{what}_seconds_{runs}"] = seconds * scale
            figures[f"{what}_calls_{runs}"] = calls * scale
            cluster.call("scancel", "--user=root")

        by_cppo(1, folder / "warm")  # imports
        sbatch.calls()
        done("cppo", by_cppo(runs, folder))
        done("submitit", by_submitit(singles, folder, pause=True), runs / singles)
        done("submitit_no_pause", by_submitit(runs, folder / "fast", pause=False))
    cppo = figures[f"cppo_seconds_{runs}"]
    figures["fewer_sbatch_calls"] = figures[f"submitit_calls_{runs}"] / figures[f"cppo_calls_{runs}"]
    figures["times_faster"] = figures[f"submitit_seconds_{runs}"] / cppo
    figures["times_faster_than_no_pause"] = figures[f"submitit_no_pause_seconds_{runs}"] / cppo
    units = {"*_seconds_*": "s", "*": ""}
    print(result("launch", figures, units, at_least=TARGETS, quick=quick).line())


def _absent() -> str:
    """Why there can be no Slurm here; empty if there can."""
    if os.getuid() != 0:
        return "needs root"
    missing = starting.missing(accounting=False)
    return f"not installed: {', '.join(missing)} (python3 -m dev.slurm install)" if missing else ""


if __name__ == "__main__":
    main()
