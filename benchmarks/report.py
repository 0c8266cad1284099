"""Time to build reports: the paper's, and a sweep of 1,000 runs.

Every step is a new Python process in a temporary folder, so imports and the creation of the database count. Times are
wall seconds (the median of the repeats); `_cpu_` figures are processor seconds, which say more on a machine that does
other work.

report_seconds           `cppo report study --from paper`
report_main_seconds      `cppo report main --from paper`
scale_seconds, scale_peak_mebibytes
                         listing, histories, selection, scores, tables, verdicts and record of 1,000 runs (25 variants,
                         10 models, 4 seeds) of 60 metrics over 1,000 steps, three of them validations and 18 of the
                         machine, which reports leave out; the peak resident memory of that process, with imports

    python benchmarks/report.py [--quick]

The last line is JSON, see `summary/form.py`.
"""

import argparse
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # `benchmarks` is no part of the package

from summary.form import result  # noqa: E402

from benchmarks.tracking_read import START_MS, write  # noqa: E402
from cppo_lab import schema  # noqa: E402
from cppo_lab.tracking.history import History, from_columns  # noqa: E402

TARGETS = {
    "report_seconds": 15.0,
    "scale_peak_mebibytes": 2000.0,
}
STEPS, METRICS, SEEDS, MODELS = 1000, 60, 4, 10
BENCHMARKS = ("aime24", "aime25", "aime26")

SCALE = """
import json, resource, sys, time
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.analysis.reader import list_runs, read_sweep
from cppo_lab.analysis.points import is_result
from cppo_lab.analysis.scoring import score_sweep
from cppo_lab.reports import table_texts
from cppo_lab.reports.record import About, record
from cppo_lab.reports.tables import full_table, main_table
from cppo_lab.schema import TAG_MODEL, TAG_RUN_ID, TAG_SEED, sweep_tag
start = time.perf_counter()
laps = {}
def lap(name):
    laps[name] = round(time.perf_counter() - start - sum(laps.values()), 2)
listing = list_runs(sys.argv[1], "cppo-mini")
lap("listing")
tags = [run.tags for run in listing.runs]
expected = [
    ExpectedRun(one[TAG_RUN_ID], one[TAG_MODEL], one[sweep_tag("demo")], int(one[TAG_SEED])) for one in tags
]
data = read_sweep(sys.argv[1], "cppo-mini", "demo", is_result, listing=listing)
lap("histories")
board = score_sweep(data, expected)
lap("scores")
main, full = main_table(board, "Main"), full_table(board, "Full")
files = {
    "a": table_texts.latex(main), "b": table_texts.latex(full),
    "c": table_texts.long_csv(board), "d": table_texts.runs_csv(board),
}
lap("tables")
files = {name: text.encode() for name, text in files.items()}
size = len(record(About("sweep", "demo", "", "", "", "mini", ""), {"demo": board}, files))
lap("record")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": time.perf_counter() - start, "peak": peak, "runs": len(board.runs), "laps": laps}))
"""


def timed(words: list[str], folder: Path) -> tuple[float, float]:
    """Wall and processor seconds of a new Python process in `folder`, its children included."""
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    before, start = _used(), time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)
    return time.perf_counter() - start, _used() - before


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def paper(folder: Path, quick: bool) -> dict[str, float]:
    """One round of the paper's reports; the quick form has that of `main` alone."""
    cppo = ["-m", "cppo_lab.cli"]
    study, main = ([*cppo, "report", name, "--from", "paper"] for name in ("study", "main"))
    figures: dict[str, float] = {}

    def add(name: str, *steps: tuple[float, float]) -> None:
        figures[f"{name}_seconds"] = sum(wall for wall, _ in steps)
        figures[f"{name}_cpu_seconds"] = sum(cpu for _, cpu in steps)
        print(
            f"{name:20} {figures[f'{name}_seconds']:7.2f} s, of processors {figures[f'{name}_cpu_seconds']:6.2f} s"
        )

    add("reference_import", timed([*cppo, "reference", "import"], folder))
    if quick:
        add("report_main", timed(main, folder))
    else:
        add("second_import", timed([*cppo, "reference", "import"], folder))
        add("report", timed(study, folder))
        add("report_main", timed(main, folder))
    files = [file for file in (folder / "reports" / "build").glob("*/*") if file.is_file()]
    return figures | {"report_mebibytes": sum(file.stat().st_size for file in files) / 2**20}


def long_history() -> History:
    """One run's: a validation of each benchmark at every step, and other metrics."""
    generator, step = np.random.default_rng(0), np.arange(1, STEPS + 1)
    names = [schema.validation_metric(name) for name in BENCHMARKS]
    names += [metric.name for metric in schema.METRICS if not metric.name.startswith("search/")]
    names += [f"rule/more_{number:02d}" for number in range(METRICS - len(names))]
    columns = {name: (step, generator.random(STEPS), START_MS + 100 * step) for name in sorted(names)}
    return from_columns(columns)


def scale(folder: Path, runs: int) -> dict[str, float]:
    """A sweep of so many runs, from the store to its tables."""
    uri = write(folder / "many", runs, [long_history()], every_point=False)
    tagged = {schema.sweep_tag("demo"): lambda index: f"variant{index // (SEEDS * MODELS)}"}
    tagged |= {schema.TAG_MODEL: lambda index: f"model{index // SEEDS % MODELS}"}
    tagged |= {schema.TAG_SEED: lambda index: str(index % SEEDS)}
    with sqlite3.connect(folder / "many" / "mlflow.db") as connection:
        ids = [row[0] for row in connection.execute("select run_uuid from runs order by start_time")]
        for key, value in tagged.items():
            rows = [(value(index), key, mlflow_id) for index, mlflow_id in enumerate(ids)]
            connection.executemany("update tags set value = ? where key = ? and run_uuid = ?", rows)
    connection.close()
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache_many"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCALE, uri], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    if found["runs"] != runs:
        raise SystemExit(f"{found['runs']} of {runs} runs")
    print(f"{runs} runs: {found['seconds']:.1f} s {found['laps']}, {found['peak']:.0f} MiB", flush=True)
    return {"scale_runs": runs, "scale_seconds": found["seconds"], "scale_peak_mebibytes": found["peak"]}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one report instead of three rounds, 10 runs")
    parser.add_argument("--only", choices=["paper", "scale"], help="only that part")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        if options.only != "scale":
            rounds = []
            for number in range(1 if options.quick else 3):
                (folder := Path(name, str(number))).mkdir()
                rounds.append(paper(folder, options.quick))
            figures |= {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        if options.only != "paper":
            figures |= scale(Path(name), 10 if options.quick else 1000)
    units = {"*seconds": "s", "*mebibytes": "MiB", "scale_runs": "runs"}
    absent = {"*": f"only {options.only} was asked for"} if options.only else {}
    print(result("report", figures, units, at_most=TARGETS, absent=absent, quick=options.quick).line())


if __name__ == "__main__":
    main()
