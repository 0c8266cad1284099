"""Time of the commands that only read, with the runs of a sweep in a SQLite store.

The quickstart is trained first, a few steps of it. Seconds are those of the whole command, the start of Python
included, the fastest of five; beside them the processor time of the fastest.

    python benchmarks/commands.py [--quick]

The last line is JSON, see `summary/form.py`.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from summary.form import result

SMALL = [
    "training.t_stop=5",
    "model.warm_start.steps=10",
    "model.warm_start.target_accuracy=null",
    "data.validation_problems=4",
]
MOST_SECONDS = 1.0
TIMES = {True: 2, False: 5}  # how often each command is called, by --quick


def cppo(folder: Path, *words: str) -> float:
    """Call the command; its seconds."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("MLFLOW_TRACKING_URI", None)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cppo_lab.cli", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"cppo {' '.join(words)}: {done.stderr}")
    return seconds


def processor_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, words: list[str], times: int) -> tuple[float, float]:
    """The fastest call's seconds, and the least processor time of a call."""
    fastest, least = float("inf"), float("inf")
    for _ in range(times):
        before = processor_seconds()
        fastest = min(fastest, cppo(folder, *words))
        least = min(least, processor_seconds() - before)
    return fastest, least


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two calls of each command in place of five")
    quick = parser.parse_args().quick
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cppo(folder, "launch", "quickstart", *SMALL)
        one, other, *_ = sorted(path.parent.name for path in (folder / "runs").glob("*/config.json"))
        commands = {
            "plan": ["plan", "quickstart", *SMALL],
            "plan_main_verl": ["plan", "main", "core=verl"],
            "show_run": ["show", one],
            "show_sweep": ["show", "quickstart", *SMALL],
            "diff": ["diff", one, other],
            "status": ["status"],
            "status_sweep": ["status", "quickstart", *SMALL],
            "logs": ["logs", one],
        }
        for command, words in commands.items():
            seconds, processor = measure(folder, words, TIMES[quick])
            print(
                f"cppo {' '.join(words[:2])}: {seconds:.2f} s, {processor:.2f} s of processor time",
                flush=True,
            )
            figures[f"{command}_seconds"], figures[f"{command}_processor_seconds"] = seconds, processor
    targets = {f"{command}_seconds": MOST_SECONDS for command in commands}
    print(result("commands", figures, {"*": "s"}, at_most=targets, quick=quick).line())


if __name__ == "__main__":
    main()
