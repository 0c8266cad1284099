"""`cppo report`, `cppo compare` and `cppo reference`."""

import contextlib
import gc
import shlex
from argparse import Namespace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from cppo_lab import schema
from cppo_lab.cli.command import Exit, answer, passing, typed
from cppo_lab.errors import StoreAway, StoreBroken, UserError, counted, say
from cppo_lab.files import redacted
from cppo_lab.tracking import address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cppo_lab.reports.build import GridRequest
    from cppo_lab.sweep.file import Search
    from cppo_lab.tracking.page import SweepText

    Asked = tuple[GridRequest, SweepText]

BUILT = Path("reports/build")  # where reports are written by default


def report(options: Namespace) -> int:
    """Write the tables, curves and page of a sweep, or of a search; with --watch again and again."""
    # What imports and figures make, stays: by default a sixth of a report's time goes into looking for garbage.
    gc.set_threshold(20_000)
    page = None
    if options.watch:
        if not options.partial:
            raise UserError("--watch needs --partial: it reports runs that are not results yet")
        require_every(options)
        with contextlib.suppress(KeyboardInterrupt):
            for made in watch_report(options):
                page = made
    else:
        archived = Path(options.sweep).suffix == ".zip"
        page = _archived(options) if archived else _report_once(options)
    if page is not None:
        answer(options, {"sweep": options.reported, "page": str(page), "folder": str(page.parent)})
    return Exit.DONE


def _archived(options: Namespace) -> Path:
    """The report of a file of `cppo archive`, made in a folder that has nothing else."""
    import tempfile

    from cppo_lab.runs.export import unpack
    from cppo_lab.tracking.upload import upload

    with tempfile.TemporaryDirectory(prefix="cppo-") as place:
        about, options.archive = unpack(Path(options.sweep), Path(place)), [options.sweep, *options.overrides]
        options.out = (options.out or BUILT / Path(options.sweep).stem).absolute()
        options.sweep, options.overrides = about["sweep"], [*about["overrides"], *options.overrides]
        options.log = False
        with contextlib.chdir(place), address.in_the_environment(f"sqlite:///{place}/mlflow.db"):
            upload(sorted(Path(place, "runs").glob("*")), address.tracking_uri())
            return _report_once(options)


def require_every(options: Namespace) -> None:
    """Raises UserError for a pause between two reports that is none."""
    if not 1 <= options.every <= 86_400:
        raise UserError(f"--every {options.every:g}: seconds between two reports, 1 to 86400")


def watch_report(options: Namespace, patient: bool = False) -> "Iterator[Path]":
    """Report until every run is a result; gives each page. A store that is not there or does not answer costs a line.
    `patient`: any other mistake, too, and reports take at most a fifth of a core from the runs.
    """
    from cppo_lab.analysis.scoring import GAPS, NothingScored
    from cppo_lab.reports.saved import read_record

    gaps = {state.value for state in GAPS}
    page, last_line = None, ""
    while True:
        began, wait = monotonic(), options.every
        try:
            page = _report_once(options, quiet=patient or page is not None)
            runs = read_record(page.parent).runs.values()
            missing = sum(run["state"] in gaps for run in runs)
            if last_line != (last_line := f"{len(runs) - missing} of {len(runs)} runs have a result"):
                say(last_line)
            yield page
            if not missing:
                return
            if patient:
                wait = max(wait, 4 * (monotonic() - began))
        except UserError as error:
            may_come = isinstance(error, NothingScored | StoreAway) and not isinstance(error, StoreBroken)
            if page is None and not patient and not may_come:
                raise
            passing("")
            if last_line != (last_line := f"cppo: {error}"):
                say(last_line)
        sleep(wait)


