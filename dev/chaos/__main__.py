"""The command line of the chaos run: `python3 -m dev.chaos`."""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from dev.chaos.compare import compare, differences
from dev.chaos.nemesis import NemesisRun
from dev.chaos.strikes import KINDS, LONG, SHORT, Fault, draw
from dev.chaos.study import Study, control_run, left_behind
from dev.chaos.testbed import exclusive, require, testbed
from dev.errors import run

LONGEST_SECONDS = 3600.0  # then it is given up
LONG_STUDY, SHORT_STUDY = Study(runs=40, steps=40), Study(runs=8, steps=24)


def main(arguments: list[str] | None = None) -> int:
    """Runs it and returns the exit status: 0 if the disturbed study equals the control study."""
    parser = argparse.ArgumentParser(
        prog="python3 -m dev.chaos",
        description="Trains a sweep twice, once in peace and once on a Slurm with an MLflow server on PostgreSQL whose "
        "every part is killed on a schedule, and compares every point and every byte of the reports.",
    )
    short = f"{SHORT_STUDY.runs} short runs and at least one fault of every kind"
    parser.add_argument("--short", action="store_true", help=short)
    options = parser.parse_args(arguments)
    require()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # shuts everything down cleanly
    study, counts = (SHORT_STUDY, SHORT) if options.short else (LONG_STUDY, LONG)
    try:
        with exclusive():
            return _run(study, draw(0, counts))
    except KeyboardInterrupt:
        print("dev.chaos: interrupted", file=sys.stderr)
        return 130


def _run(study: Study, faults: tuple[Fault, ...]) -> int:
    folder, wrong = Path(tempfile.mkdtemp(prefix="cppo-chaos-")), ["it did not end"]
    print(f"{study.runs} runs of {study.steps} steps, {len(faults)} faults, in {folder}", flush=True)
    try:
        with control_run(study, folder / "control") as control, testbed(folder / "disturbed") as place:
            if place.no_disk:
                faults = tuple(fault for fault in faults if fault.kind != "disk")
                print(f"the folder of runs is not on a separate disk, and is not filled: {place.no_disk}")
            nemesis = NemesisRun(study, place, list(faults), LONGEST_SECONDS)
            nemesis.run()
            stored, report = study.read(place.folder, place.server.uri, place.folder / "commands.log")
            left = left_behind(place.runs)
            expected, control_report = control.result()
        outcome = compare(expected, stored)
        wrong = [*outcome.faults, *left, *differences(control_report, report)]
        missed = {fault.kind for fault in nemesis.waiting} - nemesis.injected.keys()
        wrong += [f"no {kind} was hit" for kind in sorted(missed)]
        print("\nfaults injected")
        for kind, text in KINDS.items():
            print(f"  {nemesis.injected[kind]:3d}  {kind:<9}  {text}")
        print(f"  {nemesis.injected.total():3d}  in all; {len(nemesis.waiting)} found nobody to hit")
        restarted = sum(stored.statuses.values()) - stored.statuses.get("FINISHED", 0)
        print(f"runs: {study.runs}, by {nemesis.launches} launches; {restarted} records started over")
        print(f"points checked: {outcome.points}")
        print(f"files of the report compared: {len(report)}")
        for line in wrong:
            print(f"WRONG: {line}")
        print(f"points lost: {outcome.lost}", flush=True)
    finally:
        if wrong:
            print(f"all files are in {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    run("dev.chaos", main)
