"""`cppo data` and `cppo doctor`: what runs need around them."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cppo_lab.cli.answer import answer
from cppo_lab.cli.exit_codes import Exit
from cppo_lab.sweep.paths import runs_folder
from cppo_lab.tracking import address

if TYPE_CHECKING:
    from cppo_lab.data.manifest import FileRecord


def data_prepare(options: argparse.Namespace) -> int:
    """Write training and validation sets."""
    from cppo_lab.data.manifest import summary
    from cppo_lab.data.prepare import prepare

    records = prepare(options.source, options.out, lambda text: print(text, file=sys.stderr, flush=True))
    if options.json:
        answer(options, _file_values(options.out, records))
    else:
        print(summary(records))
    return Exit.DONE


def data_check(options: argparse.Namespace) -> int:
    """Compare prepared data with its checksums."""
    from cppo_lab.data.manifest import check_folder, summary

    records = check_folder(options.folder)
    if options.json:
        answer(options, _file_values(options.folder, records))
    else:
        print(summary(records))
    return Exit.DONE


def _file_values(folder: Path, records: "dict[str, FileRecord]") -> dict[str, object]:
    return {"folder": str(folder), "files": {name: vars(record) for name, record in records.items()}}


def doctor(options: argparse.Namespace) -> int:
    """Say what this machine has and lacks for a run; 0 only if the run could start here."""
    from cppo_lab.doctor import examine, lines, ready
    from cppo_lab.sweep.compose import compose

    composed = compose([f"core={options.core}", *options.overrides])
    checks = examine(composed, address.tracking_uri(composed.tracking.uri), runs_folder())
    if options.json:
        found = [
            {name: getattr(check, name) for name in ("name", "status", "found", "remedy")} for check in checks
        ]
        run = {"core": composed.run.core, "model": composed.run.model.name}
        answer(options, {**run, "ready": ready(checks), "checks": found})
        return Exit.DONE if ready(checks) else Exit.NO
    print("\n".join(lines(checks)))
    wanted = f"model={composed.run.model.name} with core={composed.run.core}"
    if not ready(checks):
        print(f"\nA run of {wanted} cannot start here: see the lines marked missing.")
        return Exit.NO
    print(f"\nA run of {wanted} can start here.")
    return Exit.DONE
