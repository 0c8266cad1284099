"""How commands scale from 10 to 10,000 runs in the tracking store and in the database of Slurm jobs.

A sweep of two rules and five learning rates, with a seed for every ten runs. Of every hundred runs one failed, one was
interrupted and one waits in Slurm's queue; the last ten are on file and not in the store (tests/many_runs.py). Every
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

    python benchmarks/scale.py [--quick] [--stores sqlite,postgresql] [--most 10000]

The last line is JSON, see `summary/form.py`.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from summary.form import result

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # `tests` and `dev` are no part of the package

from cppo_lab.sweep.file import load_sweep  # noqa: E402
from cppo_lab.sweep.plan import make_plan  # noqa: E402
from dev.servers.postgres import Postgres, default_folder, missing  # noqa: E402
from tests.many_runs import make_runs  # noqa: E402

SIZES = (10, 100, 1000, 10_000)
MOST_CPU = {"plan": 10.0, "status": 2.0, "sync": 15.0, "launch": 40.0, "report": 90.0}  # with 10,000 runs
MOST_MEBIBYTES = {"plan": 500, "status": 500, "sync": 500, "launch": 500, "report": 2000}
MOST_GROWTH = 13.0
MOST_PAGE_MEBIBYTES = 5.0
UNITS = {"*_growth": "", "*_mebibytes_*": "MiB", "*": "s"}
LAUNCH = """
import sys
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.sweep import launch
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
launch._train = lambda plan, work, see: None
launch.launch(make_plan(load_sweep(sys.argv[1])), tracking_uri())
"""
CPPO = ["-m", "cppo_lab.cli"]
# A process starts with the peak memory of the one that it is forked from: this one is small.
METER = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
with open(sys.argv[1], "wb") as output:
    done = subprocess.run(sys.argv[2:], stdout=output, stderr=subprocess.STDOUT)
seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""
COMMANDS = {
    "plan": [*CPPO, "plan", "./many.yaml"],
    "status": [*CPPO, "status"],
    "sync": [*CPPO, "sync"],
    "launch": ["-c", LAUNCH, "./many.yaml"],
    "report": [*CPPO, "report", "./many.yaml", "--partial"],
}


@dataclass(frozen=True)
class Taken:
    """What one command took."""

    seconds: float
    cpu: float
    mebibytes: float


def sweep(runs: int) -> dict[str, object]:
    """A sweep file of so many runs."""
    rates = [round(1e-4 * number, 6) for number in range(1, 6)]
    return {
        "title": "Many runs",
        "question": "Does anything grow faster than the number of runs?",
        "models": {"mini": ["mini_base"]},
        "variants": {"grpo": {"rule": "grpo"}, "cppo": {"rule": "cppo"}},
        "axes": {"optim.learning_rate": rates, "seed": list(range(runs // 10))},
    }


def prepare(folder: Path, runs: int, uri: str) -> None:
    """A working folder with so many runs, and a `squeue` that knows of those that wait."""
    (folder / "bin").mkdir(parents=True)
    (folder / "many.yaml").write_text(yaml.safe_dump(sweep(runs), sort_keys=False), encoding="utf-8")
    waiting = make_runs(folder, make_plan(load_sweep(str(folder / "many.yaml"))), uri)
    lines = folder / "squeue.txt"
    lines.write_text("".join(f"{line}\n" for line in waiting), encoding="utf-8")
    for command, script in (("squeue", f"#!/bin/sh\ncat '{lines}'\n"), ("scontrol", "#!/bin/sh\n")):
        (folder / "bin" / command).write_text(script, encoding="utf-8")
        (folder / "bin" / command).chmod(0o755)


def take(words: list[str], folder: Path, uri: str) -> Taken:
    """Run a new Python process in `folder`; SystemExit if it fails."""
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "MLFLOW_TRACKING_URI": uri,
        "OMP_NUM_THREADS": "1",
    }
    output = folder / "output.txt"
    command = [sys.executable, "-c", METER, str(output), sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)
    status, *taken = json.loads(done.stdout)
    if status:
        said = output.read_text(encoding="utf-8")[-2000:]
        raise SystemExit(f"{' '.join(words)} ended with {status}:\n{said}")
    return Taken(*taken)


def measured(store: str, folder: Path, runs: int, uri: str) -> dict[str, float]:
    """What every command took with so many runs."""
    start = time.perf_counter()
    prepare(folder, runs, uri)
    print(f"{store}, {runs} runs: made in {time.perf_counter() - start:.0f} s", flush=True)
    figures = {}
    for name, words in COMMANDS.items():
        found = take(words, folder, uri)
        print(
            f"  {name:7} {found.cpu:7.2f} s of processors, {found.seconds:7.2f} s, {found.mebibytes:5.0f} MiB",
            flush=True,
        )
        key = f"{store}_{name}"
        figures[f"{key}_cpu_{runs}"] = found.cpu
        figures[f"{key}_seconds_{runs}"] = found.seconds
        figures[f"{key}_mebibytes_{runs}"] = found.mebibytes
    page = folder / "reports" / "build" / "many" / "index.html"
    figures[f"{store}_page_mebibytes_{runs}"] = page.stat().st_size / 2**20
    return figures


def growth(figures: dict[str, float], store: str, sizes: list[int]) -> dict[str, float]:
    """How the processor seconds rise from the last size but one to the last."""
    if len(sizes) < 3:
        return {}
    found = {}
    for name in COMMANDS:
        least, before, last = (figures[f"{store}_{name}_cpu_{runs}"] for runs in (sizes[0], *sizes[-2:]))
        # Below a tenth of a second the difference is noise, and no growth can be told.
        found[f"{store}_{name}_growth"] = (last - least) / max(before - least, 0.1)
    return found


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of our own."""
    server = Postgres(default_folder(f"scale-{os.getpid()}"))
    server.start(durable=False)
    try:
        yield server
    finally:
        server.remove()


