"""What every command of `cppo` has: its arguments, what several of them take, what it answers, and its exit codes.

COMMANDS lists all of them. Only the module of the command that is named is imported, once its arguments are read. With
`--json` a command prints an object, with the same heading for all; docs/commands.md is its schema: the keys of the
heading, and of each command.
"""

import contextlib
import json
import math
import os
import shlex
import shutil
import sys
import textwrap
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from importlib import import_module  # noqa: TID251  of the literal list COMMANDS
from pathlib import Path
from typing import IO, Any, NoReturn

from cppo_lab import __version__, schema
from cppo_lab.core_records import BUILT_IN, DEFAULT_CORE
from cppo_lab.errors import UserError, nearest, say, unknown
from cppo_lab.sweep.groups import groups

SCHEMA = 1  # of the answers with --json: keys may be added; none is removed, or changes its meaning
PARQUET, CSV = FORMATS = "parquet", "csv"
_RUN = "run id, or a prefix of it (at least 4 digits), of a launched run or of one in a sweep file here or of --in"
_SOME_RUN = "run id, or a prefix of it"
_SWEEP = "name of a shipped sweep or study, or path of a sweep file"
_EVERY_RUN = f"{_SWEEP} (default: every known run)"
_OVERRIDES = (
    "configuration overrides in Hydra's syntax, for example rule.delta=0.1 training.t_stop=20 launcher=inline. "
    "model=, variant= and the sweep's axes (seed=0,1,2) select which runs to use."
)


class UsageError(UserError):
    """A mistake in the arguments of `command`, with the lines that say how it is called."""

    def __init__(self, text: str, command: str, usage: str) -> None:
        super().__init__(text)
        self.command, self.usage = command, usage


