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

The last line is JSON, see `common.py`.
"""

import sqlite3
import statistics
import tempfile
from pathlib import Path

import numpy as np
from common import CPPO, arguments, fresh, result
from tracking_read import START_MS, write

from cppo_lab import schema
from cppo_lab.tracking.history import History, from_columns

TARGETS = {"report_seconds": 15.0, "scale_peak_mebibytes": 2000.0}
UNITS = {"*seconds": "s", "*mebibytes": "MiB", "scale_runs": "runs"}
STEPS, METRICS, SEEDS, MODELS = 1000, 60, 4, 10
BENCHMARKS = ("aime24", "aime25", "aime26")
SCALE = """
import json, sys, time
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.analysis.reader import list_runs, read_sweep
from cppo_lab.analysis.points import is_result
from cppo_lab.analysis.scoring import score_sweep
from cppo_lab.reports import table_texts
from cppo_lab.reports.record import About, record
from cppo_lab.reports.tables import full_table, main_table
from cppo_lab.schema import TAG_MODEL, TAG_RUN_ID, TAG_SEED, sweep_tag
start = time.perf_counter()
listing = list_runs(sys.argv[1], "cppo-mini")
tags = [run.tags for run in listing]
expected = [
    ExpectedRun(one[TAG_RUN_ID], one[TAG_MODEL], one[sweep_tag("demo")], int(one[TAG_SEED])) for one in tags
]
board = score_sweep(read_sweep(sys.argv[1], "cppo-mini", "demo", is_result, listing=listing), expected)
main, full = main_table(board, "Main"), full_table(board, "Full")
files = {
    "a": table_texts.latex(main), "b": table_texts.latex(full),
    "c": table_texts.long_csv(board), "d": table_texts.runs_csv(board),
}
files = {name: text.encode() for name, text in files.items()}
record(About("sweep", "demo", "", "", "", "mini", ""), {"demo": board}, files)
print(json.dumps([len(board.runs), time.perf_counter() - start]))
"""


def paper(folder: Path, quick: bool) -> dict[str, float]:
    """One round of the paper's reports; the quick form has that of `main` alone."""
    steps = {"reference_import": ["reference", "import"]}
    if not quick:
        steps["report"] = ["report", "study", "--from", "paper"]
    steps["report_main"] = ["report", "main", "--from", "paper"]
    figures: dict[str, float] = {}
    for name, words in steps.items():
        taken = fresh([*CPPO, *words], folder)
        figures |= {f"{name}_seconds": taken.seconds, f"{name}_cpu_seconds": taken.cpu}
        print(f"{name:20} {taken.seconds:7.2f} s, of processors {taken.cpu:6.2f} s", flush=True)
    files = [file for file in (folder / "reports" / "build").glob("*/*") if file.is_file()]
    return figures | {"report_mebibytes": sum(file.stat().st_size for file in files) / 2**20}


def long_history() -> History:
    """One run's: a validation of each benchmark at every step, and other metrics."""
    generator, step = np.random.default_rng(0), np.arange(1, STEPS + 1)
    names = [schema.validation_metric(name) for name in BENCHMARKS]
    names += [metric.name for metric in schema.METRICS if not metric.name.startswith("search/")]
    names += [f"rule/more_{number:02d}" for number in range(METRICS - len(names))]
    return from_columns(
        {name: (step, generator.random(STEPS), START_MS + 100 * step) for name in sorted(names)}
    )


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
    taken = fresh(["-c", SCALE, uri], folder)
    count, seconds = taken.json()
    if count != runs:
        raise SystemExit(f"{count} of {runs} runs")
    return {"scale_runs": runs, "scale_seconds": seconds, "scale_peak_mebibytes": taken.mebibytes}


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "one report instead of three rounds, 10 runs").quick
    with tempfile.TemporaryDirectory() as name:
        rounds = []
        for number in range(1 if quick else 3):
            (folder := Path(name, str(number))).mkdir()
            rounds.append(paper(folder, quick))
        figures = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        figures |= scale(Path(name), 10 if quick else 1000)
    print(result("report", figures, UNITS, at_most=TARGETS, quick=quick).line())


if __name__ == "__main__":
    main()
