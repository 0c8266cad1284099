"""`cppo report` and `cppo reference`."""

import argparse
import sys
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cppo_lab.cli.training import planned
from cppo_lab.errors import UserError

if TYPE_CHECKING:
    from cppo_lab.sweep.search.declare import Search
    from cppo_lab.sweep.search.space import Tuning


def report(options: argparse.Namespace) -> int:
    """Write the tables, curves and page of a sweep, or of a search."""
    import shlex

    from cppo_lab.sweep.declare import load_sweep
    from cppo_lab.sweep.search.declare import Search

    out: Path = options.out or Path("reports/build") / Path(options.sweep).stem
    command = "cppo report " + shlex.join([options.sweep, *options.overrides, *_chosen(options)])
    if options.source == "paper":
        page = _paper_report(options, out, command)
    elif isinstance(declared := load_sweep(options.sweep), Search):
        page = _search_report(declared, options, out)
    elif options.study is not None:
        raise UserError(
            f"--study {options.study!r}: {options.sweep} is no search, which alone has a study; remove it"
        )
    else:
        page = _own_report(options, out, command)
    print(f"report: {page}")
    return 0


def _chosen(options: argparse.Namespace) -> list[str]:
    """The options that the content of a report depends on, as they were given."""
    words = ["--from", "paper"] if options.source == "paper" else []
    words += ["--partial"] if options.partial else []
    return words if options.palette == "paper" else [*words, "--palette", options.palette]


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
    about = {"partial": options.partial, "command": command, "palette": options.palette}
    if options.sweep == "study":
        return build_study(paper_study_request(uri, out, **about))
    return build_report(paper_request(uri, out, **about))


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
    about = {
        "title": plan.title,
        "question": plan.question,
        "partial": options.partial,
        "command": command,
        "palette": options.palette,
    }
    if plan.is_study:
        return build_study(StudyRequest(plan.name, uri, experiment, grids, out, **about))
    return build_report(ReportRequest(plan.name, uri, experiment, grids[0].expected, out, **about))


def _search_report(declared: "Search", options: argparse.Namespace, out: Path) -> Path:
    import shlex

    from cppo_lab import schema, store
    from cppo_lab.reports.search import SearchRequest, build_search
    from cppo_lab.sweep.search.space import resolve

    if options.partial:
        raise UserError("--partial: the report of a search always shows what is there; remove it")
    if options.palette != "paper":
        raise UserError(
            f"--palette {options.palette}: the report of a search has no methods to tell apart; remove it"
        )
    tuning = resolve(declared, options.overrides, options.study)
    words = [options.sweep, *options.overrides]
    words += [] if options.study is None else ["--study", options.study]
    return build_search(
        SearchRequest(
            uri=store.tracking_uri(tuning.base.tracking.uri),
            experiment=schema.experiment_name(tuning.core),
            study=tuning.study,
            out=out,
            command=shlex.join(["cppo", "report", *words]),
            tune=shlex.join(["cppo", "tune", *words]),
            shipped=_shipped(tuning),
        )
    )


def _shipped(tuning: "Tuning") -> dict[str, Any]:
    """What the tuned keys are where nobody tunes them; None for those that are then not set."""
    values = tuning.at({}, tuning.seeds[0]).run.model_dump(mode="json")

    def under(section: Any, name: str) -> Any:
        return section.get(name) if isinstance(section, dict) else None

    return {key: reduce(under, key.split("."), values) for key in tuning.space}


def reference_import(options: argparse.Namespace) -> int:
    """Load the paper's curves as runs."""
    from cppo_lab import store
    from cppo_lab.sweep.declare import Sweep, load_sweep, shipped_sweeps
    from cppo_lab.tracking.reference import import_reference
    from cppo_lab.tracking.reference_parents import nest_reference
    from cppo_lab.tracking.sweep_note import SweepText

    uri = store.tracking_uri()
    added = import_reference(uri, lambda text: print(text, file=sys.stderr, flush=True))
    shipped = [load_sweep(name) for name in shipped_sweeps()]
    nest_reference(
        uri,
        {
            one.name: SweepText(one.name, one.title, one.question, one.feeds)
            for one in shipped
            if isinstance(one, Sweep)
        },
    )
    print(f"experiment `paper` in {store.redacted(uri)}: {added} runs added")
    return 0
