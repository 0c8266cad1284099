"""`cppo report` and `cppo reference`."""

import argparse
import sys
from pathlib import Path

from cppo_lab.cli.training import planned
from cppo_lab.errors import UserError


def report(options: argparse.Namespace) -> int:
    """Write the tables, curves and page of a sweep."""
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

    plan, uri = planned(options)
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


def reference_import(options: argparse.Namespace) -> int:
    """Load the paper's curves as runs."""
    from cppo_lab import store
    from cppo_lab.tracking.reference import import_reference

    uri = store.tracking_uri()
    added = import_reference(uri, lambda text: print(text, file=sys.stderr, flush=True))
    print(f"experiment `paper` in {uri}: {added} runs added")
    return 0
