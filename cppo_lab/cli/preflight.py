"""`cppo preflight`."""

import argparse
import sys

from cppo_lab.cli.answer import Exit, answer
from cppo_lab.cli.parser import CommandParser, add_sweep
from cppo_lab.cli.requirements import require_plan
from cppo_lab.cli.training import planned
from cppo_lab.signals import interrupt_on_termination
from cppo_lab.sweep.paths import require_folder, runs_folder


def preflight(options: argparse.Namespace) -> int:
    """Measure each kind of run of a sweep with a short job, and say what the whole sweep will take."""
    from cppo_lab.launch.launchers import launcher_of
    from cppo_lab.sweep import preflight as short

    found, uri = planned(options)
    runs = runs_folder()
    require_folder(runs)
    kinds = short.kinds(found, runs, options.random_weights)
    todo = [] if options.show else short.open_kinds(kinds, found, runs, options.again)
    if todo and options.random_weights:
        found = short.with_stand_ins(todo, found, runs)
    if todo:
        require_plan(found, uri)
        interrupt_on_termination()
        count = f"{len(todo)} short job" + ("s" if len(todo) > 1 else "")
        print(f"{found.name}: {count}, of {len(kinds)} kinds of runs", file=sys.stderr)
        short.measure(todo, found, runs)
    if options.json:
        answer(options, {"sweep": found.name, "core": found.core, "kinds": list(map(short.as_values, kinds))})
    else:
        print("\n\n".join(short.report(kind) for kind in kinds))
    launcher = launcher_of(found.launcher.name)
    if launcher.queue and todo:
        if not options.json:
            print(f"\n{launcher.title} has the jobs: show their results with --show")
        return Exit.DONE
    return Exit.DONE if all(kind.is_measured for kind in kinds) else Exit.NO


def preflight_arguments(command: CommandParser) -> None:
    command.set_defaults(command=preflight)
    add_sweep(command)
    command.add_argument(
        "--again", action="store_true", help="repeat measurements whose results are already stored"
    )
    command.add_argument("--show", action="store_true", help="only show stored results")
    command.add_argument(
        "--random-weights",
        action="store_true",
        help="measure with random weights of the same shapes and with generated problems; needs no download",
    )
