"""What every command of `cppo` has: its arguments, what several of them take, what it answers, and its exit codes.

The arguments of a command are beside its function. Only the module of the command that is named is imported. With
`--json` a command prints an object, with the same heading for all; docs/commands.md is its schema: the keys of the
heading, and of each command.
"""

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import sys
import textwrap
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from importlib import import_module  # noqa: TID251  of the literal list COMMANDS
from typing import IO, TYPE_CHECKING, Any, NoReturn

from cppo_lab import __version__, schema
from cppo_lab.errors import UserError, say, together, unknown
from cppo_lab.sweep.groups import groups

if TYPE_CHECKING:
    from cppo_lab.sweep.file import Search, Study, Sweep

# Name -> the module with its function and, as `NAME_arguments`, its arguments; and what it does.
COMMANDS = {
    "list": ("names", "list sweeps, models, rules or keys, a line each"),
    "new": ("names", "write a first sweep file, which runs as it is"),
    "plan": ("training", "list the runs of a sweep with their ids, states and cost"),
    "show": ("training", "print the resolved configuration of a run, or of the runs of a sweep"),
    "diff": ("training", "show how two runs differ"),
    "launch": ("training", "train the unfinished runs of a sweep"),
    "pull": (
        "training",
        "ask the tracking store which runs were finished elsewhere, and note them in the folder of runs",
    ),
    "preflight": (
        "training",
        "run a short test job for each kind of run (core=verl): does it start, does it fit, and what will it cost",
    ),
    "status": ("monitoring", "show the state of runs, whoever launched them"),
    "watch": (
        "monitoring",
        "show the state of runs until all have ended; the exit code is 0 if all are done",
    ),
    "dash": ("ui", "serve a page of a sweep that renews itself: the report, states of runs and time left"),
    "logs": ("monitoring", "print a run's output"),
    "cancel": ("monitoring", "stop runs cleanly, and remove queued runs from the queue"),
    "retry": ("monitoring", "retrain runs that failed with an error, or finished ones"),
    "sync": (
        "monitoring",
        "after a crash or an outage, upload metrics that never reached the tracking store",
    ),
    "note": ("monitoring", "write a note or tags on a run, for MLflow and the report"),
    "clean": ("monitoring", "show what runs take on the disk, by sweep, and free what is not needed"),
    "archive": ("exporting", "put a sweep's configurations, records and report into one file"),
    "tune": ("training", "search for the best constants with Optuna; run it again to resume"),
    "report": ("reporting", "write tables, curves and the report page of a sweep"),
    "compare": ("reporting", "show how two reports differ"),
    "reference": ("reporting", "import the paper's own curves"),
    "export": (
        "exporting",
        "export a run's best checkpoint in Hugging Face format, or the metrics of a sweep as tables",
    ),
    "evaluate": ("exporting", "ask finished runs the problems of a benchmark that was not in their training"),
    "samples": ("exporting", "print the prompts and responses that a run has stored"),
    "replay": (
        "exporting",
        "apply another rule's mask to the training tokens that a run has stored, without training",
    ),
    "ui": ("ui", "serve the MLflow UI for the tracking store until Ctrl-C"),
    "data": ("environment", "prepare or check the training and validation sets of the verl core"),
    "doctor": ("environment", "check what this machine lacks for a run, and say how to fix it"),
    "completion": (
        "names",
        "print a script with which a shell completes commands, sweeps, variants and run ids",
    ),
}
SCHEMA = 1  # of the answers with --json: keys may be added; none is removed, or changes its meaning
RUN = "run id, or a prefix of it (at least 4 digits), of a launched run or of a run in a sweep that `cppo list` names"
SOME_RUN = "run id, or a prefix of it"
SWEEP = "name of a shipped sweep or study, or path of a sweep file"
_OVERRIDES = (
    "configuration overrides in Hydra's syntax, for example rule.delta=0.1 training.t_stop=20 launcher=inline. "
    "model=, variant= and the sweep's axes (seed=0,1,2) select which runs to use."
)
_JSON = "print one JSON object and nothing else to standard output (docs/commands.md)"
_INVALID_CHOICE = re.compile(
    r"argument (?P<what>[\w/-]+): invalid choice: (?P<value>'.*?'|\".*?\") \(choose from .*\)"
)


class UsageError(UserError):
    """A mistake in the arguments of `command`, with the lines that say how it is called."""

    def __init__(self, text: str, command: str, usage: str) -> None:
        super().__init__(text)
        self.command, self.usage = command, usage