def _report_once(options: Namespace, quiet: bool = False) -> Path:
    """Make the report and return its page; unless `quiet`, say what is done and where it is."""
    from cppo_lab.cli.training import load_checked
    from cppo_lab.reports.saved import read_record
    from cppo_lab.sweep.file import Search

    # The command is on the page, and beside the figures.
    words = options.archive if "archive" in options else [options.sweep, *options.overrides]
    about: dict[str, Any] = {"command": redacted(f"cppo report {shlex.join([*words, *_chosen(options)])}")}
    if options.figures is not None:
        from cppo_lab.reports.figures.drawing import parse_style

        about["style"] = parse_style(options.figures)
    options.tell = partial(passing, piped=not quiet)
    declared = None if options.source == "paper" else load_checked(options)
    options.reported = declared.name if declared else options.sweep
    about["out"] = options.out or BUILT / options.reported
    before = None
    with contextlib.suppress(UserError):  # there is none
        before = read_record(about["out"])
    about_runs = about | {"partial": options.partial, "palette": options.palette}
    if declared is None:
        page = _report_runs(options, _paper_request(options, about_runs))
    elif isinstance(declared, Search):
        page = _search_report(declared, options, about)
    elif options.study is not None:
        raise UserError(
            f"--study {options.study!r}: {options.sweep} is not a search, so it has no study; remove it"
        )
    else:
        page = _report_runs(options, _own_request(options, about_runs))
    passing("")
    if before is not None and before.subject != read_record(page.parent).subject:
        say(f"cppo: this replaced the report of `{before.command}`; --out FOLDER keeps both")
    if not options.json and not quiet:
        print(f"report: {page}", flush=True)
    return page


def _chosen(options: Namespace) -> list[str]:
    """The options that the content of a report depends on, as they were given."""
    words = ["--from", "paper"] if options.source == "paper" else []
    words += ["--partial"] if options.partial else []
    words += [] if options.palette == "paper" else ["--palette", options.palette]
    words += [] if options.study is None else ["--study", options.study]
    return words if options.figures is None else [*words, "--figures", options.figures]


def _report_runs(options: Namespace, asked: "Asked") -> Path:
    """The report of a sweep or study, kept in MLflow too; a store that does not take it costs a line."""
    from cppo_lab.reports.build import build_report
    from cppo_lab.reports.names import origin
    from cppo_lab.reports.saved import read_record
    from cppo_lab.tracking.page import ReportLog, keep_report

    request, text = asked
    runs = {run for grid in request.sweeps for run in grid.expected}
    passing(f"scoring {counted(len(runs), 'run')}")
    page = build_report(request, options.tell)
    if not options.log:
        return page
    options.tell("keeping the report in MLflow")
    saved = read_record(request.out)
    shown = ("figure_4.png", "figure_exact.png", "figure_curves.png")
    log = ReportLog(
        sweep=text,
        folder=request.out,
        files=[name for name in saved.files if name == page.name or name.startswith("figure_")],
        verdicts=[
            (verdict.outcome + " (exploratory)" * verdict.exploratory, verdict.text, verdict.reason)
            for verdict in saved.verdicts
        ],
        origin=f"{saved.command}; {origin(saved.core)}",  # it may be of some seeds only
        shown=next((name for name in shown if name in saved.files), ""),
        whole_study=saved.kind == "study",
    )
    try:
        keep_report(request.uri, request.experiment, log)
    except UserError as error:
        say(f"cppo: the report was not uploaded to MLflow: {error}")
    return page


def _paper_request(options: Namespace, about: dict[str, Any]) -> "Asked":
    """The request of the paper's curves; `about`: what the options say of any request."""
    from cppo_lab.reports.study import paper_study_request
    from cppo_lab.reports.sweep import paper_request
    from cppo_lab.sweep.file import load_sweep
    from cppo_lab.tracking.page import SweepText

    if options.study is not None:
        raise UserError(f"--study {options.study!r} with --from paper: the paper has no searches; remove it")
    if options.sweep not in ("main", "study") or options.overrides:
        asked = " ".join([options.sweep, *options.overrides])
        raise UserError(
            f"--from paper with {asked!r}: the paper's curves make the reports `main` and `study` and take no "
            "overrides: cppo report main --from paper"
        )
    uri = address.tracking_uri()
    if options.sweep == "study":
        whole = paper_study_request(uri, **about)
        return whole, SweepText(whole.name, whole.title, whole.question)
    declared = load_sweep("main")  # its description in MLflow is that of `cppo reference import`
    text = SweepText("main", declared.title, declared.question, getattr(declared, "feeds", ()))
    return paper_request(uri, **about), text


