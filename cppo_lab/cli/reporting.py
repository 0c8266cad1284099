"""`cppo report` and `cppo reference`."""

import argparse
import sys
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cppo_lab.cli.training import planned
from cppo_lab.errors import UserError
from cppo_lab.redaction import redacted

if TYPE_CHECKING:
    from cppo_lab.reports.folder import Built
    from cppo_lab.reports.study import StudyRequest
    from cppo_lab.reports.sweep import ReportRequest
    from cppo_lab.sweep.search.declare import Search
    from cppo_lab.sweep.search.space import Tuning
    from cppo_lab.tracking.sweep_note import SweepText

    Request = ReportRequest | StudyRequest
    Asked = tuple[Request, SweepText]


def report(options: argparse.Namespace) -> int:
    """Write the tables, curves and page of a sweep, or of a search."""
    import shlex

    from cppo_lab.cli.unchanged import asked, unchanged
    from cppo_lab.reports.folder import PAGE, Built
    from cppo_lab.sweep.declare import load_sweep
    from cppo_lab.sweep.search.declare import Search

    out: Path = options.out or Path("reports/build") / Path(options.sweep).stem
    # It is on the page, and beside the figures.
    command = redacted("cppo report " + shlex.join([options.sweep, *options.overrides, *_chosen(options)]))
    said = asked(options)  # before anything is read: files may change while the report is made
    if not options.force and unchanged(said, out):
        built = Built(out / PAGE, anew=False)
    elif options.source == "paper":
        built = _report_runs(options, _paper_request(options, out, command), said)
    elif isinstance(declared := load_sweep(options.sweep), Search):
        built = _search_report(declared, options, out)
    elif options.study is not None:
        raise UserError(
            f"--study {options.study!r}: {options.sweep} is no search, which alone has a study; remove it"
        )
    else:
        built = _report_runs(options, _own_request(options, out, command), said)
    print(f"report: {built.page}" + ("" if built.anew else " is up to date"))
    return 0


def _chosen(options: argparse.Namespace) -> list[str]:
    """The options that the content of a report depends on, as they were given."""
    words = ["--from", "paper"] if options.source == "paper" else []
    words += ["--partial"] if options.partial else []
    return words if options.palette == "paper" else [*words, "--palette", options.palette]


def _report_runs(options: argparse.Namespace, wanted: "Asked", said: str) -> "Built":
    """The report of a sweep or study, kept in MLflow too; its folder notes what it was made of and what was `said`."""
    from cppo_lab.cli.unchanged import database_state, note
    from cppo_lab.reports.build import current_inputs, make_report
    from cppo_lab.store import address

    request, text = wanted
    database = address.sqlite_file(request.uri)
    state = database_state(database) if database is not None else ()
    built = make_report(request, options.force)
    if options.log:
        if not _kept_in_store(request, text, options.force and built.anew):
            return built
        # Keeping it has changed the database: the note is of the state after, if the runs are still the same.
        state = database_state(database) if database is not None else ()
    note(said, request.out, state, current_inputs(request))
    return built


def _kept_in_store(request: "Request", text: "SweepText", again: bool) -> bool:
    """Keep page, figures and verdicts with the sweep in MLflow; a store that does not take them costs a line."""
    from cppo_lab.reports.folder import PAGE, read_marker
    from cppo_lab.reports.saved import read_record
    from cppo_lab.tracking.report_log import ReportLog, keep_report

    marker, saved = read_marker(request.out), read_record(request.out)
    files = {} if marker is None else dict(marker.files)
    shown = next((name for name in ("figure_4.png", "figure_curves.png") if name in files), "")
    log = ReportLog(
        sweep=text,
        folder=request.out,
        files={name: files[name] for name in files if name == PAGE or name.startswith("figure_")},
        verdicts=[(one.outcome, one.text, one.reason) for one in saved.verdicts.values()],
        origin="" if marker is None else marker.origin,
        shown=shown,
        whole_study=saved.kind == "study",
    )
    try:
        keep_report(request.uri, request.experiment, log, again)
    except UserError as error:
        print(f"cppo: the report is not kept in MLflow: {error}", file=sys.stderr)
        return False
    return True


