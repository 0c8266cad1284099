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
from functools import partial
from pathlib import Path

from common import arguments, finish
from submitit import SlurmExecutor

from cppo_lab.launch.slurm.submit import SlurmSpec, launch_slurm
from cppo_lab.sweep.compose import compose
from cppo_lab.testing.launchers import SmallJob
from dev.slurm import starting
from dev.slurm.cluster import PATH, Cluster, default_folder
from dev.slurm.settings import Settings

TARGETS = {"fewer_sbatch_calls": 20.0, "times_faster": 5.0}
WRAPPER = """#!/bin/bash
here=$(dirname "$0"); export PATH=${PATH#"$here":}
sbatch "$@"; status=$?; echo >> "$here/answers"; exit $status
"""


def by_cppo(runs: int, folder: Path) -> float:
    """Seconds of launching that many jobs."""
    spec = compose(["launcher=slurm", "+launcher.sbatch.hold=true"]).launcher
    assert isinstance(spec, SlurmSpec)
    jobs = [SmallJob(f"job{number}", folder / "runs") for number in range(runs)]
    start = time.perf_counter()
    launch_slurm(jobs, spec, lambda event: None)
    return time.perf_counter() - start


def by_submitit(runs: int, folder: Path, pause: float = 0.2) -> float:
    """Seconds of that many single submissions."""
    executor = SlurmExecutor(folder)
    executor.update_parameters(additional_parameters={"hold": True})
    executor._throttling = pause
    job = SmallJob("job", folder)
    start = time.perf_counter()
    for _ in range(runs):
        executor.submit(job.run)
    return time.perf_counter() - start


@contextlib.contextmanager
def slurm() -> Iterator[Cluster]:
    """A cluster of this benchmark's own."""
    cluster = Cluster(default_folder(f"bench-{os.getpid()}"))
    starting.start(cluster, Settings(nodes=1, accounting=False))
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder)


def measured(runs: int, singles: int) -> dict[str, float]:
    """The figures."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, slurm() as cluster:
        folder, answers = Path(name), Path(name, "answers")
        (folder / "sbatch").write_text(WRAPPER)  # in front of the real one
        (folder / "sbatch").chmod(0o755)
        os.environ |= {"SLURM_CONF": str(cluster.conf), "PATH": f"{folder}:{PATH}"}
        by_cppo(1, folder / "warm")  # imports
        for way, launch, count in (
            ("cppo", by_cppo, runs),
            ("submitit", by_submitit, singles),
            ("submitit_no_pause", partial(by_submitit, pause=0.0), runs),
        ):
            answers.unlink()
            figures[f"{way}_seconds_{runs}"] = launch(count, folder / way) * runs / count
            figures[f"{way}_calls_{runs}"] = len(answers.read_text().splitlines()) * runs / count
            cluster.call("scancel", "--user=root")
    figures["fewer_sbatch_calls"] = figures[f"submitit_calls_{runs}"] / figures[f"cppo_calls_{runs}"]
    figures["times_faster"] = figures[f"submitit_seconds_{runs}"] / figures[f"cppo_seconds_{runs}"]
    return figures


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "30 runs, 2 single submissions").quick
    lacking = ", ".join(starting.missing(accounting=False))
    absent = "it needs root" if os.getuid() else f"missing: {lacking} (python3 -m dev.slurm install)"
    figures = {} if os.getuid() or lacking else measured(*((30, 2) if quick else (500, 20)))
    units = {"*_seconds_*": "s", "*": ""}
    finish(figures, units, at_least=TARGETS, absent={"*": absent}, quick=quick)


if __name__ == "__main__":
    main()
