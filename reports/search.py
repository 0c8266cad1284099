"""A hyper-parameter search in the store -> a folder with figures, tables and one page. All or nothing, as with the
report of a sweep.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cppo_lab.analysis.search import SearchResult, Value
from cppo_lab.analysis.search_file import read_search
from cppo_lab.analysis.search_noise import SeedValues, read_seed_values
from cppo_lab.reports.drawings import without_cache
from cppo_lab.reports.figures.files import render
from cppo_lab.reports.figures.search_gallery import course_figures, space_figures
from cppo_lab.reports.figures.search_panels import SearchFigure, draw_figure
from cppo_lab.reports.fingerprint import fingerprint
from cppo_lab.reports.folder import PAGE, Built, is_current, require_ours, swap_in
from cppo_lab.reports.inputs import report_inputs
from cppo_lab.reports.markup import latex_wrapper
from cppo_lab.reports.names import origin
from cppo_lab.reports.record import About, listed_files, record
from cppo_lab.reports.saved import RECORD
from cppo_lab.reports.search_page import render_search, search_page
from cppo_lab.reports.search_tables import space_table, trial_table, trials_csv, trials_text
from cppo_lab.reports.search_text import tune_command
from cppo_lab.reports.text_tables import text_csv, text_latex, text_markdown


@dataclass(frozen=True)
class SearchRequest:
    """What to report: `study` in `experiment` of the store at `uri`, into folder `out`.

    `command` is what rebuilds the report, `tune` what continues the search (by default, what its file suggests).
    `shipped`: the settings that come with the configuration, by key; those
    that the search tunes are marked in figures and tables.
    """

    uri: str
    experiment: str
    study: str
    out: Path
    command: str = ""
    tune: str = ""
    shipped: Mapping[str, Value] = field(default_factory=dict)


def build_search(request: SearchRequest, force: bool = False) -> Path:
    """Builds the report and returns the path of its page, `index.html`; see `make_search`."""
    return make_search(request, force).page


def make_search(request: SearchRequest, force: bool = False) -> Built:
    """Builds the report, unless the folder has the one that the same state of the search gave before.

    The same state of the search gives the same bytes. Until the last moment nothing at `request.out` changes. Raises
    UserError, with nothing written, if the search cannot be read (see `read_search`), or if `request.out` is
    something else than a report of ours. `force`: build it in any case.
    """
    out = request.out.absolute()
    require_ours(out)
    result = read_search(request.uri, request.experiment, request.study)
    seeds = read_seed_values(request.uri, request.experiment, result)
    inputs = report_inputs(request, (fingerprint((result, seeds)),))
    if not force and is_current(out, inputs):
        return Built(request.out / PAGE, anew=False)
    with without_cache(force):
        files = _files(request, result, seeds)
    swap_in(out, files, (result.study, origin(result.core)), inputs)
    return Built(request.out / PAGE, anew=True)


def _files(request: SearchRequest, result: SearchResult, seeds: tuple[SeedValues, ...]) -> dict[str, bytes]:
    """Every file of the report by name."""
    command = request.command or f"cppo report {result.name}"
    trials = trial_table(result, seeds)
    space = space_table(result, request.shipped)
    plain = trials_text(trials)
    texts = {
        "table_trials.md": text_markdown(plain),
        "table_trials.tex": text_latex(plain),
        "table_trials.csv": trials_csv(result, seeds),
        "table_space.md": text_markdown(space),
        "table_space.tex": text_latex(space),
        "table_space.csv": text_csv(space),
    }
    texts["tables.tex"] = latex_wrapper(texts)
    history, curves, importances = course_figures(result)
    figures = (*space_figures(result, request.shipped), importances, history, curves)
    drawn: dict[str, bytes] = {}
    for figure in figures:
        drawn |= _draw(figure, command)
    about = (request.experiment, command, request.tune or tune_command(result))
    page = search_page(result, seeds, (space, trials), figures, about, listed_files([*texts, *drawn]))
    texts[PAGE] = render_search(page)
    files = {name: text.encode() for name, text in texts.items()} | drawn
    drawings = {figure.name: partial(draw_figure, figure) for figure in figures if not figure.absent}
    head = About("search", request.study, result.name, request.experiment, result.core, command)
    return files | {RECORD: record(head, {}, drawings, files)}


def _draw(figure: SearchFigure, command: str) -> dict[str, bytes]:
    """The files of one figure; none where it cannot be drawn."""
    if figure.absent:
        return {}
    title = f"{figure.title} ({figure.source})"
    files = render(partial(draw_figure, figure), title, figure.run_ids, command)
    return {f"{figure.name}.{kind}": data for kind, data in files.items()}
