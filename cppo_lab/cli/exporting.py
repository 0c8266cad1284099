"""`cppo export`: what a run has learned, as a folder that transformers loads."""

import argparse
import sys


def export(options: argparse.Namespace) -> int:
    """Write a run's best checkpoint in Hugging Face's format."""
    from cppo_lab import schema
    from cppo_lab.export import being_trained
    from cppo_lab.export import export as write
    from cppo_lab.export.folder import require_free
    from cppo_lab.monitor.logs import run_by_beginning
    from cppo_lab.monitor.status import Label, run_statuses
    from cppo_lab.store import address
    from cppo_lab.sweep.find import require_beginning
    from cppo_lab.sweep.paths import runs_folder

    require_beginning(options.run)
    require_free(options.out)
    runs = runs_folder()
    run_id = run_by_beginning(runs, options.run)
    # Slurm knows of runs on machines whose locks are not seen here.
    [found] = run_statuses(runs, address.tracking_uri(), {run_id: Label("", "", "", None)})
    if found.state == schema.RUNNING:
        raise being_trained(run_id)
    place = write(runs, run_id, options.out, lambda text: print(f"cppo: {text}", file=sys.stderr, flush=True))
    print(place)
    return 0
