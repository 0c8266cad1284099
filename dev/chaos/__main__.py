"""The command line of the chaos run: `python3 -m dev.chaos`."""

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from dev.chaos.compare import compare, differences
from dev.chaos.nemesis import NemesisRun
from dev.chaos.schedule import KINDS, LONG, SHORT, Fault, draw
from dev.chaos.study import ControlRun, Study, left_behind
from dev.chaos.testbed import Testbed, exclusive, require
from dev.errors import DevError

LONG_STUDY, SHORT_STUDY = Study(runs=40, steps=40), Study(runs=8, steps=24)


class Events:
    """Prints one line per event: time since the start, share of logged steps, kind, target."""

    def __init__(self) -> None:
        self._began, self._lock = time.monotonic(), threading.Lock()
        self.nemesis: NemesisRun | None = None

    def say(self, kind: str, text: str) -> None:
        """Print an event; `kind` is that of the fault, or empty."""
        seconds = int(time.monotonic() - self._began)
        share = "" if self.nemesis is None else f"{100 * self.nemesis.progress:3.0f} %"
        with self._lock:
            print(f"{seconds // 60:2d}:{seconds % 60:02d} {share:>5}  {kind or '-':<9}  {text}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs it and returns the exit status: 0 if the disturbed study equals the control study."""
    parser = argparse.ArgumentParser(
        prog="python3 -m dev.chaos",
        description="Trains a sweep twice, once in peace and once on a Slurm with an MLflow server on PostgreSQL whose "
        "every part is killed on a schedule, and compares every point and every byte of the reports.",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the schedule (default: %(default)s)")
    parser.add_argument("--runs", type=int, metavar="N", help=f"a multiple of 4 (default: {LONG_STUDY.runs})")
    short = f"{SHORT_STUDY.runs} short runs and at least one fault of every kind"
    parser.add_argument("--short", action="store_true", help=short)
    parser.add_argument("--keep", action="store_true", help="leave all files, also if all is well")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="then it is given up (default: %(default)g)"
    )
    options = parser.parse_args(arguments)
    try:
        default = SHORT_STUDY if options.short else LONG_STUDY
        study = Study(options.runs or default.runs, default.steps)
        require()
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # shuts everything down cleanly
        with exclusive():
            return _run(study, draw(options.seed, SHORT if options.short else LONG), options)
    except DevError as error:
        print(f"dev.chaos: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dev.chaos: interrupted", file=sys.stderr)
        return 130


def _run(study: Study, faults: tuple[Fault, ...], options: argparse.Namespace) -> int:
    folder = Path(tempfile.mkdtemp(prefix="cppo-chaos-"))
    events, wrong = Events(), ["it did not end"]
    size = f"{study.runs} runs of {study.steps} steps, {len(faults)} faults by seed {options.seed}"
    events.say("", f"{size}, in {folder}")
    try:
        with ControlRun(study, folder / "control") as control, Testbed(folder / "disturbed") as place:
            if place.no_disk:
                faults = tuple(fault for fault in faults if fault.kind != "disk")
                why = f"the folder of runs is not on a separate disk, and is not filled: {place.no_disk}"
                events.say("", why)
            nemesis = NemesisRun(study, place, list(faults), events.say, options.minutes * 60)
            events.nemesis = nemesis
            nemesis.run()
            events.say("", f"the disturbed study is trained, by {nemesis.launches} launches")
            stored, report = study.read(place.folder, place.server.uri, place.folder / "commands.log")
            left = left_behind(place.runs)
            expected, control_report = control.result()
        events.say("", "both studies are read")
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
        if wrong or options.keep:
            print(f"all files are in {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
