"""`cppo bounds` and `cppo check-vectors`."""

import argparse
from pathlib import Path

from cppo_lab.cli.answer import Exit, answer
from cppo_lab.cli.parser import CommandParser
from cppo_lab.errors import UserError


def bounds(options: argparse.Namespace) -> int:
    """Print the constants of the theory."""
    from cppo_lab.calculator import bound_rows, bounds_table

    names = ("delta", "delta_b", "w_min", "xi")
    values = {name: _number(name, getattr(options, name)) for name in names}
    try:
        horizon: float = int(options.horizon)
    except ValueError:
        horizon = _number("horizon", options.horizon)  # no whole number: refused below, by its value
    try:
        table = bounds_table(**values, horizon=horizon)
    except ValueError as error:
        raise UserError(str(error)) from error
    if options.json:
        rows = [] if horizon == 1 else bound_rows(**values, horizon=int(horizon))
        answer(options, {**values, "horizon": int(horizon), "bounds": [row._asdict() for row in rows]})
    else:
        print(table)
    return Exit.DONE


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        example = "8192" if name == "horizon" else "0.5"
        raise UserError(
            f"{name}={text!r} is not a number: pass one such as --{name.replace('_', '-')} {example}"
        ) from None


def check_vectors(options: argparse.Namespace) -> int:
    """Check a file of golden vectors."""
    from cppo_lab.vectors.check import check_file

    report = check_file(options.file)
    if options.json:
        mismatches = [str(one) for one in report.mismatches]
        answer(options, {"checked": report.checked, "mismatches": mismatches, "unknown": report.unknown})
    else:
        print("\n".join(report.lines()))
    return Exit.NO if report.mismatches else Exit.DONE


def bounds_arguments(command: CommandParser) -> None:
    command.set_defaults(command=bounds)
    # Read as text: argparse would answer a misspelt number with its usage as well.
    command.add_argument("--delta", default="0.15", help="token threshold (default: 0.15)")
    command.add_argument("--delta-b", default="0.02", help="prefix-budget rate (default: 0.02)")
    command.add_argument("--w-min", default="0.8", help="last position weight (default: 0.8)")
    command.add_argument("--horizon", default="8192", help="response length in tokens (default: 8192)")
    command.add_argument("--xi", default="1", help="largest absolute reward (default: 1)")


def check_vectors_arguments(command: CommandParser) -> None:
    command.set_defaults(command=check_vectors)
    command.add_argument(
        "file", type=Path, metavar="FILE.npz", help="a file in the format of tests/oracles/vectors.npz"
    )
