"""The parser of one subcommand, and what several of them take."""

import argparse
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from cppo_lab import schema
from cppo_lab.errors import message as as_message

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["CommandParser"]
else:
    Commands = object  # what argparse returns has no public name

OVERRIDES = (
    "configuration overrides in Hydra's syntax: rule.delta=0.1 training.t_stop=20 launcher=inline. "
    "model=, variant= and the sweep's axes (seed=0,1,2) select runs."
)
SWEEP = "name of a shipped sweep or study, or path to a sweep file"
RUN = "run id or prefix (at least 4 digits) of a launched run or of a run in a shipped sweep"
SWEEP_OR_RUN = f"{SWEEP}; or {RUN}"


class CommandParser(argparse.ArgumentParser):
    """A command's parser; a mistake costs one line. Where it takes overrides, its help lists the groups."""

    lists_groups = False

    def error(self, message: str) -> NoReturn:
        """One line, as for every other mistake; argparse would print its usage as well."""
        self.exit(2, f"cppo: error: {as_message(message)}: see `{self.prog} --help`\n")

    def format_help(self) -> str:
        """The help text; conf/ is read only now."""
        text = super().format_help()
        if not self.lists_groups:
            return text
        from cppo_lab.sweep.groups import groups

        lines = [
            textwrap.fill(", ".join(options), 100, initial_indent=f"  {name}=", subsequent_indent="      ")
            for name, options in groups().items()
        ]
        return "\n".join([text, "configuration groups (GROUP=OPTION):", *lines, ""])


def add_sweep(
    commands: "Commands",
    name: str,
    command: Callable[[argparse.Namespace], int],
    text: str,
    metavar: str = "sweep",
) -> CommandParser:
    """A subcommand on the runs of a sweep."""
    added = commands.add_parser(name, help=text)
    added.set_defaults(command=command)
    added.lists_groups = True
    added.add_argument("sweep", metavar=metavar.upper(), help=SWEEP if metavar == "sweep" else SWEEP_OR_RUN)
    added.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=OVERRIDES)
    return added


def add_listing(command: argparse.ArgumentParser) -> None:
    """Which runs a command lists, and in which form."""
    command.add_argument(
        "--state", metavar="STATE,...", help=f"only runs in these states: {', '.join(schema.STATES)}"
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--csv", action="store_true", help="print CSV, one line per run")
