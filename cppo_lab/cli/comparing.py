"""`cppo compare`."""

import argparse
from pathlib import Path

from cppo_lab.cli.answer import Exit, answer
from cppo_lab.cli.parser import CommandParser
from cppo_lab.errors import UserError

BUILT = Path("reports/build")  # where `cppo report` writes by default


def compare(options: argparse.Namespace) -> int:
    """Say what differs between two reports; 0 if nothing does, 1 if something does."""
    from cppo_lab.reports import compare as comparing
    from cppo_lab.reports.compare import compare_lines
    from cppo_lab.reports.saved import read_record

    before, after = (read_record(_folder(name)) for name in (options.before, options.after))
    found = comparing.compare(before, after, (options.before, options.after))
    if options.json:
        answer(options, found.plain())
    else:
        print("\n".join(compare_lines(found)))
    return Exit.DONE if found.same else Exit.NO


def _folder(name: str) -> Path:
    """The folder of a report that is named by itself or by its sweep."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    built = BUILT / folder.stem
    if folder.name == name and built.is_dir():
        return built
    raise UserError(
        f"{name!r} is no folder, and {built} is none: name the folder of a report, or run `cppo report` first"
    )


def compare_arguments(command: CommandParser) -> None:
    command.set_defaults(command=compare)
    for side in ("before", "after"):
        command.add_argument(
            side, metavar="REPORT", help="folder of a report, or the sweep that it belongs to"
        )
