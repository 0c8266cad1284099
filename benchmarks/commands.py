"""Time of the commands that people wait for, with the runs of a sweep in a SQLite store.

The quickstart is trained first, a few steps of it. Seconds are those of the whole command, the start of Python
included, the fastest of five; beside them the processor time of the fastest. `report_one_new` is a report after one
run of the sweep was trained, `ui` the time until the server's page answers. benchmarks/report.py has the paper's
reports, which are larger.

    python benchmarks/commands.py [--quick]

The last line is JSON, see `summary/form.py`.
"""

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from summary.form import result

SMALL = [
    "training.t_stop=5",
    "model.warm_start.steps=10",
    "model.warm_start.target_accuracy=null",
    "data.validation_problems=4",
]
MOST_SECONDS = 1.0
MOST_OF = {"plan": 1.5, "plan_main_verl": 4.0, "report_one_new": 5.0, "ui": 5.0}  # seconds


def settings(folder: Path) -> dict[str, str]:
    """The environment of a command that works in `folder`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return environment


def cppo(folder: Path, *words: str) -> float:
    """Call the command; its seconds."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cppo_lab.cli", *words],
        cwd=folder,
        env=settings(folder),
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"cppo {' '.join(words)}: {done.stderr}")
    return seconds


def ui(folder: Path) -> float:
    """Start the server; the seconds until its page answers, which is when the command has printed the links."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "cppo_lab.cli", "ui"],
        cwd=folder,
        env=settings(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        assert server.stdout is not None
        first = server.stdout.readline()
        seconds = time.perf_counter() - start
        server.send_signal(signal.SIGINT)
    if not first:
        sys.exit("cppo ui: it ended before its page answered")
    return seconds


def processor_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(call: Callable[[], float], times: int) -> tuple[float, float]:
    """The fastest call's seconds, and the least processor time of a call."""
    fastest, least = float("inf"), float("inf")
    for _ in range(times):
        before = processor_seconds()
        fastest = min(fastest, call())
        least = min(least, processor_seconds() - before)
    return fastest, least


def report_again(folder: Path, before: Path, words: list[str]) -> float:
    """The report once more, in a `folder` as it was `before`: a new run is new once."""
    shutil.rmtree(folder)
    shutil.copytree(before, folder)
    return cppo(folder, "report", *words)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="two runs, and one call of each command in place of five"
    )
    quick = parser.parse_args().quick
    sweep = ["quickstart", *SMALL, *(["variant=cppo"] if quick else [])]
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name, "work"), Path(name, "before")
        folder.mkdir()
        if not quick:  # all runs but one, and a report of them
            cppo(folder, "launch", *sweep, "seed=0")
            cppo(folder, "launch", *sweep, "seed=1", "variant=grpo,dppo")
            cppo(folder, "report", *sweep, "--partial")
        cppo(folder, "launch", *sweep, *(["launcher=inline"] if quick else []))
        shutil.copytree(folder, before)
        one, other, *_ = sorted(path.parent.name for path in (folder / "runs").glob("*/config.json"))
        commands = {
            "plan": ["plan", *sweep],
            "plan_main_verl": ["plan", "main", "core=verl"],
            "show_run": ["show", one],
            "show_sweep": ["show", *sweep],
            "diff": ["diff", one, other],
            "compare": ["compare", "quickstart", "quickstart"],
            "status": ["status"],
            "status_sweep": ["status", *sweep],
            "logs": ["logs", one],
        }
        calls: dict[str, Callable[[], float]] = {
            "report_one_new": partial(report_again, folder, before, sweep),
            **{command: partial(cppo, folder, *words) for command, words in commands.items()},
            "ui": partial(ui, folder),
        }
        for command, call in calls.items():
            seconds, processor = measure(call, 1 if quick else 5)
            print(f"{command}: {seconds:.2f} s, {processor:.2f} s of processor time", flush=True)
            figures[f"{command}_seconds"], figures[f"{command}_processor_seconds"] = seconds, processor
    targets = {f"{command}_seconds": MOST_OF.get(command, MOST_SECONDS) for command in calls}
    print(result("commands", figures, {"*": "s"}, at_most=targets, quick=quick).line())


if __name__ == "__main__":
    main()
