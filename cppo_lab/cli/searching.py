"""`cppo tune`, and what `cppo plan` says of a search."""

import argparse
import shlex
from typing import TYPE_CHECKING

from cppo_lab.errors import UserError

if TYPE_CHECKING:
    from cppo_lab.sweep.search.declare import Search


def tune(options: argparse.Namespace) -> int:
    """Search for the best constants; go on where an earlier command, or another one, is."""
    from cppo_lab import schema
    from cppo_lab.cli.requirements import require_machine
    from cppo_lab.redaction import redacted
    from cppo_lab.signals import interrupt_on_termination
    from cppo_lab.store import address
    from cppo_lab.sweep.declare import load_sweep
    from cppo_lab.sweep.paths import runs_folder
    from cppo_lab.sweep.search.declare import Search
    from cppo_lab.sweep.search.space import resolve
    from cppo_lab.sweep.search.storage import storage_url
    from cppo_lab.sweep.search.tune import tune as carry_out
    from cppo_lab.tracking.views import where_to_look

    declared = load_sweep(options.sweep)
    if not isinstance(declared, Search):
        raise UserError(f"{options.sweep} has no key `search`: it is no search: cppo launch {options.sweep}")
    tuning = resolve(declared, options.overrides, options.study, options.trials)
    url = storage_url(options.storage)
    uri = address.tracking_uri(tuning.base.tracking.uri)
    require_machine([tuning.base], uri)
    interrupt_on_termination()
    result = carry_out(tuning, uri, url, runs_folder())
    print(result.text)
    print(f"\nStudy {tuning.study} in {redacted(url)}")
    print(f"In MLflow:\n  {where_to_look(uri, schema.experiment_name(tuning.core))}")
    study = ["--study", options.study] if options.study else []
    print(f"The report: cppo report {shlex.join([options.sweep, *options.overrides, *study])}")
    return 0 if result.over else 1


def plan_search(search: "Search", options: argparse.Namespace) -> int:
    """Print the space of a search, what is done of it, and what one trial costs."""
    from cppo_lab.sweep.search.space import resolve
    from cppo_lab.sweep.search.storage import storage_url
    from cppo_lab.sweep.search.study import find_trials
    from cppo_lab.sweep.search.summary import outline

    tuning = resolve(search, options.overrides)
    print(outline(tuning, find_trials(tuning, storage_url())))
    return 0
