"""The arguments of `cppo status`, `watch`, `logs`, `cancel`, `retry` and `sync`."""

import argparse
from collections.abc import Callable

from cppo_lab.cli import monitoring
from cppo_lab.cli.command_parser import OVERRIDES, SWEEP, CommandParser, Commands, add_listing, add_sweep

SOME_RUN = "run id, or a prefix of it"


def add_monitoring(commands: Commands) -> None:
    """The commands for looking after many runs; they work alike whichever launcher has them."""
    status = _add_optional_sweep(
        commands, "status", monitoring.status, "show the state of runs, whoever launched them"
    )
    add_listing(status)
    status.add_argument(
        "--sort",
        choices=["last", "best", "final-mean"],
        help="sort by a score, highest first: that of the last validation, that of the best validation, or the mean "
        "over the validations in the last 30 %% of the run",
    )
    status.add_argument(
        "--repair", action="store_true", help="first clean up after killed runs, also in MLflow"
    )
    watch = _add_optional_sweep(
        commands,
        "watch",
        monitoring.watch,
        "show the state of runs until all have ended; the exit code is 0 if all are done",
    )
    watch.add_argument(
        "--every", type=float, default=5.0, metavar="SECONDS", help="refresh interval (default: 5)"
    )
    watch.add_argument(
        "--notify",
        metavar="COMMAND",
        help="run this command when all runs have ended, without a shell, with CPPO_SWEEP, CPPO_DONE, CPPO_FAILED and "
        "CPPO_LEFT in its environment",
    )
    logs = commands.add_parser("logs", help="print a run's output")
    logs.set_defaults(command=monitoring.logs)
    logs.add_argument("run", metavar="RUN", help=SOME_RUN)
    logs.add_argument("-f", "--follow", action="store_true", help="keep printing until the run has ended")
    logs.add_argument("--all", action="store_true", help="print the output of every attempt, newest last")
    cancel = _add_optional_sweep(
        commands,
        "cancel",
        monitoring.cancel,
        "stop runs cleanly, and remove queued runs from the queue",
        "; or use --run",
    )
    cancel.add_argument("--run", action="append", default=[], metavar="ID", help=f"{SOME_RUN}; repeatable")
    cancel.add_argument("--queued", action="store_true", help="cancel only runs that have not started")
    cancel.add_argument("--dry-run", action="store_true", help="only list what would be cancelled")
    retry = add_sweep(
        commands, "retry", monitoring.retry, "retrain runs that failed with an error, or finished ones"
    )
    retry.add_argument("--failed", action="store_true", help="retrain all failed runs of the sweep")
    retry.add_argument("--dry-run", action="store_true", help="only list what would be trained")
    retry.add_argument("--run", action="append", default=[], metavar="ID", help=f"{SOME_RUN}; repeatable")
    retry.add_argument(
        "--finished",
        action="store_true",
        help="with --run: retrain finished runs; each old result is deleted once the new one is finished",
    )
    sync = commands.add_parser(
        "sync", help="after a crash or an outage, upload metrics that never reached the tracking store"
    )
    sync.set_defaults(command=monitoring.sync)
    sync.add_argument("--run", action="append", default=[], metavar="ID", help=f"{SOME_RUN}; repeatable")
    sync.add_argument(
        "--watch", action="store_true", help="keep uploading the metrics of running runs until Ctrl-C"
    )
    sync.add_argument("--dry-run", action="store_true", help="only list the runs that have metrics to upload")


def _add_optional_sweep(
    commands: Commands,
    name: str,
    command: Callable[[argparse.Namespace], int],
    text: str,
    otherwise: str = " (default: every known run)",
) -> CommandParser:
    added = commands.add_parser(name, help=text)
    added.set_defaults(command=command)
    added.lists_groups = True
    added.add_argument("sweep", nargs="?", metavar="SWEEP", help=SWEEP + otherwise)
    added.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=OVERRIDES)
    return added
