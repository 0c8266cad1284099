"""`cppo data` and `cppo doctor`: what runs need around them."""

import argparse
import sys


def data_prepare(options: argparse.Namespace) -> int:
    """Write training and validation sets."""
    from cppo_lab.data.manifest import summary
    from cppo_lab.data.prepare import prepare

    records = prepare(options.source, options.out, lambda text: print(text, file=sys.stderr, flush=True))
    print(summary(records))
    return 0


def data_check(options: argparse.Namespace) -> int:
    """Compare prepared data with its checksums."""
    from cppo_lab.data.manifest import check_folder, summary

    print(summary(check_folder(options.folder)))
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Say what this machine has and lacks for a run; 0 only if the run could start here."""
    from cppo_lab.doctor import examine, lines, ready
    from cppo_lab.store import address
    from cppo_lab.sweep.compose import compose
    from cppo_lab.sweep.paths import runs_folder

    composed = compose([f"core={options.core}", *options.overrides])
    checks = examine(composed, address.tracking_uri(composed.tracking.uri), runs_folder())
    print("\n".join(lines(checks)))
    wanted = f"model={composed.run.model.name} with core={composed.run.core}"
    if not ready(checks):
        print(f"\nA run of {wanted} cannot start here: see the lines marked missing.")
        return 1
    print(f"\nA run of {wanted} can start here.")
    return 0