class CommandParser(ArgumentParser):
    """The parser of `cppo`, whose `leaves` are those of its commands by their words; or of a command. Where that takes
    overrides, its help lists the groups.
    """

    leaves: "dict[str, CommandParser]"
    lists_groups = False

    def error(self, message: str) -> NoReturn:
        """One line on the mistake, as for every other, with the usage of the command beside it."""
        text = f"{message}: see `{self.prog} --help`"
        raise UsageError(text, self.prog.removeprefix("cppo").strip(), self.format_usage())

    def _check_value(self, action: Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            option = "/".join(action.option_strings)
            kind = f"value of {option}" if option else str(action.metavar).lower()
            self.error(str(unknown(kind, value, map(str, action.choices))))

    def format_help(self) -> str:
        """The help text; conf/ is read only now."""
        text = super().format_help()
        if self._subparsers:
            codes = (f"  {code.value:>3}  {meaning}\n" for code, meaning in MEANINGS.items())
            text += f"\nexit codes:\n{''.join(codes)}"
        if not self.lists_groups:
            return text
        lines = [
            textwrap.fill(", ".join(options), 100, initial_indent=f"  {name}=", subsequent_indent="      ")
            for name, options in groups().items()
        ]
        return "\n".join([text, "configuration groups (GROUP=OPTION):", *lines, ""])


Argument = tuple[tuple[str, ...], dict[str, Any]]  # of `add_argument`


def flag(name: str, help: str, *short: str, **how: Any) -> Argument:
    """An option without a value."""
    return (*short, name), {"help": help, "action": "store_true", **how}


def value(name: str, metavar: str | None, help: str, **how: Any) -> Argument:
    """An argument, or an option with a value."""
    return (name,), {"metavar": metavar, "help": help, **how}


def values(name: str, metavar: str, help: str, **how: Any) -> Argument:
    """Any number of arguments, or an option that can be repeated."""
    many: dict[str, Any] = {"action": "append"} if name.startswith("-") else {"nargs": "*"}
    return value(name, metavar, help, default=[], **many, **how)


def sweep(metavar: str = "SWEEP", text: str = _SWEEP, **how: Any) -> tuple[Argument, Argument]:
    """A sweep, of whose runs the overrides select some."""
    return value("sweep", metavar, text, **how), _SELECTING


def amount(text: str) -> float:
    """A number of 0 or more. Raises ValueError, which argparse reports."""
    if not 0 <= (number := float(text)) < math.inf:
        raise ValueError
    return number


_SELECTING = values("overrides", "KEY=VALUE", _OVERRIDES)
_JSON = flag("--json", "print one JSON object and nothing else to standard output (docs/commands.md)")
# Which runs a command lists, and in which form.
_LISTING = (
    value("--state", "STATE,...", f"list only runs in these states: {', '.join(schema.STATES)}"),
    _JSON,
    flag("--csv", "print CSV, one line per run"),
)
_RUNS = values("--run", "ID", f"{_SOME_RUN}; repeatable")
_ONE_RUN = value("run", "RUN", _SOME_RUN)
_ANY_RUN = value("run", "RUN", _RUN)
_STEP = value("--step", "S", "a step with a validation (default: the newest)", type=int)
_KEEP_GOING = flag("--keep-going", "begin all runs, even if the first three fail with the same error")
_WITHIN = values("--in", "SWEEP", "also search this sweep or file for the run; repeatable", dest="within")
_OUT = value("--out", "DIR", "output folder, new or empty; created atomically", type=Path, required=True)


class Command:
    """A command: what it does, and its arguments. `place`: the module with its function, which is called as the command
    or `module:function`; empty if the command has commands below it. `shown`: what else its help shows.
    """

    def __init__(self, place: str, text: str, *arguments: Argument, **shown: Any) -> None:
        self.place, self.text, self.shown = place, text, shown
        self.arguments = arguments if _JSON in arguments else (*arguments, _JSON)


_EXPORTED = "export a run's best checkpoint in Hugging Face format, with a model card"
COMMANDS = {
    "list": Command(
        "names:list_names",
        "list sweeps, models, rules or keys, a line each",
        value(
            "what",
            "KIND",
            "sweeps (default; also those of the working folder and its folder `sweeps`), models, rules, or keys of the "
            "configuration with their defaults",
            nargs="?",
            choices=["sweeps", "models", "rules", "keys"],
            default="sweeps",
        ),
        values(
            "overrides",
            "KEY=VALUE",
            "with keys: overrides of the configuration that is listed, for example core=exact model=exact_early",
        ),
    ),
    "new": Command(
        "names",
        "write a first sweep file, which runs as it is",
        value("sweep_name", "NAME", "name of the sweep: letters, digits, `_` and `-`"),
    ),
    "plan": Command(
        "training",
        "list the runs of a sweep with their ids, states and cost",
        *sweep(text=f"{_SWEEP}; without it, the sweeps are listed", nargs="?"),
        *_LISTING,
        flag(
            "--power",
            "show what the planned runs can decide: the power of each claim or, without claims, which difference "
            "between two methods the seeds can show",
        ),
        value(
            "--deviation",
            "POINTS,...",
            "with --power: the standard deviations over seeds to assume (default: 1,2; for the sweep's own hypotheses "
            "on core=mini 5,10; without claims that of finished runs)",
        ),
        value(
            "--correlation",
            "R",
            "with --power: the correlation of runs of the same seed to assume (default: 0)",
        ),
        value(
            "--error-deviation",
            "PERCENT,...",
            "with --power: for hypotheses about the surrogate's error, the standard deviations over seeds of the log "
            "ratio of errors to assume (default: 30,60)",
        ),
        value(
            "--effect",
            "POINTS|table1",
            "with --power: the true lead to assume (default: the paper's final means, or with table1 its Table 1; for "
            "the sweep's own hypotheses twice the smallest lead that counts)",
        ),
    ),
    "show": Command(
        "training",
        "print the resolved configuration of a run, or of the runs of a sweep",
        *sweep("SWEEP|RUN", f"{_SWEEP}; or {_RUN}"),
        _WITHIN,
        value("--run", "ID", "print only the run with this id or prefix"),
        flag("--verl", "also print verl's full configuration of each run"),
    ),
    "diff": Command(
        "training",
        "show how two runs differ",
        *(value(side, "RUN", _RUN) for side in ("left", "right")),
        _WITHIN,
    ),
    "launch": Command(
        "training",
        "train the unfinished runs of a sweep",
        *sweep(),
        flag("--dry-run", "only list what would be trained; write nothing"),
        flag(
            "--replace",
            "retrain runs that another code version finished; each old result is deleted once the new one is finished",
        ),
        flag(
            "--without-store",
            "if the tracking store does not answer, also train runs that may have been finished elsewhere",
        ),
        *(
            value(
                name,
                metavar,
                f"start no run, in the plan's order, with which the sweep exceeds this: {what}",
                type=amount,
            )
            for name, metavar, what in (
                ("--max-gpu-hours", "H", "GPU-hours used and to come, by the estimates of `cppo plan`"),
                ("--max-disk", "GB", "disk for best weights and checkpoints in training, by the same"),
            )
        ),
        flag(
            "--until-decided",
            "train seed by seed until the sweep's hypotheses, all of them sequential, are decided",
        ),
        value("--max-seeds", "N", "with it: end after so many of the test seeds", type=int),
        flag(
            "--stop-hopeless",
            "stop runs with early signs of a collapse: they have no result, and a launch without this resumes them",
        ),
        _KEEP_GOING,
    ),
    "pull": Command(
        "training",
        "ask the tracking store which runs were finished elsewhere, and note them in the folder of runs",
        *sweep(),
    ),
    "preflight": Command(
        "training",
        "run a short test job for each kind of run (core=verl): does it start, does it fit, and what will it cost",
        *sweep(),
        flag("--again", "repeat measurements whose results are already stored"),
        flag("--show", "only show stored results"),
        flag(
            "--random-weights",
            "measure with random weights of the same shapes and with generated problems; needs no download",
        ),
    ),
    "status": Command(
        "monitoring",
        "show the state of runs, whoever launched them",
        *sweep(text=_EVERY_RUN, nargs="?"),
        *_LISTING,
        value(
            "--sort",
            None,
            "sort by a score, highest first: that of the last validation, that of the best validation, or the mean "
            "over the validations in the last 30 %% of the run",
            choices=["last", "best", "final-mean"],
        ),
        flag("--repair", "first clean up after killed runs, also in MLflow"),
    ),
    "watch": Command(
        "monitoring",
        "show the state of runs until all have ended; the exit code is 0 if all are done",
        *sweep(text=_EVERY_RUN, nargs="?"),
        value("--every", "SECONDS", "refresh interval (default: 5)", type=float, default=5.0),
        value(
            "--notify",
            "COMMAND",
            "run this command when all runs have ended, without a shell, with CPPO_SWEEP, CPPO_DONE, CPPO_FAILED and "
            "CPPO_LEFT in its environment",
        ),
    ),
    "dash": Command(
        "ui",
        "serve a page of a sweep that renews itself: the report, states of runs and time left",
        *sweep(),
        value("--every", "SECONDS", "time between updates (default: 30)", type=float, default=30.0),
        value("--port", "N", "port (default: the first free one from 5000)", type=int),
    ),
    "logs": Command(
        "monitoring",
        "print a run's output",
        _ONE_RUN,
        flag("--follow", "keep printing until the run has ended", "-f"),
        flag("--all", "print the output of every attempt, newest last"),
    ),
    "cancel": Command(
        "monitoring",
        "stop runs cleanly, and remove queued runs from the queue",
        *sweep(text=f"{_SWEEP}; or use --run", nargs="?"),
        _RUNS,
        flag("--queued", "cancel only runs that have not started"),
        flag("--dry-run", "only list what would be cancelled"),
    ),
    "retry": Command(
        "monitoring",
        "retrain runs that failed with an error, or finished ones",
        *sweep(),
        flag("--failed", "retrain all failed runs of the sweep"),
        flag("--dry-run", "only list what would be trained"),
        _KEEP_GOING,
        _RUNS,
        flag(
            "--finished",
            "with --run: retrain finished runs; each old result is deleted once the new one is finished",
        ),
    ),
    "sync": Command(
        "monitoring",
        "after a crash or an outage, upload metrics that never reached the tracking store",
        _RUNS,
        flag("--watch", "keep uploading the metrics of running runs until Ctrl-C"),
        flag("--dry-run", "only list the runs that have metrics to upload"),
    ),
    "note": Command(
        "monitoring",
        "write a note or tags on a run, for MLflow and the report",
        _ONE_RUN,
        values("words", "TEXT", "added to the run's note"),
        values("--tag", "KEY=VALUE", "repeatable"),
    ),
    "clean": Command(
        "monitoring",
        "show what runs take on the disk, by sweep, and free what is not needed",
        *sweep(text=_EVERY_RUN, nargs="?"),
        flag(
            "--checkpoints", "free the weights of finished runs: `cppo export` cannot export these any more"
        ),
        flag("--superseded", "free the results that newer results of the same runs replaced"),
        flag("--code", "free the copies of the code that no job in Slurm's queue reads"),
        flag("--yes", "do not ask"),
    ),
    "archive": Command(
        "exporting",
        "put a sweep's configurations, records and report into one file",
        *sweep(),
        value("--out", "FILE", "a new ZIP file", type=Path, required=True),
    ),
    "tune": Command(
        "training",
        "search for the best constants with Optuna; run it again to resume",
        *sweep(),
        value(
            "--storage",
            "URL",
            "where the study is stored: sqlite:///FILE.db, PATH.journal or postgresql://... (default: OPTUNA_STORAGE, "
            "or sqlite:///optuna.db in the working folder)",
        ),
        flag("--dry-run", "only show the search and its remaining trials"),
        value("--study", "NAME", "name of the study (default: SEARCH-MODEL)"),
        value("--trials", "N", "total number of trials; overrides the number in the file", type=int),
    ),
    "report": Command(
        "reporting",
        "write tables, curves and the report page of a sweep",
        *sweep(text=f"{_SWEEP}; or a file of `cppo archive`"),
        value("--out", "DIR", "output folder (default: reports/build/SWEEP)", type=Path),
        value(
            "--from",
            None,
            "report your runs (default) or the paper's curves (main and study; see `cppo reference import`)",
            dest="source",
            choices=["runs", "paper"],
            default="runs",
        ),
        flag("--partial", "report even if runs are missing"),
        flag(
            "--watch",
            "with --partial: update the report repeatedly, until every run is a result or until Ctrl-C",
        ),
        value(
            "--every", "SECONDS", "with --watch: time between updates (default: 60)", type=float, default=60.0
        ),
        value(
            "--palette",
            None,
            "colours of the figures: those of the paper (default), or a palette for colour-blind readers and "
            "black-and-white prints, with dashes and markers",
            choices=["paper", "colorblind"],
            default="paper",
        ),
        value(
            "--figures",
            "KEY=VALUE,...",
            "how the figures are set, for a paper: width=3.3in (or cm, mm, pt), font=serif (or sans, or an installed "
            "family), size=8pt",
        ),
        value("--study", "NAME", "for a search: name of its study (default: SEARCH-MODEL)"),
        flag(
            "--no-log", "do not upload page, figures and verdicts to MLflow", dest="log", action="store_false"
        ),
    ),
    "compare": Command(
        "reporting",
        "show how two reports differ",
        *(
            value(side, "REPORT", "folder of a report, or the sweep that it belongs to")
            for side in ("before", "after")
        ),
    ),
    "reference": Command("", "import the paper's own curves"),
    "reference import": Command(
        "reporting", "load the paper's curves as runs of the MLflow experiment `paper`"
    ),
    "export": Command(
        "",
        "export a run's best checkpoint in Hugging Face format, or the metrics of a sweep as tables",
        description="ACTION may be left out: `cppo export RUN --out DIR` means `cppo export model RUN --out DIR`.",
    ),
    "export model": Command(
        "exporting",
        _EXPORTED,
        value("run", "RUN", "run id, or a prefix of it (at least 4 digits)"),
        _OUT,
        prog="cppo export",
        description=f"{_EXPORTED[0].upper()}{_EXPORTED[1:]}. Load it with from_pretrained. verl's shards are "
        "merged and keep their precision; the embedded core's transformer becomes a Qwen3. "
        "Progress goes to standard error, the folder's path to standard output. See docs/verl.md.",
    ),
    "export metrics": Command(
        "exporting",
        "export the metrics that the runs of a sweep have logged (docs/notebook.md)",
        *sweep(),
        value(
            "--format",
            None,
            "of the tables `runs`, `history` and `outcomes` (default: parquet)",
            choices=FORMATS,
            default=PARQUET,
        ),
        _OUT,
        flag("--force", "replace an earlier export of metrics in DIR"),
        value(
            "--metrics",
            "PATTERN,...",
            "export only these metrics, for example 'val/*,train/reward' (default: all)",
        ),
        value(
            "--from",
            None,
            "export your runs (default) or the paper's curves (main, study and the ablations; without overrides)",
            dest="source",
            choices=["runs", "paper"],
            default="runs",
        ),
    ),
    "evaluate": Command(
        "exporting",
        "ask finished runs the problems of a benchmark that was not in their training",
        *sweep("SWEEP|RUN", f"{_SWEEP}, whose finished runs are asked; or {_SOME_RUN}"),
        value(
            "--benchmark",
            "NAME",
            "an option of the group `data`, as for data=NAME; with core=verl also a file (.jsonl or .parquet) with "
            "`problem` and `answer`",
            required=True,
        ),
    ),
    "samples": Command(
        "exporting",
        "print the prompts and responses that a run has stored",
        _ANY_RUN,
        _STEP,
        value("--problem", "ID", "print only this problem (id or prefix)"),
        flag("--wrong", "print only wrong responses"),
    ),
    "replay": Command(
        "exporting",
        "apply another rule's mask to the training tokens that a run has stored, without training",
        _ANY_RUN,
        _STEP,
        value("--rule", "NAME", "rule to apply (default: the run's own)"),
        values(
            "overrides",
            "KEY=VALUE",
            "constants of the rule (delta=0.1), or divergence=binary_kl to use another D_t of the sampled tokens",
        ),
    ),
    "ui": Command(
        "ui",
        "serve the MLflow UI for the tracking store until Ctrl-C",
        value("--port", "N", "port (default: the first free port from 5000)", type=int),
        value(
            "--host",
            "ADDRESS",
            "address to listen on (default: 127.0.0.1, which only this machine can reach)",
            default="127.0.0.1",
        ),
        flag("--open", "also open a browser"),
        value(
            "--report",
            "DIR",
            "also print the address of the report in DIR, with links to its runs",
            type=Path,
        ),
    ),
    "data": Command("", "prepare or check the training and validation sets of the verl core"),
    "data prepare": Command(
        "environment",
        "write DAPO-Math-17k and AIME 2024 to 2026 in verl's format",
        value(
            "--from",
            "SOURCE",
            "hub (downloads 300 MB), a .jsonl or .parquet file or a folder of them, or sample (default), which is the "
            "8 training problems and the AIME problems shipped with this package; a row has problem or messages, and "
            "answer",
            dest="source",
            default="sample",
        ),
        values("--validation", "NAME=FILE", "your validation set, in place of those of AIME; repeatable"),
        flag("--skip", "skip and count damaged rows; without it, the first is an error"),
        value("--out", "DIR", "output folder (default: data)", type=Path, default=Path("data")),
    ),
    "data check": Command(
        "environment",
        "verify the checksums of prepared data",
        value("folder", "DIR", "a folder written by `cppo data prepare`", type=Path),
    ),
    "doctor": Command(
        "environment",
        "check what this machine lacks for a run, and say how to fix it",
        value(
            "--core",
            "CORE",
            f"trainer core: {' or '.join(BUILT_IN)} (default: {DEFAULT_CORE})",
            default=DEFAULT_CORE,
        ),
        values(
            "overrides",
            "KEY=VALUE",
            "overrides of the run to check for, for example model=tiny_qwen3 layout=two_nodes paths.data=/data",
        ),
    ),
    "completion": Command(
        "names",
        "print a script with which a shell completes commands, sweeps, variants and run ids",
        value(
            "shell",
            "SHELL",
            'bash: add `eval "$(cppo completion bash)"` to ~/.bashrc; zsh: add `eval "$(cppo completion zsh)"` to '
            "~/.zshrc, after `compinit`; fish: cppo completion fish > ~/.config/fish/completions/cppo.fish",
            choices=["bash", "fish", "zsh"],
        ),
    ),
}


def parse(arguments: Sequence[str]) -> Namespace:
    """What the user asked for. Overrides may come before and after options."""
    given = list(arguments)
    if given[:1] == ["export"] and not {*given[1:2]} <= {"model", "metrics", "-h", "--help"}:
        given.insert(1, "model")  # a run: no run's id is a word
    parser = build_parser(next((word for word in given if word in COMMANDS), ""))
    options, remaining = parser.parse_known_args(given)
    # argparse gives all of KEY=VALUE..., or of a note's words, to the first gap that it finds; those after an option
    # remain.
    words = "words" if "words" in options else "overrides"
    if any(text.startswith("-") for text in remaining) or (remaining and words not in options):
        leaf = parser.leaves[options.name]
        leaf.error(f"unrecognized arguments: {' '.join(remaining)}{_meant(leaf, *remaining[:2])}")
    if remaining:
        setattr(options, words, [*getattr(options, words), *remaining])
    return options


def _meant(leaf: CommandParser, word: str, value: str = "VALUE") -> str:
    """What an unknown option may have meant: another option, or a key, which has no dashes."""
    name, _, given = word.partition("=")
    if near := nearest(name, leaf._option_string_actions):
        return f": did you mean {' or '.join(near)}?"
    key = name.lstrip("-")
    key = key if "." in key else key.removesuffix("s")
    if not leaf.lists_groups or not ("." in key or key in {"seed", "variant", *groups()}):
        return ""
    return f": overrides have no dashes: {key}={given or value}"


def build_parser(chosen: str | None = None) -> CommandParser:
    """The parser of the command line, with the arguments of the command `chosen`, or of all (None)."""
    parser = CommandParser(
        prog="cppo",
        description="Plan, run and report ablations of CPPO (arXiv 2606.10968).",
        epilog="Runs are tracked in MLflow, in the store that MLFLOW_TRACKING_URI names (default: sqlite:///mlflow.db "
        "in the working folder).",
    )
    parser.add_argument("--version", action="version", version=f"cppo {__version__}")
    parser.leaves = {}
    actions: dict[str, Any] = {"": parser.add_subparsers(metavar="COMMAND", required=True)}
    for words, command in COMMANDS.items():
        group, _, name = words.rpartition(" ")
        if group not in actions:
            continue
        leaf = actions[group].add_parser(name, help=command.text, **command.shown)
        if chosen not in (words.partition(" ")[0], None):
            continue
        if not command.place:
            actions[words] = leaf.add_subparsers(metavar="ACTION", required=True)
            continue
        parser.leaves[words] = leaf
        leaf.set_defaults(name=words)
        leaf.lists_groups = _SELECTING in command.arguments
        form = leaf.add_mutually_exclusive_group()
        for names, how in command.arguments:
            (form if names[0] in ("--json", "--csv") else leaf).add_argument(*names, **how)
    return parser


def carry_out(options: Namespace) -> int:
    """Call the function of the command."""
    place = COMMANDS[options.name].place
    if options.name == "plan" and options.sweep is None:
        place = COMMANDS["list"].place
    module, _, name = place.partition(":")
    function = getattr(import_module(f"cppo_lab.cli.{module}"), name or options.name.replace(" ", "_"))
    return int(function(options))


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
    text = json.dumps(
        heading | values, default=lambda value: dict(value) if isinstance(value, Mapping) else str(value)
    )
    return json.dumps(json.loads(text, parse_constant=lambda _: None), indent=1)


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