def of_store(store: str, folder: Path, sizes: list[int]) -> dict[str, float]:
    """All sizes on one kind of store."""
    figures: dict[str, float] = {}
    with postgres() if store == "postgresql" else contextlib.nullcontext() as server:
        for runs in sizes:
            own = folder / f"{store}{runs}"
            uri = f"sqlite:///{own}/mlflow.db" if server is None else server.make_database(f"scale{runs}")
            figures |= measured(store, own, runs, uri)
    return figures | growth(figures, store, sizes)


def targets(store: str) -> dict[str, float]:
    """The most that the figures may be."""
    found = {f"{store}_page_mebibytes_10000": MOST_PAGE_MEBIBYTES}
    for name in COMMANDS:
        found[f"{store}_{name}_cpu_10000"] = MOST_CPU[name]
        found[f"{store}_{name}_mebibytes_10000"] = float(MOST_MEBIBYTES[name])
        found[f"{store}_{name}_growth"] = MOST_GROWTH
    return found


def table(figures: dict[str, float], store: str, sizes: list[int]) -> str:
    """Markdown: processor seconds, wall seconds and memory of every command."""
    head = ["", *(f"{runs:,} runs" for runs in sizes), "growth", "target", ""]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    for name in COMMANDS:
        key = f"{store}_{name}"
        cells = [
            f"{figures[f'{key}_cpu_{runs}']:.1f} s ({figures[f'{key}_seconds_{runs}']:.1f}), "
            f"{figures[f'{key}_mebibytes_{runs}']:.0f} MiB"
            for runs in sizes
        ]
        rise = figures.get(f"{key}_growth")
        own = {name: most for name, most in targets(store).items() if name.startswith(f"{key}_")}
        met = all(figures[one] <= most for one, most in own.items() if one in figures)
        target = f"{MOST_CPU[name]:.0f} s, {MOST_MEBIBYTES[name]} MiB, growth {MOST_GROWTH:.0f}"
        cells += ["" if rise is None else f"{rise:.1f}", target, "met" if met else "not met"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="10 runs on SQLite")
    parser.add_argument("--stores", default="", help="sqlite,postgresql; the latter is left out if missing")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="runs of the largest sweep")
    options = parser.parse_args()
    sizes = [runs for runs in SIZES if runs <= (SIZES[0] if options.quick else options.most)]
    stores = options.stores.split(",") if options.stores else ["sqlite", "postgresql"][: 2 - options.quick]
    absent = {} if options.most >= SIZES[-1] else {"*": f"only with {SIZES[-1]:,} runs"}
    if "postgresql" in stores and missing():
        absent = {"postgresql_*": f"{', '.join(missing())} missing: python3 -m dev.servers install"} | absent
    figures: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as name:
        for store in stores:
            if f"{store}_*" not in absent:
                found = of_store(store, Path(name), sizes)
                print(f"\n{store}\n\n{table(found, store, sizes)}\n", flush=True)
                figures |= found
    most = {name: value for store in stores for name, value in targets(store).items()}
    print(result("scale", figures, UNITS, at_most=most, absent=absent, quick=options.quick).line())


if __name__ == "__main__":
    main()