class CommandParser(ArgumentParser):
    """A command's parser. Where it takes overrides, its help lists the groups."""

    lists_groups = False

    def error(self, message: str) -> NoReturn:
        """One line on the mistake, as for every other, with the usage of the command beside it."""
        if match := _INVALID_CHOICE.fullmatch(message):
            what = match["what"]
            valid = next(
                action.choices or ()
                for action in self._actions
                if what in (action.metavar, "/".join(action.option_strings), action.dest)
            )
            kind = f"value of {what}" if what.startswith("-") else what.lower()
            message = str(unknown(kind, match["value"][1:-1], map(str, valid)))
        text = f"{message}: see `{self.prog} --help`"
        raise UsageError(text, self.prog.removeprefix("cppo").strip(), self.format_usage())

    def add_flag(self, *names: str, help: str) -> None:
        """An option without a value."""
        self.add_argument(*names, action="store_true", help=help)

    def add_value(self, name: str, metavar: str, help: str, **how: Any) -> None:
        """An argument, or an option with a value."""
        self.add_argument(name, metavar=metavar, help=help, **how)

    def add_values(self, name: str, metavar: str, help: str, **how: Any) -> None:
        """Any number of arguments, or an option that can be repeated."""
        many: dict[str, Any] = {"action": "append"} if name.startswith("-") else {"nargs": "*"}
        self.add_argument(name, metavar=metavar, help=help, default=[], **many, **how)

    def format_help(self) -> str:
        """The help text; conf/ is read only now."""
        text = super().format_help()
        if subcommands(self):
            codes = (f"  {code.value:>3}  {meaning}\n" for code, meaning in MEANINGS.items())
            text += f"\nexit codes:\n{''.join(codes)}"
        if not self.lists_groups:
            return text
        lines = [
            textwrap.fill(", ".join(options), 100, initial_indent=f"  {name}=", subsequent_indent="      ")
            for name, options in groups().items()
        ]
        return "\n".join([text, "configuration groups (GROUP=OPTION):", *lines, ""])


def parse(arguments: Sequence[str]) -> Namespace:
    """What the user asked for; the chosen function is its `command`. Overrides may come before and after options."""
    given = list(arguments)
    if given[:1] == ["export"] and not {*given[1:2]} <= {"model", "metrics", "-h", "--help"}:
        given.insert(1, "model")  # a run: no run's id is a word
    parser = build_parser(next((word for word in given if word in COMMANDS), ""))
    options, remaining = parser.parse_known_args(given)
    # argparse gives all of KEY=VALUE..., or of a note's words, to the first gap that it finds; those after an option
    # remain.
    words = "words" if "words" in options else "overrides"
    if any(text.startswith("-") for text in remaining) or (remaining and words not in options):
        leaves(parser)[options.name].error(f"unrecognized arguments: {' '.join(remaining)}")
    if remaining:
        setattr(options, words, [*getattr(options, words), *remaining])
    return options


