"""Time of the commands that people wait for, with the runs of a sweep in a SQLite store.

The quickstart is trained first, a few steps of it. Seconds are those of the whole command, the start of Python
included, the fastest of five. `report_one_new` is a report after one run of the sweep was trained, `ui` the time until
the server's page answers. benchmarks/report.py has the paper's reports, which are larger; benchmarks/scale.py has many
runs.

    python benchmarks/commands.py [--quick]

The last line is JSON, see `common.py`.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import CPPO, arguments, finish, fresh

SMALL = [
    "training.t_stop=5",
    "model.warm_start.steps=10",
    "model.warm_start.target_accuracy=null",
    "data.validation_problems=4",
]
MOST = {
    "plan_seconds": 1.5,
    "plan_main_verl_seconds": 4.0,
    "report_one_new_seconds": 5.0,
    "ui_seconds": 5.0,
    "*": 1.0,
}


def ui(folder: Path) -> float:
    """Start the server; the seconds until its page answers, which is when the command has printed the links."""
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *CPPO, "ui"], cwd=folder, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        first = server.stdout.readline()
        seconds = time.perf_counter() - start
        server.send_signal(signal.SIGINT)
    assert first, "cppo ui: it ended before its page answered"
    return seconds


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "two runs, and one call of each command in place of five").quick
    sweep, times = ["quickstart", *SMALL, *(["variant=cppo"] if quick else [])], 1 if quick else 5
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name, "work"), Path(name, "before")
        folder.mkdir()

        def cppo(*words: str) -> float:
            return fresh([*CPPO, *words], folder).seconds

        if not quick:  # all runs but one, and a report of them
            cppo("launch", *sweep, "seed=0")
            cppo("launch", *sweep, "seed=1", "variant=grpo,dppo")
            cppo("report", *sweep, "--partial")
        cppo("launch", *sweep, *(["launcher=inline"] if quick else []))
        shutil.copytree(folder, before)
        run, other, *_ = sorted(path.parent.name for path in (folder / "runs").glob("*/config.json"))
        for command, words in {
            "report_one_new": ["report", *sweep],
            "plan": ["plan", *sweep],
            "plan_main_verl": ["plan", "main", "core=verl"],
            "show_run": ["show", run],
            "show_sweep": ["show", *sweep],
            "diff": ["diff", run, other],
            "compare": ["compare", "quickstart", "quickstart"],
            "status": ["status"],
            "status_sweep": ["status", *sweep],
            "logs": ["logs", run],
        }.items():
            calls = []
            for _ in range(times):
                if command == "report_one_new":  # a new run is new once
                    shutil.rmtree(folder)
                    shutil.copytree(before, folder)
                calls.append(cppo(*words))
            figures[f"{command}_seconds"] = min(calls)
        figures["ui_seconds"] = min(ui(folder) for _ in range(times))
    finish(figures, {"*": "s"}, at_most=MOST, quick=quick)


if __name__ == "__main__":
    main()
