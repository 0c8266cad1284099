"""How commands scale from 10 to 10,000 runs in the tracking store and in the database of Slurm jobs.

A sweep of two rules and five learning rates, with a seed for every ten runs. Of every hundred runs one failed, one was
interrupted and one waits in Slurm's queue; ten are on file and not in the store (tests/many_runs.py). Every
command is a process of its own, imports included:

plan     `cppo plan`: every run composed, its state looked up, its cost estimated
status   `cppo status`: folders, locks, the record of jobs and a stand-in for `squeue`
sync     `cppo sync`: all folders looked at, the ten runs sent
launch   `cppo launch` without its training: twice the look at what is there (locks, Slurm, the store, repair), before
         and after, and both times the descriptions in MLflow
report   `cppo report --partial`: all histories, statistics, tables, figures and the page, kept in MLflow

`cpu` are processor seconds (user and system) of the process, by which the targets are judged, since other work on a
machine does not change them much; `seconds` are wall seconds, `mebibytes` the peak resident memory. `growth` is how
many times the processor seconds beyond those of the smallest sweep rise with ten times the runs: 10 is linear.

    python benchmarks/scale.py [--quick]    without --quick over an hour, nearly all of it for the making of 10,000 runs

The last line is JSON, see `common.py`.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml
from common import CPPO, arguments, finish, fresh

from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from tests.many_runs import make_runs

SIZES = (10, 100, 1000, 10_000)
MOST = {
    "plan_cpu_10000": 10.0,
    "status_cpu_10000": 2.0,
    "status_seconds_10000": 2.0,
    "sync_cpu_10000": 15.0,
    "launch_cpu_10000": 40.0,
    "report_cpu_10000": 90.0,
    "report_mebibytes_10000": 2000.0,
    "page_mebibytes_10000": 5.0,
    "*_mebibytes_10000": 500.0,
    "*_growth": 13.0,
}
UNITS = {"*_growth": "", "*_mebibytes_*": "MiB", "*": "s"}
LAUNCH = """
import sys
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.sweep import launch
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
launch._train = lambda *_: None
launch.launch(make_plan(load_sweep(sys.argv[1])), tracking_uri())
"""
COMMANDS = {
    "plan": [*CPPO, "plan", "./many.yaml"],
    "status": [*CPPO, "status"],
    "sync": [*CPPO, "sync"],
    "launch": ["-c", LAUNCH, "./many.yaml"],
    "report": [*CPPO, "report", "./many.yaml", "--partial"],
}


def prepare(folder: Path, runs: int, uri: str) -> None:
    """A working folder with so many runs, and a `squeue` that knows of those that wait."""
    (folder / "bin").mkdir(parents=True)
    rates = [round(1e-4 * number, 6) for number in range(1, 6)]
    sweep = {
        "title": "Many runs",
        "question": "Does anything grow faster than the number of runs?",
        "models": {"mini": ["mini_base"]},
        "variants": {"grpo": {"rule": "grpo"}, "cppo": {"rule": "cppo"}},
        "axes": {"optim.learning_rate": rates, "seed": list(range(runs // 10))},
    }
    (folder / "many.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    waiting = make_runs(folder, make_plan(load_sweep(str(folder / "many.yaml"))), uri)
    lines = folder / "squeue.txt"
    lines.write_text("".join(f"{line}\n" for line in waiting))
    for command, script in (("squeue", f"#!/bin/sh\ncat '{lines}'\n"), ("scontrol", "#!/bin/sh\n")):
        (folder / "bin" / command).write_text(script)
        (folder / "bin" / command).chmod(0o755)


def measured(folder: Path, sizes: Sequence[int]) -> dict[str, float]:
    """What every command took with so many runs each."""
    figures: dict[str, float] = {}
    for runs in sizes:
        work = folder / str(runs)
        uri = f"sqlite:///{work}/mlflow.db"
        prepare(work, runs, uri)
        path = f"{work / 'bin'}:{os.environ['PATH']}"
        for name, words in COMMANDS.items():
            taken = fresh(words, work, PATH=path, MLFLOW_TRACKING_URI=uri)
            figures[f"{name}_cpu_{runs}"] = taken.cpu
            figures[f"{name}_seconds_{runs}"] = taken.seconds
            figures[f"{name}_mebibytes_{runs}"] = taken.mebibytes
        page = work / "reports" / "build" / "many" / "index.html"
        figures[f"page_mebibytes_{runs}"] = page.stat().st_size / 2**20
    if len(sizes) >= 3:
        for name in COMMANDS:
            least, before, last = (figures[f"{name}_cpu_{runs}"] for runs in (sizes[0], *sizes[-2:]))
            # Below a tenth of a second the difference is noise, and no growth can be told.
            figures[f"{name}_growth"] = (last - least) / max(before - least, 0.1)
    return figures


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "10 runs").quick
    with tempfile.TemporaryDirectory() as name:
        figures = measured(Path(name), SIZES[:1] if quick else SIZES)
    finish(figures, UNITS, at_most=MOST, quick=quick)


if __name__ == "__main__":
    main()