def build_parser(chosen: str | None = None) -> CommandParser:
    """The parser of the command line, with the arguments of the command `chosen`, or of all (None)."""
    parser = CommandParser(
        prog="cppo",
        description="Plan, run and report ablations of CPPO (arXiv 2606.10968).",
        epilog="Runs are tracked in MLflow, in the store that MLFLOW_TRACKING_URI names (default: sqlite:///mlflow.db "
        "in the working folder).",
    )
    parser.add_argument("--version", action="version", version=f"cppo {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if chosen in (name, None):
            family = import_module(f"cppo_lab.cli.{module}")
            command.set_defaults(command=getattr(family, name, None))  # else its arguments say it
            getattr(family, f"{name}_arguments")(command)
    for words, leaf in leaves(parser).items():
        leaf.set_defaults(name=words)
        if not any("--json" in action.option_strings for action in leaf._actions):
            leaf.add_argument("--json", action="store_true", help=_JSON)
    return parser


def subcommands(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """The parsers of a parser's subcommands, by name; none for a parser that has no subcommands."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            return dict(action.choices)
    return {}


def leaves(parser: ArgumentParser, name: str = "") -> dict[str, ArgumentParser]:
    """Every command that does something, by its words: `plan`, `data check`."""
    below = subcommands(parser)
    if not below:
        return {name: parser}
    return {
        words: leaf
        for key, command in below.items()
        for words, leaf in leaves(command, f"{name} {key}".strip()).items()
    }


def add_sweep(
    command: CommandParser, metavar: str = "SWEEP", text: str = SWEEP, optional: bool = False
) -> None:
    """A sweep, of whose runs the overrides select some."""
    command.lists_groups = True
    command.add_value("sweep", metavar, text, nargs="?" if optional else None)
    command.add_values("overrides", "KEY=VALUE", _OVERRIDES)


def add_runs(command: CommandParser) -> None:
    """Runs by their ids."""
    command.add_values("--run", "ID", f"{SOME_RUN}; repeatable")


def add_keep_going(command: CommandParser) -> None:
    """Of commands that train."""
    command.add_flag("--keep-going", help="begin all runs, even if the first three fail with the same error")


def add_within(command: CommandParser) -> None:
    """Where else a run may be looked for."""
    command.add_values(
        "--in", "SWEEP", "also search this sweep or file for the run; repeatable", dest="within"
    )


def add_listing(command: CommandParser) -> None:
    """Which runs a command lists, and in which form."""
    command.add_value("--state", "STATE,...", f"list only runs in these states: {', '.join(schema.STATES)}")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=_JSON)
    form.add_argument("--csv", action="store_true", help="print CSV, one line per run")


def parse_states(text: str | None) -> frozenset[str]:
    """The states in a comma-separated list; none without it.

    Raises UserError for a state that does not exist.
    """
    names = [] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in schema.STATES:
            raise unknown("state", name, schema.STATES)
    return frozenset(names)


def typed(options: Namespace, *more: str) -> str:
    """Sweep and overrides as a shell takes them, for a command that is shown."""
    return shlex.join([options.sweep, *options.overrides, *more])


def answer(options: Namespace, values: Mapping[str, Any], text: object = None) -> int:
    """What the command answers: with --json the object of `values`, which `main` prints once the command has ended, or
    `options.answer_now`; else the `text`, if there is any. Returns the exit code of what is done.
    """
    if options.json:
        options.answer = dict(values)
    elif text is not None:
        print(text)
    return Exit.DONE


def document(options: Namespace, code: int, error: str | None = None) -> str:
    """The whole object as text. What is no number (NaN, infinity) is null: JSON has none of them."""
    heading = {"schema": SCHEMA, "command": options.name, "exit_code": int(code), "error": error}
    values = {} if error is not None else options.answer or {}
    return json.dumps(_finite(heading | values), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value if value is None or isinstance(value, str | int) else str(value)


@contextlib.contextmanager
def exclusive_output() -> Iterator[IO[str]]:
    """A stream to standard output, where nothing else is printed meanwhile: that goes to standard error, also of
    processes that are started."""
    before = sys.stdout
    before.flush()
    try:
        is_stdout = before.fileno() == 1
    except OSError:  # a test's
        is_stdout = False
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        alone = os.fdopen(os.dup(stdout), "w", encoding="utf-8") if is_stdout else None
        with contextlib.redirect_stdout(sys.stderr), alone or contextlib.nullcontext(before) as out:
            yield out
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


class Exit(IntEnum):
    """The exit codes of every command; `docs/commands.md` and `cppo --help` have them too."""

    DONE = 0
    NO = 1
    USAGE = 2
    STORE_AWAY = 3
    RUNS_FAILED = 4
    PACKAGE = 5
    INTERRUPTED = 130
    READER_GONE = 141


MEANINGS = {
    Exit.DONE: "done; for commands that answer a question: yes",
    Exit.NO: "not everything is done (runs are left, partial or cancelled); for commands that answer a question: no",
    Exit.USAGE: "bad input: an argument, a key, a file or a folder; nothing was started",
    Exit.STORE_AWAY: "the tracking store does not exist, cannot be reached or cannot be read",
    Exit.RUNS_FAILED: "runs have failed with an error",
    Exit.PACKAGE: "a package that the command needs is not installed",
    Exit.INTERRUPTED: "interrupted; run the same command to continue",
    Exit.READER_GONE: "the program that reads the output has exited, as `head` does early",
}


def width() -> int | None:
    """Columns of the terminal; None where standard output is none: what reads it wants whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def coloured() -> bool:
    """Whether standard output may be coloured: it is a terminal, and NO_COLOR (no-color.org) does not forbid it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def passing(text: str, piped: bool = False) -> None:
    """Say what goes on, on a line of standard error that the next line replaces, an empty line by nothing. Where that
    is no terminal, nothing is said or, if it may be `piped`, a line.
    """
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text and f'{text} ...'}", end="", file=sys.stderr, flush=True)
    elif piped and text:
        say(f"cppo: {text}")


def counter(what: str) -> Callable[[int, int], None]:
    """Shows how many of how many are through, on one line of standard error; nothing where that is no terminal."""

    def show(done: int, of: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == of else ""
            print(f"\r{done}/{of} {what}", end=end, file=sys.stderr, flush=True)

    return show


def load_checked(options: Namespace) -> "Sweep | Study | Search":
    """`load_sweep`, whose error also has the mistakes that only a plan, or `resolve`, finds."""
    from cppo_lab.sweep.file import Search, SweepFaults, load_sweep
    from cppo_lab.sweep.plan import make_plan

    try:
        return load_sweep(options.sweep)
    except SweepFaults as error:
        faults, kind = [str(error)], "sweep"
        try:
            if isinstance(error.sound, Search):
                from cppo_lab.search.space import resolve

                kind = "search"
                resolve(error.sound, options.overrides)
            elif error.sound is not None:
                make_plan(error.sound, options.overrides)
        except UserError as more:
            faults.append(str(more))
        raise together(faults, f"{kind} {options.sweep}: ") from None
