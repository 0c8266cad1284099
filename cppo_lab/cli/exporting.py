"""`cppo export`: what a run has learned, as a folder that transformers loads; what a sweep has logged, as tables."""

import argparse
import sys

from cppo_lab import schema
from cppo_lab.cli.answer import answer
from cppo_lab.cli.exit_codes import Exit
from cppo_lab.sweep.paths import runs_folder


def model(options: argparse.Namespace) -> int:
    """Write a run's best checkpoint in Hugging Face's format."""
    from cppo_lab.export import being_trained
    from cppo_lab.export import export as write
    from cppo_lab.export.folder import require_free
    from cppo_lab.monitor.logs import run_by_beginning
    from cppo_lab.monitor.status import Label, run_statuses
    from cppo_lab.sweep.find import require_beginning

    require_beginning(options.run)
    require_free(options.out)
    runs = runs_folder()
    run_id = run_by_beginning(runs, options.run)
    # Slurm knows of runs on machines whose locks are not seen here.
    [found] = run_statuses(runs, {run_id: Label("", "", "", None)})
    if found.state == schema.RUNNING:
        raise being_trained(run_id)
    place = write(runs, run_id, options.out, _say)
    if options.json:
        answer(options, {"run_id": run_id, "folder": str(place)})
    else:
        print(place)
    return Exit.DONE


def metrics(options: argparse.Namespace) -> int:
    """Write what the runs of a sweep have logged as Parquet, CSV or TensorBoard's events."""
    from cppo_lab.export.metrics import MetricTables, require_writable, write
    from cppo_lab.notebook import load

    place = require_writable(options.format, options.out, options.force)
    found = load(options.sweep, *options.overrides, source=options.source)
    states = found.runs.drop_duplicates("run_id")["state"].value_counts().to_dict()
    _say(f"reading {sum(states.values())} runs: " + ", ".join(f"{n} {state}" for state, n in states.items()))
    patterns = None if options.metrics is None else options.metrics.split(",")
    of_paper = options.source == "paper"
    about = {"sweep": found.name, "overrides": options.overrides, "read_from": found.place, "states": states}
    tables = MetricTables(
        runs=found.runs,
        history=found.history(patterns),
        outcomes=found.runs.iloc[:0] if of_paper else found.outcomes(),
        about=about,
    )
    rows = write(tables, options.format, place, options.force, _say)
    if options.json:
        answer(options, {"folder": str(place), "format": options.format, **about, "rows": rows})
    else:
        print(place)
    return Exit.DONE


def _say(text: str) -> None:
    print(f"cppo: {text}", file=sys.stderr, flush=True)