def _paper_request(options: argparse.Namespace, out: Path, command: str) -> "Asked":
    from cppo_lab.reports.study import paper_study_request
    from cppo_lab.reports.sweep import paper_request
    from cppo_lab.store import address
    from cppo_lab.sweep.declare import load_sweep
    from cppo_lab.tracking.sweep_note import SweepText

    if options.study is not None:
        raise UserError(f"--study {options.study!r} with --from paper: the paper has no searches; remove it")
    if options.sweep not in ("main", "study") or options.overrides:
        asked = " ".join([options.sweep, *options.overrides])
        raise UserError(
            f"--from paper with {asked!r}: the paper's curves make the reports `main` and `study` and take no "
            "overrides: cppo report main --from paper"
        )
    uri = address.tracking_uri()
    about = {"partial": options.partial, "command": command, "palette": options.palette}
    if options.sweep == "study":
        whole = paper_study_request(uri, out, **about)
        return whole, SweepText(whole.name, whole.title, whole.question)
    declared = load_sweep("main")  # its description in MLflow is that of `cppo reference import`
    text = SweepText("main", declared.title, declared.question, getattr(declared, "feeds", ()))
    return paper_request(uri, out, **about), text


def _own_request(options: argparse.Namespace, out: Path, command: str) -> "Asked":
    from cppo_lab import schema
    from cppo_lab.analysis.grid import ExpectedRun, SweepGrid
    from cppo_lab.reports.study import StudyRequest
    from cppo_lab.reports.sweep import ReportRequest
    from cppo_lab.store import address
    from cppo_lab.tracking.sweep_note import SweepText

    plan, uri = planned(options)
    address.require_store(uri)
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
        text = SweepText(plan.name, plan.title, plan.question)
        return StudyRequest(plan.name, uri, experiment, grids, out, **about), text
    text = SweepText(plan.name, plan.title, plan.question, plan.sweeps[0].feeds)
    return ReportRequest(plan.name, uri, experiment, grids[0].expected, out, **about), text


def _search_report(declared: "Search", options: argparse.Namespace, out: Path) -> "Built":
    import shlex

    from cppo_lab import schema
    from cppo_lab.reports.build import make_report
    from cppo_lab.reports.search import SearchRequest
    from cppo_lab.store import address
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
    return make_report(
        SearchRequest(
            uri=address.tracking_uri(tuning.base.tracking.uri),
            experiment=schema.experiment_name(tuning.core),
            study=tuning.study,
            out=out,
            command=redacted(shlex.join(["cppo", "report", *words])),
            tune=redacted(shlex.join(["cppo", "tune", *words])),
            shipped=_shipped(tuning),
        ),
        options.force,
    )


def _shipped(tuning: "Tuning") -> dict[str, Any]:
    """What the tuned keys are where nobody tunes them; None for those that are then not set."""
    values = tuning.at({}, tuning.seeds[0]).run.model_dump(mode="json")

    def under(section: Any, name: str) -> Any:
        return section.get(name) if isinstance(section, dict) else None

    return {key: reduce(under, key.split("."), values) for key in tuning.space}


def reference_import(options: argparse.Namespace) -> int:
    """Load the paper's curves as runs."""
    from cppo_lab.store import address
    from cppo_lab.sweep.declare import Sweep, load_sweep, shipped_sweeps
    from cppo_lab.tracking.reference import import_reference
    from cppo_lab.tracking.reference_parents import nest_reference
    from cppo_lab.tracking.sweep_note import SweepText

    uri = address.tracking_uri()
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
    print(f"experiment `paper` in {redacted(uri)}: {added} runs added")
    return 0