def _own_request(options: Namespace, about: dict[str, Any]) -> "Asked":
    from cppo_lab.cli.training import planned
    from cppo_lab.sweep.claims import axes_of, grids_of, note_looks, stated_in
    from cppo_lab.tracking.page import SweepText

    plan, uri = planned(options)
    address.require_store(uri)
    passing("reading the tracking store")  # in a pipe only what comes after all mistakes: they cost one line
    experiment = schema.experiment_name(plan.core)
    about |= {
        "name": plan.name,
        "uri": uri,
        "experiment": experiment,
        "title": plan.title,
        "question": plan.question,
        "sweeps": grids_of(plan),
    }
    if options.partial or options.overrides:  # a whole report is of what has ended
        note_looks(plan, uri)
    about["stated"] = stated_in(plan, uri, experiment)
    if plan.is_study:
        from cppo_lab.reports.study import StudyRequest

        return StudyRequest(**about), SweepText(plan.name, plan.title, plan.question)
    from cppo_lab.reports.sweep import ReportRequest

    [sweep] = plan.sweeps
    is_at_home = about["out"].name == plan.name  # elsewhere links to other reports would lead nowhere
    about |= {
        "axes": axes_of(plan, sweep),
        "beside": sweep.beside if is_at_home else (),
        "factorial": sweep.analysis == "factorial",
    }
    return ReportRequest(**about), SweepText(plan.name, plan.title, plan.question, sweep.feeds)


def _search_report(declared: "Search", options: Namespace, about: dict[str, Any]) -> Path:
    from cppo_lab.reports.build import build_report
    from cppo_lab.reports.search import SearchRequest
    from cppo_lab.runs.tags import dotted
    from cppo_lab.search.space import main_overrides, resolve

    if options.partial:
        raise UserError("--partial: the report of a search always includes unfinished trials; remove it")
    if options.palette != "paper":
        raise UserError(
            f"--palette {options.palette}: the report of a search has no methods to tell apart; remove it"
        )
    tuning = resolve(declared, options.overrides, options.study)
    study = [] if options.study is None else ["--study", options.study]
    shipped = dotted(tuning.at({}, tuning.seeds[0]).run.model_dump(mode="json"))
    passing("reading the trials")
    return build_report(
        SearchRequest(
            uri=address.tracking_uri(tuning.base.tracking.uri),
            experiment=schema.experiment_name(tuning.core),
            study=tuning.study,
            tune=redacted(f"cppo tune {typed(options, *study)}"),
            shipped={key: shipped.get(key) for key in tuning.space},
            chosen=main_overrides(tuning),
            **about,
        ),
        options.tell,
    )


def compare(options: Namespace) -> int:
    """Say what differs between two reports; 0 if nothing does, 1 if something does."""
    from cppo_lab.reports import saved

    before, after = (saved.read_record(_report_folder(name)) for name in (options.before, options.after))
    comparison = saved.compare(before, after, (options.before, options.after))
    answer(options, comparison, "\n".join(saved.compare_lines(comparison)))
    return Exit.DONE if comparison["same"] else Exit.NO


def _report_folder(name: str) -> Path:
    """The folder of a report that is named by itself or by its sweep."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    built = BUILT / folder.stem
    if built.is_dir() and (folder.name == name or folder.suffix == ".yaml"):
        return built
    raise UserError(
        f"{name!r} is no folder, and {built} is none: name the folder of a report, or run `cppo report` first"
    )


def reference_import(options: Namespace) -> int:
    """Load the paper's curves as runs."""
    from cppo_lab.sweep.file import Sweep, load_sweep, shipped_sweeps
    from cppo_lab.tracking.client import STORE_FAULTS, store_error
    from cppo_lab.tracking.page import SweepText
    from cppo_lab.tracking.reference import import_reference, nest_reference

    uri = address.tracking_uri()
    shipped = [load_sweep(name) for name in shipped_sweeps()]
    texts = {
        sweep.name: SweepText(sweep.name, sweep.title, sweep.question, sweep.feeds)
        for sweep in shipped
        if isinstance(sweep, Sweep)
    }
    try:
        added = import_reference(uri, say)
        nest_reference(uri, texts)
    except STORE_FAULTS as error:
        raise store_error(uri, error, "used") from None
    text = f"experiment `paper` in {redacted(uri)}: {counted(added, 'run')} added"
    return answer(options, {"store": redacted(uri), "added": added}, text)
