"""The `cppo` command. Only the standard library is imported before a subcommand is chosen."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cppo_lab import __version__
from cppo_lab.errors import UserError

if TYPE_CHECKING:
    from cppo_lab.sweep.plan import Plan

OVERRIDES = (
    "configuration overrides, as in Hydra: rule.delta=0.1 training.t_stop=20 launcher=inline. "
    "model=, variant= and the sweep's axes (seed=0,1,2) choose what the sweep enumerates."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 done, 1 runs failed, 2 bad input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except UserError as error:
        print(f"cppo: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("cppo_lab"):
            raise
        print(f"cppo: error: {_missing_package(error.name or '')}", file=sys.stderr)
        return 2
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"cppo: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cppo: interrupted; the same command continues with what is left", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cppo",
        description="Plan, run and report ablations of CPPO (arXiv 2606.10968).",
        epilog="Runs are tracked in MLflow: MLFLOW_TRACKING_URI, or sqlite:///mlflow.db in the working folder.",
    )
    parser.add_argument("--version", action="version", version=f"cppo {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    plan = commands.add_parser("plan", help="list the runs of a sweep, their ids and what is already done")
    plan.set_defaults(command=_plan)
    launch = commands.add_parser("launch", help="train the runs of a sweep that are not done")
    launch.set_defaults(command=_launch)
    for command in (plan, launch):
        command.add_argument("sweep", help="name of a shipped sweep or study, or path to such a file")
        command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=OVERRIDES)

    report = commands.add_parser("report", help="write the tables, curves and page of a sweep")
    report.add_argument("sweep", help="name of a shipped sweep or study, or path to such a file")
    report.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="the overrides of the launch, if any"
    )
    report.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write (default: reports/build/SWEEP)"
    )
    report.add_argument(
        "--from",
        dest="source",
        choices=["runs", "paper"],
        default="runs",
        help="our own runs, or the paper's curves (main and study; see `cppo reference import`)",
    )
    report.add_argument(
        "--partial", action="store_true", help="report what is there although runs are missing"
    )
    report.set_defaults(command=_report)

    reference = commands.add_parser("reference", help="the paper's own curves")
    actions = reference.add_subparsers(metavar="ACTION", required=True)
    load = actions.add_parser(
        "import", help="load the paper's curves as runs of the MLflow experiment `paper`"
    )
    load.set_defaults(command=_reference_import)

    bounds = commands.add_parser("bounds", help="the constants of CPPO's bounds beside DPPO's")
    # Read as text: argparse would answer a misspelt number with its usage as well.
    bounds.add_argument("--delta", default="0.15", help="token threshold (default: 0.15)")
    bounds.add_argument("--delta-b", default="0.02", help="prefix-budget rate (default: 0.02)")
    bounds.add_argument("--w-min", default="0.8", help="last position weight (default: 0.8)")
    bounds.add_argument("--horizon", default="8192", help="response length in tokens (default: 8192)")
    bounds.add_argument("--xi", default="1", help="largest absolute reward (default: 1)")
    bounds.set_defaults(command=_bounds)

    vectors = commands.add_parser("check-vectors", help="check every array of a file of golden vectors")
    vectors.add_argument(
        "file", type=Path, metavar="FILE.npz", help="a file laid out as tests/oracles/vectors.npz"
    )
    vectors.set_defaults(command=_check_vectors)
    _add_data(commands)
    return parser


def _add_data(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    data = commands.add_parser("data", help="training and validation sets of the verl core")
    actions = data.add_subparsers(metavar="ACTION", required=True)
    prepare = actions.add_parser(
        "prepare", help="write DAPO-Math-17k and AIME 2024 to 2026 as verl reads them"
    )
    prepare.add_argument(
        "--from",
        dest="source",
        default="sample",
        metavar="SOURCE",
        help="hub (downloads 300 MB), a file or folder of .jsonl or .parquet, or sample (default): "
        "8 training problems and the AIME problems that come with this package",
    )
    prepare.add_argument(
        "--out", type=Path, default=Path("data"), metavar="DIR", help="where to write (default: data)"
    )
    prepare.set_defaults(command=_data_prepare)
    check = actions.add_parser("check", help="compare prepared data with its checksums")
    check.add_argument("folder", type=Path, metavar="DIR", help="a folder that `cppo data prepare` wrote")
    check.set_defaults(command=_data_check)


def _plan(options: argparse.Namespace) -> int:
    from collections import Counter

    from cppo_lab.sweep.launch import plan_states, table

    plan, uri = _planned(options)
    states = plan_states(plan, uri)
    print(f"{plan.name}: {plan.title}. {plan.question}\n")
    print(table(plan.runs, states))
    counts = Counter(state.state for state in states.values())
    print(f"\n{len(plan.runs)} runs: " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    return 0


def _launch(options: argparse.Namespace) -> int:
    import signal
    from collections import Counter

    from cppo_lab import schema
    from cppo_lab.sweep.launch import launch, table
    from cppo_lab.tracking.client import where_to_look

    plan, uri = _planned(options)
    # An orderly end on SIGTERM as on Ctrl-C: the runs are ended and recorded.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    states = launch(plan, uri)
    print(table(plan.runs, states))
    print(f"\nIn MLflow:\n  {where_to_look(uri, schema.experiment_name(plan.core))}")
    counts = Counter(state.state for state in states.values() if state.state not in schema.FINISHED)
    if counts:
        kinds = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        print(
            f"cppo: {counts.total()} of {len(states)} runs are not done ({kinds}): the same command goes on",
            file=sys.stderr,
        )
    return 1 if counts else 0


def _report(options: argparse.Namespace) -> int:
    import shlex

    out: Path = options.out or Path("reports/build") / Path(options.sweep).stem
    command = "cppo report " + shlex.join([options.sweep, *options.overrides])
    if options.source == "paper":
        page = _paper_report(options, out, f"{command} --from paper")
    else:
        page = _own_report(options, out, command)
    print(f"report: {page}")
    return 0


def _paper_report(options: argparse.Namespace, out: Path, command: str) -> Path:
    from cppo_lab import store
    from cppo_lab.reports.build import build_report, paper_request
    from cppo_lab.reports.study import build_study, paper_study_request

    if options.sweep not in ("main", "study") or options.overrides:
        asked = " ".join([options.sweep, *options.overrides])
        raise UserError(
            f"--from paper with {asked!r}: the paper's curves make the reports `main` and `study` and take no "
            "overrides: cppo report main --from paper"
        )
    uri = store.tracking_uri()
    if options.sweep == "study":
        return build_study(paper_study_request(uri, out, partial=options.partial, command=command))
    return build_report(paper_request(uri, out, partial=options.partial, command=command))


def _own_report(options: argparse.Namespace, out: Path, command: str) -> Path:
    from cppo_lab import schema, store
    from cppo_lab.analysis.grid import ExpectedRun, SweepGrid
    from cppo_lab.reports.build import ReportRequest, build_report
    from cppo_lab.reports.study import StudyRequest, build_study

    plan, uri = _planned(options)
    store.require_store(uri)
    experiment = schema.experiment_name(plan.core)
    grids = tuple(
        SweepGrid(
            sweep.name,
            sweep.title,
            sweep.question,
            tuple(
                ExpectedRun(run.run_id, run.spec.model.name, run.variants[sweep.name], run.spec.seed)
                for run in plan.runs
                if sweep.name in run.variants
            ),
        )
        for sweep in plan.sweeps
    )
    about = {"title": plan.title, "question": plan.question, "partial": options.partial, "command": command}
    if plan.is_study:
        return build_study(StudyRequest(plan.name, uri, experiment, grids, out, **about))
    return build_report(ReportRequest(plan.name, uri, experiment, grids[0].expected, out, **about))


def _reference_import(options: argparse.Namespace) -> int:
    from cppo_lab import store
    from cppo_lab.tracking.reference import import_reference

    uri = store.tracking_uri()
    added = import_reference(uri, lambda text: print(text, file=sys.stderr, flush=True))
    print(f"experiment `paper` in {uri}: {added} runs added")
    return 0


def _bounds(options: argparse.Namespace) -> int:
    from cppo_lab.calculator import bounds_table

    names = ("delta", "delta_b", "w_min", "xi")
    values = {name: _number(name, getattr(options, name)) for name in names}
    try:
        horizon = int(options.horizon)
    except ValueError:
        horizon = _number("horizon", options.horizon)  # no whole number: refused below, by its value
    try:
        table = bounds_table(**values, horizon=horizon)
    except ValueError as error:
        raise UserError(str(error)) from error
    print(table)
    return 0


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"{name}={text!r} is not a number: pass one such as --{name.replace('_', '-')} 0.5"
        ) from None


def _check_vectors(options: argparse.Namespace) -> int:
    from cppo_lab.vectors.check import check_file

    report = check_file(options.file)
    print("\n".join(report.lines()))
    return 1 if report.mismatches else 0


def _data_prepare(options: argparse.Namespace) -> int:
    from cppo_lab.data.manifest import summary
    from cppo_lab.data.prepare import prepare

    records = prepare(options.source, options.out, lambda text: print(text, file=sys.stderr, flush=True))
    print(summary(records))
    return 0


def _data_check(options: argparse.Namespace) -> int:
    from cppo_lab.data.manifest import check_folder, summary

    print(summary(check_folder(options.folder)))
    return 0


def _planned(options: argparse.Namespace) -> "tuple[Plan, str]":
    """The plan of the named sweep and the store to use."""
    from cppo_lab import store
    from cppo_lab.sweep.declare import load_sweep
    from cppo_lab.sweep.plan import make_plan

    plan = make_plan(load_sweep(options.sweep), options.overrides)
    return plan, store.tracking_uri(plan.tracking.uri)


def _missing_package(name: str) -> str:
    extra = {
        "torch": "train",
        "numpy": "train",
        "submitit": "train",
        "pandas": "report",
        "matplotlib": "report",
        "jinja2": "report",
        "pyarrow": "data",
        "huggingface_hub": "data",
    }
    needed = extra.get(name.split(".")[0], "all")
    return f"package {name!r} is not installed: pip install 'cppo-lab[{needed}]'"


if __name__ == "__main__":
    sys.exit(main())
