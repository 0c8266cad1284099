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

`hydra` is Hydra's own --multirun: a task that does nothing on the same configuration, its basic sweeper and launcher,
jobs that differ in a rule and a constant; the time per job is that of many jobs less that of one, so its start-up does
not count. `plan_milliseconds_per_run` is `cppo plan` beyond 1,000 runs likewise.

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
from dev.servers.postgres import Postgres, default_folder, missing
from tests.many_runs import make_runs

SIZES = (10, 100, 1000, 10_000)
MOST_CPU = {"plan": 10.0, "status": 2.0, "sync": 15.0, "launch": 40.0, "report": 90.0}  # with 10,000 runs
MOST_GROWTH = 13.0
LEAST = {"hydra_over_plan_per_run": 10.0}
UNITS = {"*_milliseconds_*": "ms", "hydra_over_*": "x", "*_growth": "", "*_mebibytes_*": "MiB", "*": "s"}
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


TASK = """
import hydra
from cppo_lab.sweep.groups import CONF

@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def nothing(config):
    pass

nothing()
"""


def hydra_seconds(jobs: int, folder: Path) -> float:
    """Wall seconds of Hydra's own multirun of `jobs` jobs."""
    (folder / "task.py").write_text(TASK)
    values = ",".join(str(0.001 * i) for i in range(1, jobs // 2 + 1)) or "0.001"
    asked = ["rule=cppo,cppo_soft" if jobs > 1 else "rule=cppo", f"rule.delta_b={values}"]
    outputs = ["hydra.job.chdir=false", "hydra.output_subdir=null", f"hydra.sweep.dir={folder}/out"]
    return fresh(["task.py", "--multirun", *asked, *outputs, "hydra/job_logging=disabled"], folder).seconds


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


def of_store(store: str, folder: Path, sizes: Sequence[int], server: Postgres | None) -> dict[str, float]:
    """What every command took with so many runs each, on one kind of store."""
    figures: dict[str, float] = {}
    for runs in sizes:
        work = folder / f"{store}{runs}"
        uri = server.make_database(f"scale{runs}") if server else f"sqlite:///{work}/mlflow.db"
        prepare(work, runs, uri)
        path = f"{work / 'bin'}:{os.environ['PATH']}"
        for name, words in COMMANDS.items():
            taken = fresh(words, work, PATH=path, MLFLOW_TRACKING_URI=uri)
            figures[f"{store}_{name}_cpu_{runs}"] = taken.cpu
            figures[f"{store}_{name}_seconds_{runs}"] = taken.seconds
            figures[f"{store}_{name}_mebibytes_{runs}"] = taken.mebibytes
        page = work / "reports" / "build" / "many" / "index.html"
        figures[f"{store}_page_mebibytes_{runs}"] = page.stat().st_size / 2**20
    if len(sizes) >= 3:
        for name in COMMANDS:
            least, before, last = (figures[f"{store}_{name}_cpu_{runs}"] for runs in (sizes[0], *sizes[-2:]))
            # Below a tenth of a second the difference is noise, and no growth can be told.
            figures[f"{store}_{name}_growth"] = (last - least) / max(before - least, 0.1)
    return figures


def targets(store: str) -> dict[str, float]:
    """The most that the figures may be."""
    most = {f"{store}_page_mebibytes_10000": 5.0}
    for name in COMMANDS:
        most[f"{store}_{name}_cpu_10000"] = MOST_CPU[name]
        most[f"{store}_{name}_mebibytes_10000"] = 2000.0 if name == "report" else 500.0
        most[f"{store}_{name}_growth"] = MOST_GROWTH
    return most | {f"{store}_status_seconds_10000": 2.0}


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "10 runs on SQLite").quick
    sizes, most, absent = SIZES[:1] if quick else SIZES, targets("sqlite"), {}
    with tempfile.TemporaryDirectory() as name:
        figures = of_store("sqlite", Path(name), sizes, None)
        jobs = 4 if quick else 30
        started, ended = (hydra_seconds(count, Path(name)) for count in (1, jobs))
        figures["hydra_milliseconds_per_run"] = theirs = 1000 * (ended - started) / (jobs - 1)
        if not quick:
            before, last = (figures[f"sqlite_plan_seconds_{runs}"] for runs in SIZES[-2:])
            ours = 1000 * (last - before) / (SIZES[-1] - SIZES[-2])
            figures |= {"plan_milliseconds_per_run": ours, "hydra_over_plan_per_run": theirs / ours}
            most |= targets("postgresql")
            absent = {"postgresql_*": f"{', '.join(missing())} missing: python3 -m dev.servers install"}
            if not missing():
                server = Postgres(default_folder(f"scale-{os.getpid()}"))
                try:
                    server.start()
                    figures |= of_store("postgresql", Path(name), sizes, server)
                finally:
                    server.remove()
    finish(figures, UNITS, at_most=most, at_least=LEAST, absent=absent, quick=quick)


if __name__ == "__main__":
    main()
