"""Submitting 500 runs to Slurm with `cppo launch`, with single submitit submissions, and with Hydra's launcher.

A development cluster (docs/slurm_dev.md) of its own is started and stopped; it needs root. Everything is submitted
held, so that nothing runs, and cancelled afterwards. Seconds are those until the last `sbatch` has answered, without
imports; calls of sbatch are counted by a wrapper of it that passes everything on. `cppo` includes all that its launcher
does: its record, the look at the queue, the rehearsal.

submitit   one `executor.submit` for each run. It sleeps 0.2 s between submissions, so 20 are measured and 500 are
           said to take 25 times as long; `no_pause` is without the sleep, measured with all of them.
hydra      hydra-submitit-launcher 1.2.0, if HYDRA_PYTHON names a Python that has it: a task that does nothing. It
           makes one array, too, and then waits for the jobs' end: it is ended when sbatch has answered.

    python benchmarks/launch.py [--quick]

The last line is JSON, see `summary/form.py`.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # `dev` is no part of the package

from summary.form import result, skipped  # noqa: E402

from dev.slurm import starting  # noqa: E402
from dev.slurm.cluster import PATH, Cluster, default_folder  # noqa: E402
from dev.slurm.settings import Settings  # noqa: E402

TARGETS = {"fewer_sbatch_calls": 20.0, "times_faster": 5.0}
MEASURED = 20  # single submissions
WRAPPER = """#!/bin/bash
here=$(dirname "$0"); export PATH=${PATH#"$here":}
echo call >> "$here/calls"; sbatch "$@"; status=$?
echo >> "$here/answers"; exit $status
"""
TASK = """
import hydra

@hydra.main(config_path=None, config_name=None, version_base="1.3")
def nothing(config):
    pass

nothing()
"""


@dataclass(frozen=True)
class Nothing:
    """A job that does nothing, with what a launcher needs to know."""

    runs: Path
    name: str
    fresh_process: bool = False
    nodes: int = 1
    gpus: int = 0
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


def by_hydra(python: str, runs: int, folder: Path, sbatch: Sbatch) -> float:
    """Seconds from a command's start until sbatch has answered; the command itself would wait for the jobs."""
    (folder / "task.py").write_text(TASK)
    values = ",".join(str(number) for number in range(runs))
    command = [python, "task.py", "--multirun", f"+x={values}", "hydra/launcher=submitit_slurm"]
    command += ["+hydra.launcher.additional_parameters.hold=true", f"hydra.sweep.dir={folder}/out"]
    start = time.perf_counter()
    with (folder / "hydra.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        while not (sbatch.folder / "answers").exists():
            if process.poll() is not None or time.perf_counter() - start > 300:
                raise SystemExit(f"hydra did not submit: {(folder / 'hydra.log').read_text()[-2000:]}")
            time.sleep(0.01)
        return time.perf_counter() - start
    finally:
        process.kill()
        process.wait()


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100 runs, 5 single submissions")
    quick = parser.parse_args().quick
    runs, singles = (100, 5) if quick else (500, MEASURED)
    if reason := _absent():
        print(skipped("launch", reason, quick).line())
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
        if python := os.environ.get("HYDRA_PYTHON"):
            done("hydra_one", by_hydra(python, 2, _made(folder / "one"), sbatch))
            done("hydra", by_hydra(python, runs, _made(folder / "hydra"), sbatch))
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


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
