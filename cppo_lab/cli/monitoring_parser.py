"""What `cppo status`, `watch`, `logs`, `cancel`, `retry` and `sync` understand."""

import argparse
from collections.abc import Callable

from cppo_lab.cli import monitoring
from cppo_lab.cli.command_parser import OVERRIDES, SWEEP, CommandParser, Commands, add_listing, add_sweep

SOME_RUN = "id of a run or its beginning"


def add_monitoring(commands: Commands) -> None:
    """The commands for looking after many runs; they work alike whichever launcher has them."""
    status = _add_optional_sweep(
        commands, "status", monitoring.status, "say how runs stand, whoever launched them"
    )
    add_listing(status)
    status.add_argument(
        "--repair", action="store_true", help="first finish what kills have left, in MLflow too"
    )
    watch = _add_optional_sweep(
        commands, "watch", monitoring.watch, "show the runs until all have ended; exit code 0 if all are done"
    )
    watch.add_argument(
        "--every", type=float, default=5.0, metavar="SECONDS", help="between two looks (default: 5)"
    )
    watch.add_argument(
        "--notify",
        metavar="COMMAND",
        help="run this at the end, without a shell, with CPPO_SWEEP, CPPO_DONE, CPPO_FAILED and CPPO_LEFT in its "
        "environment",
    )
    logs = commands.add_parser("logs", help="print what a run has printed")
    logs.set_defaults(command=monitoring.logs)
    logs.add_argument("run", metavar="RUN", help=SOME_RUN)
    logs.add_argument("-f", "--follow", action="store_true", help="go on printing until the run has ended")
    logs.add_argument("--all", action="store_true", help="of every attempt, the newest last")
    cancel = _add_optional_sweep(
        commands,
        "cancel",
        monitoring.cancel,
        "end runs in order, and take those that wait off their lists",
        "; or --run",
    )
    cancel.add_argument("--run", action="append", default=[], metavar="ID", help=f"{SOME_RUN}; several times")
    cancel.add_argument("--queued", action="store_true", help="only runs that have not started")
    cancel.add_argument("--dry-run", action="store_true", help="only list what would be cancelled")
    retry = add_sweep(
        commands, "retry", monitoring.retry, "train runs again that failed by errors of their own"
    )
    retry.add_argument("--failed", action="store_true", help="all failed runs of the sweep")
    retry.add_argument("--run", action="append", default=[], metavar="ID", help=f"{SOME_RUN}; several times")
    sync = commands.add_parser(
        "sync", help="send what runs have on file and the tracking store has not, after a crash or an outage"
    )
    sync.set_defaults(command=monitoring.sync)
    sync.add_argument("--run", action="append", default=[], metavar="ID", help=f"{SOME_RUN}; several times")
    sync.add_argument(
        "--watch", action="store_true", help="go on sending what running runs write, until Ctrl-C"
    )
    sync.add_argument("--dry-run", action="store_true", help="only say which runs have something to send")


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
