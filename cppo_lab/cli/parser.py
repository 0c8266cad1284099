"""The arguments of `cppo`: its subcommands, their arguments, and the function of each."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cppo_lab import __version__
from cppo_lab.cli import (
    comparing,
    completion,
    environment,
    preflight,
    reporting,
    searching,
    theory,
    training,
    ui,
)
from cppo_lab.cli.answers_parser import add_answers
from cppo_lab.cli.command_parser import (
    RUN,
    CommandParser,
    Commands,
    add_listing,
    add_sweep,
    finish,
    leaves,
)
from cppo_lab.cli.exporting_parser import add_export, with_action
from cppo_lab.cli.monitoring_parser import add_monitoring
from cppo_lab.core_records import BUILT_IN, DEFAULT_CORE


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the user asked for; overrides may come before and after options."""
    parser = build_parser()
    given = sys.argv[1:] if arguments is None else arguments
    options, rest = parser.parse_known_args(with_action(given))
    # argparse gives all of KEY=VALUE... to the first gap that it finds; those after an option are left over.
    if any(text.startswith("-") for text in rest) or (rest and "overrides" not in options):
        leaves(parser)[options.name].error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; the chosen function is `command` of what it returns."""
    parser = CommandParser(
        prog="cppo",
        description="Plan, run and report ablations of CPPO (arXiv 2606.10968).",
        epilog="Runs are tracked in MLflow, in the store that MLFLOW_TRACKING_URI names (default: sqlite:///mlflow.db "
        "in the working folder).",
    )
    parser.add_argument("--version", action="version", version=f"cppo {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    _add_training(commands)
    add_monitoring(commands)
    _add_searching(commands)
    _add_reporting(commands)
    add_export(commands)
    add_answers(commands)
    _add_ui(commands)
    _add_theory(commands)
    _add_data(commands)
    _add_doctor(commands)
    _add_completion(commands)
    finish(parser)
    return parser


def _add_training(commands: Commands) -> None:
    plan = add_sweep(
        commands,
        "plan",
        training.plan,
        "list the runs of a sweep with their ids, states and cost",
    )
    add_listing(plan)
    plan.add_argument(
        "--power", action="store_true", help="show the statistical power of each claim with the planned runs"
    )
    plan.add_argument(
        "--deviation",
        metavar="POINTS,...",
        help="with --power: the standard deviations over seeds to assume (default: 1,2; for the sweep's own hypotheses "
        "on core=mini 5,10)",
    )
    plan.add_argument(
        "--correlation",
        metavar="R",
        help="with --power: the correlation of runs of the same seed to assume (default: 0)",
    )
    plan.add_argument(
        "--error-deviation",
        metavar="PERCENT,...",
        help="with --power: for hypotheses about the surrogate's error, the standard deviations over seeds of the log "
        "ratio of errors to assume (default: 30,60)",
    )
    plan.add_argument(
        "--effect",
        metavar="POINTS",
        help="with --power: the true lead to assume (default: the paper's final means; for the sweep's own hypotheses "
        "twice the smallest lead that counts)",
    )
    show = add_sweep(
        commands,
        "show",
        training.show,
        "print the resolved configuration of a run, or of the runs of a sweep",
        metavar="sweep|run",
    )
    _add_within(show)
    show.add_argument("--run", metavar="ID", help="print only the run with this id or prefix")
    show.add_argument("--verl", action="store_true", help="also print verl's full configuration of each run")
    diff = commands.add_parser("diff", help="show how two runs differ")
    diff.set_defaults(command=training.diff)
    for side in ("left", "right"):
        diff.add_argument(side, metavar="RUN", help=RUN)
    _add_within(diff)
    launch = add_sweep(commands, "launch", training.launch, "train the unfinished runs of a sweep")
    launch.add_argument(
        "--dry-run", action="store_true", help="only list what would be trained; write nothing"
    )
    launch.add_argument(
        "--replace",
        action="store_true",
        help="retrain runs that another code version finished; each old result is deleted once the new one is finished",
    )
    launch.add_argument(
        "--without-store",
        action="store_true",
        help="if the tracking store does not answer, also train runs that may have been finished elsewhere",
    )
    add_sweep(
        commands,
        "pull",
        training.pull,
        "ask the tracking store which runs were finished elsewhere, and note them in the folder of runs",
    )
    flight = add_sweep(
        commands,
        "preflight",
        preflight.preflight,
        "run a short test job for each kind of run (core=verl): does it start, does it fit, and what will it cost",
    )
    flight.add_argument(
        "--again", action="store_true", help="repeat measurements whose results are already stored"
    )
    flight.add_argument("--show", action="store_true", help="only show stored results")
    flight.add_argument(
        "--random-weights",
        action="store_true",
        help="measure with random weights of the same shapes and with generated problems; needs no download",
    )


def _add_within(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--in",
        dest="within",
        action="append",
        default=[],
        metavar="SWEEP",
        help="also search this sweep or file for the run; repeatable",
    )


def _add_searching(commands: Commands) -> None:
    tune = add_sweep(
        commands, "tune", searching.tune, "search for the best constants with Optuna; run it again to resume"
    )
    tune.add_argument(
        "--storage",
        metavar="URL",
        help="where the study is stored: sqlite:///FILE.db, PATH.journal or postgresql://... (default: OPTUNA_STORAGE, "
        "or sqlite:///optuna.db in the working folder)",
    )
    tune.add_argument("--dry-run", action="store_true", help="only show the search and its remaining trials")
    tune.add_argument("--study", metavar="NAME", help="name of the study (default: SEARCH-MODEL)")
    tune.add_argument(
        "--trials", type=int, metavar="N", help="total number of trials; overrides the number in the file"
    )


def _add_reporting(commands: Commands) -> None:
    report = add_sweep(
        commands, "report", reporting.report, "write tables, curves and the report page of a sweep"
    )
    report.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder (default: reports/build/SWEEP)"
    )
    report.add_argument(
        "--from",
        dest="source",
        choices=["runs", "paper"],
        default="runs",
        help="report your runs (default) or the paper's curves (main and study; see `cppo reference import`)",
    )
    report.add_argument("--partial", action="store_true", help="report even if runs are missing")
    report.add_argument(
        "--watch",
        action="store_true",
        help="with --partial: update the report repeatedly, until every run is a result or until Ctrl-C",
    )
    report.add_argument(
        "--every",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="with --watch: time between updates (default: 60)",
    )
    report.add_argument(
        "--palette",
        choices=["paper", "colorblind"],
        default="paper",
        help="colours of the figures: those of the paper (default), or a palette for colour-blind readers and "
        "black-and-white prints, with dashes and markers",
    )
    report.add_argument(
        "--study", metavar="NAME", help="for a search: name of its study (default: SEARCH-MODEL)"
    )
    report.add_argument("--force", action="store_true", help="rebuild everything, even if nothing changed")
    report.add_argument(
        "--no-log",
        dest="log",
        action="store_false",
        help="do not upload page, figures and verdicts to MLflow",
    )
    compare = commands.add_parser("compare", help="show how two reports differ")
    compare.set_defaults(command=comparing.compare)
    for side in ("before", "after"):
        compare.add_argument(
            side, metavar="REPORT", help="folder of a report, or the sweep that it belongs to"
        )
    reference = commands.add_parser("reference", help="import the paper's own curves")
    actions = reference.add_subparsers(metavar="ACTION", required=True)
    load = actions.add_parser(
        "import", help="load the paper's curves as runs of the MLflow experiment `paper`"
    )
    load.set_defaults(command=reporting.reference_import)


def _add_theory(commands: Commands) -> None:
    bounds = commands.add_parser("bounds", help="print the constants of CPPO's bounds, compared with DPPO's")
    # Read as text: argparse would answer a misspelt number with its usage as well.
    bounds.add_argument("--delta", default="0.15", help="token threshold (default: 0.15)")
    bounds.add_argument("--delta-b", default="0.02", help="prefix-budget rate (default: 0.02)")
    bounds.add_argument("--w-min", default="0.8", help="last position weight (default: 0.8)")
    bounds.add_argument("--horizon", default="8192", help="response length in tokens (default: 8192)")
    bounds.add_argument("--xi", default="1", help="largest absolute reward (default: 1)")
    bounds.set_defaults(command=theory.bounds)

    vectors = commands.add_parser("check-vectors", help="check the rules against a file of golden vectors")
    vectors.add_argument(
        "file", type=Path, metavar="FILE.npz", help="a file in the format of tests/oracles/vectors.npz"
    )
    vectors.set_defaults(command=theory.check_vectors)


def _add_ui(commands: Commands) -> None:
    page = commands.add_parser("ui", help="serve the MLflow UI for the tracking store until Ctrl-C")
    page.add_argument("--port", type=int, metavar="N", help="port (default: the first free port from 5000)")
    page.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1, which only this machine can reach)",
    )
    page.add_argument("--open", action="store_true", help="also open a browser")
    page.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="also print the address of the report in DIR, with links to its runs",
    )
    page.set_defaults(command=ui.ui)


def _add_data(commands: Commands) -> None:
    data = commands.add_parser(
        "data", help="prepare or check the training and validation sets of the verl core"
    )
    actions = data.add_subparsers(metavar="ACTION", required=True)
    prepare = actions.add_parser("prepare", help="write DAPO-Math-17k and AIME 2024 to 2026 in verl's format")
    prepare.add_argument(
        "--from",
        dest="source",
        default="sample",
        metavar="SOURCE",
        help="hub (downloads 300 MB), a .jsonl or .parquet file or a folder of them, or sample (default), which is the "
        "8 training problems and the AIME problems shipped with this package",
    )
    prepare.add_argument(
        "--out", type=Path, default=Path("data"), metavar="DIR", help="output folder (default: data)"
    )
    prepare.set_defaults(command=environment.data_prepare)
    check = actions.add_parser("check", help="verify the checksums of prepared data")
    check.add_argument("folder", type=Path, metavar="DIR", help="a folder written by `cppo data prepare`")
    check.set_defaults(command=environment.data_check)


def _add_completion(commands: Commands) -> None:
    shells = commands.add_parser(
        "completion", help="print a script with which a shell completes commands, sweeps, keys and run ids"
    )
    shells.add_argument(
        "shell",
        choices=sorted(completion.SCRIPTS),
        metavar="SHELL",
        help='bash: add `eval "$(cppo completion bash)"` to ~/.bashrc; zsh: add `eval "$(cppo completion zsh)"` to '
        "~/.zshrc, after `compinit`; fish: cppo completion fish > ~/.config/fish/completions/cppo.fish",
    )
    shells.set_defaults(command=completion.completion)


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor", help="check what this machine lacks for a run, and say how to fix it"
    )
    doctor.add_argument(
        "--core",
        default=DEFAULT_CORE,
        metavar="CORE",
        help=f"trainer core: {' or '.join(BUILT_IN)} (default: {DEFAULT_CORE})",
    )
    doctor.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="overrides of the run to check for, for example model=tiny_qwen3 layout=two_nodes paths.data=/data",
    )
    doctor.set_defaults(command=environment.doctor)
