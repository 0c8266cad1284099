"""`cppo plan`, `cppo show`, `cppo launch`."""

import argparse
import sys
from typing import TYPE_CHECKING

from cppo_lab.errors import UserError

if TYPE_CHECKING:
    from cppo_lab.sweep.enumerate import PlannedRun
    from cppo_lab.sweep.plan import Plan


def planned(options: argparse.Namespace) -> "tuple[Plan, str]":
    """The plan of the named sweep and the store to use."""
    from cppo_lab import store

    found = _plan_of(options)
    return found, store.tracking_uri(found.tracking.uri)


def _plan_of(options: argparse.Namespace) -> "Plan":
    from cppo_lab.sweep.declare import load_sweep
    from cppo_lab.sweep.plan import make_plan

    return make_plan(load_sweep(options.sweep), options.overrides)


def plan(options: argparse.Namespace) -> int:
    """List the runs of a sweep."""
    from collections import Counter

    from cppo_lab.sweep.launch import plan_states
    from cppo_lab.sweep.table import cost_summary, table

    found, uri = planned(options)
    states = plan_states(found, uri)
    print(f"{found.name}: {found.title}. {found.question}\n")
    print(table(found.runs, states))
    counts = Counter(state.state for state in states.values())
    print(f"\n{len(found.runs)} runs: " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    if cost := cost_summary(found.runs):
        print(cost)
    return 0


def show(options: argparse.Namespace) -> int:
    """Print the resolved configuration of the runs of a sweep, as YAML."""
    from cppo_lab.sweep.describe import describe, to_yaml

    found = _plan_of(options)
    if options.verl and found.core != "verl":
        raise UserError(f"--verl: the runs of {options.sweep} are of core={found.core}: add core=verl")
    chosen = [run for run in found.runs if run.run_id.startswith(options.run or "")]
    if options.run and len(chosen) != 1:
        what = "is the beginning of" if chosen else "begins none of"
        ids = ", ".join(run.run_id for run in chosen or found.runs)
        raise UserError(f"--run {options.run!r} {what} the ids {ids}: give enough of one of them")
    documents = []
    for run in chosen:
        sections = describe(run, found.paths)
        if options.verl:
            sections["verl"] = _verl_settings(run, found)
        documents.append(to_yaml(run, sections))
    print("---\n".join(documents), end="")
    return 0


def _verl_settings(run: "PlannedRun", found: "Plan") -> object:
    """verl's own complete configuration of a run, as plain values."""
    from cppo_lab.cores.verl.config import plain_config
    from cppo_lab.sweep.launch import RUNS

    return plain_config(run.spec, run.layout, found.paths, RUNS.resolve())


def _require_machine(found: "Plan", uri: str) -> None:
    """See that what the runs of the verl core need is here, before any of them is started.

    Raises UserError naming everything that is missing.
    """
    if found.core != "verl":
        return
    from cppo_lab.doctor import MISSING, examine
    from cppo_lab.sweep.compose import Composed
    from cppo_lab.sweep.launch import RUNS

    kinds = {(run.spec.model.name, run.layout.name): run for run in found.runs}
    missing = []
    for run in kinds.values():
        composed = Composed(
            run.spec, run.layout, found.paths, found.launcher, found.tracking, run.resources, run.run_id
        )
        checks = examine(composed, uri, RUNS.resolve(), interfaces=False)
        missing += [check.line for check in checks if check.status == MISSING and check.line not in missing]
    if missing:
        raise UserError(
            "runs of this sweep cannot start here (see `cppo doctor`):\n  " + "\n  ".join(missing)
        )


def launch(options: argparse.Namespace) -> int:
    """Train the runs of a sweep that are not done."""
    import signal
    from collections import Counter

    from cppo_lab import schema
    from cppo_lab.sweep.launch import launch
    from cppo_lab.sweep.table import table
    from cppo_lab.tracking.client import where_to_look

    found, uri = planned(options)
    _require_machine(found, uri)
    # An orderly end on SIGTERM as on Ctrl-C: the runs are ended and recorded.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    states = launch(found, uri)
    print(table(found.runs, states))
    print(f"\nIn MLflow:\n  {where_to_look(uri, schema.experiment_name(found.core))}")
    counts = Counter(state.state for state in states.values() if state.state not in schema.FINISHED)
    if counts:
        kinds = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        print(
            f"cppo: {counts.total()} of {len(states)} runs are not done ({kinds}): the same command goes on",
            file=sys.stderr,
        )
    return 1 if counts else 0
