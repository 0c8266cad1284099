"""The parser of one subcommand, and what several of them take."""

import argparse
import difflib
import re
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from cppo_lab import schema
from cppo_lab.cli.exit_codes import codes_text
from cppo_lab.errors import UserError
from cppo_lab.sweep.groups import groups

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["CommandParser"]
else:
    Commands = object  # what argparse returns has no public name

OVERRIDES = (
    "configuration overrides in Hydra's syntax, for example rule.delta=0.1 training.t_stop=20 launcher=inline. "
    "model=, variant= and the sweep's axes (seed=0,1,2) select which runs to use."
)
SWEEP = "name of a shipped sweep or study, or path of a sweep file"
RUN = "run id, or a prefix of it (at least 4 digits), of a launched run or of a run in a shipped sweep"
JSON = "print one JSON object and nothing else to standard output (docs/commands.md)"
SWEEP_OR_RUN = f"{SWEEP}; or {RUN}"


_INVALID_CHOICE = re.compile(
    r"argument (?P<what>[A-Z]+): invalid choice: (?P<value>'.*?'|\".*?\") \(choose from .*\)"
)


class UsageError(UserError):
    """A mistake in the arguments of `command`, with the lines that say how it is called."""

    def __init__(self, text: str, command: str, usage: str) -> None:
        super().__init__(text)
        self.command, self.usage = command, usage


class CommandParser(argparse.ArgumentParser):
    """A command's parser. Where it takes overrides, its help lists the groups."""

    lists_groups = False

    def error(self, message: str) -> NoReturn:
        """One line on the mistake, as for every other, with the usage of the command beside it."""
        if subcommands(self) and (match := _INVALID_CHOICE.fullmatch(message)):
            message = self._unknown_command(match["what"].lower(), match["value"][1:-1])
        text = f"{message}: see `{self.prog} --help`"
        raise UsageError(text, self.prog.removeprefix("cppo").strip(), self.format_usage())

    def _unknown_command(self, what: str, value: str) -> str:
        """What a name that is no command, or no action of one, may have meant."""
        names = [name for name in subcommands(self) if not name.startswith("_")]
        close = difflib.get_close_matches(value, names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"unknown {what} {value!r}: {hint}valid: {', '.join(names)}"

    def format_help(self) -> str:
        """The help text; conf/ is read only now."""
        text = super().format_help()
        if subcommands(self):
            text += f"\nexit codes:\n{codes_text()}\n"
        if not self.lists_groups:
            return text

        lines = [
            textwrap.fill(", ".join(options), 100, initial_indent=f"  {name}=", subsequent_indent="      ")
            for name, options in groups().items()
        ]
        return "\n".join([text, "configuration groups (GROUP=OPTION):", *lines, ""])


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a parser's subcommands, by name; none for a parser that has no subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def leaves(parser: argparse.ArgumentParser, name: str = "") -> dict[str, argparse.ArgumentParser]:
    """Every command that does something, by its words: `plan`, `data check`."""
    below = subcommands(parser)
    if not below:
        return {name: parser}
    return {
        words: leaf
        for key, one in below.items()
        for words, leaf in leaves(one, f"{name} {key}".strip()).items()
    }


def finish(parser: argparse.ArgumentParser) -> None:
    """Let every command know its name, and have --json."""
    for name, leaf in leaves(parser).items():
        leaf.set_defaults(name=name)
        if not any("--json" in action.option_strings for action in leaf._actions):
            leaf.add_argument("--json", action="store_true", help=JSON)


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
        "--state", metavar="STATE,...", help=f"list only runs in these states: {', '.join(schema.STATES)}"
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=JSON)
    form.add_argument("--csv", action="store_true", help="print CSV, one line per run")
