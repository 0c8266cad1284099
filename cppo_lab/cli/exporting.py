"""`cppo export`: what a run has learned, as a folder that transformers loads."""

import argparse
import sys


def export(options: argparse.Namespace) -> int:
    """Write a run's best checkpoint in Hugging Face's format."""
    from cppo_lab import schema, store
    from cppo_lab.export import being_trained
    from cppo_lab.export import export as write
    from cppo_lab.export.folder import require_free
    from cppo_lab.monitor.logs import run_by_beginning
    from cppo_lab.monitor.status import Label, look
    from cppo_lab.sweep.find import require_beginning
    from cppo_lab.sweep.places import runs_folder

    require_beginning(options.run)
    require_free(options.out)
    runs = runs_folder()
    run_id = run_by_beginning(runs, options.run)
    # Slurm knows of runs on machines whose locks are not seen here.
    [found] = look(runs, store.tracking_uri(), {run_id: Label("", "", "", None)})
    if found.state == schema.RUNNING:
        raise being_trained(run_id)
    place = write(runs, run_id, options.out, lambda text: print(f"cppo: {text}", file=sys.stderr, flush=True))
    print(place)
    return 0
