"""The command line of the chaos run: `python3 -m dev.chaos`."""

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from dev.chaos.control_run import ControlRun, read_study
from dev.chaos.nemesis_run import NemesisRun
from dev.chaos.pages import differences
from dev.chaos.records import Comparison, Store, compare
from dev.chaos.schedule import KINDS, LONG, SHORT, Fault, draw
from dev.chaos.study import Study, left_behind
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
    options = _parser().parse_args(arguments)
    try:
        default = SHORT_STUDY if options.short else LONG_STUDY
        study = Study(options.runs or default.runs, default.steps)
        faults = draw(options.seed, SHORT if options.short else LONG)
        require()
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # shuts everything down cleanly
        with exclusive():
            return _run(study, faults, options)
    except DevError as error:
        print(f"dev.chaos: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dev.chaos: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m dev.chaos",
        description="Trains a sweep twice, once in peace and once on a Slurm with an MLflow server on PostgreSQL whose "
        "every part is killed on a schedule, and compares every point and every byte of the reports.",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the schedule (default: %(default)s)")
    parser.add_argument("--runs", type=int, metavar="N", help=f"a multiple of 4 (default: {LONG_STUDY.runs})")
    parser.add_argument(
        "--short",
        action="store_true",
        help=f"{SHORT_STUDY.runs} short runs and at least one fault of every kind",
    )
    parser.add_argument("--keep", action="store_true", help="leave all files, also if all is well")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="then it is given up (default: %(default)g)"
    )
    return parser


def _run(study: Study, faults: tuple[Fault, ...], options: argparse.Namespace) -> int:
    folder = Path(tempfile.mkdtemp(prefix="cppo-chaos-"))
    events, well = Events(), False
    events.say(
        "",
        f"{study.runs} runs of {study.steps} steps, {len(faults)} faults by seed {options.seed}, in {folder}",
    )
    try:
        with ControlRun(study, folder / "control") as control, Testbed(folder / "disturbed") as place:
            feasible = [fault for fault in faults if fault.kind != "disk" or not place.no_disk]
            if place.no_disk:
                events.say(
                    "", f"the folder of runs is not on a separate disk, and is not filled: {place.no_disk}"
                )
            nemesis = events.nemesis = NemesisRun(study, place, feasible, events.say, options.minutes * 60)
            nemesis.run()
            events.say("", f"the disturbed study is trained, by {nemesis.launches} launches")
            found, report = read_study(study, place.folder, place.server.uri, place.folder / "commands.log")
            left = left_behind(place.runs)
            expected, control_report = control.result()
        events.say("", "both studies are read")
        outcome = compare(expected, found)
        wrong = [*outcome.faults, *left, *differences(control_report, report)]
        wrong += [
            f"no {kind} was hit"
            for kind in sorted({one.kind for one in nemesis.waiting} - nemesis.injected.keys())
        ]
        well = not wrong
        _print_outcome(study, nemesis, found, outcome, len(report), wrong)
    finally:
        if well and not options.keep:
            shutil.rmtree(folder)
        else:
            print(f"all files are in {folder}", flush=True)
    return 0 if well else 1


def _print_outcome(
    study: Study, nemesis: NemesisRun, found: Store, outcome: Comparison, files: int, wrong: list[str]
) -> None:
    print("\nfaults injected")
    for kind, text in KINDS.items():
        print(f"  {nemesis.injected[kind]:3d}  {kind:<9}  {text}")
    print(f"  {nemesis.injected.total():3d}  in all; {len(nemesis.waiting)} found nobody to hit")
    restarted = sum(found.statuses.values()) - found.statuses.get("FINISHED", 0)
    print(f"runs: {study.runs}, by {nemesis.launches} launches; {restarted} records started over")
    print(f"points checked: {outcome.points}")
    print(f"files of the report compared: {files}")
    for line in wrong:
        print(f"WRONG: {line}")
    print(f"points lost: {outcome.lost}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
