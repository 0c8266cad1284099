"""From a request to a report, in the same four steps for a sweep, a study and a search.

1. collect: `request.collect()` lists the runs in the store and their versions
2. score: `Collected.score()` reads them and prepares tables and figures, not yet drawn
3. draw: every figure as PNG, SVG and PDF, with its numbers as CSV
4. page: one HTML page, and the record `report.json`

The report is replaced atomically: nothing at `request.out` changes until the whole folder is swapped in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim
from cppo_lab.files import redacted
from cppo_lab.reports import overleaf
from cppo_lab.reports.drawings import draw_ahead, without_cache
from cppo_lab.reports.figures.files import render
from cppo_lab.reports.figures.picture import Absent, Picture
from cppo_lab.reports.fingerprint import fingerprint, report_code
from cppo_lab.reports.folder import PAGE, Built, is_current, require_ours, swap_in
from cppo_lab.reports.markup import latex_wrapper
from cppo_lab.reports.names import origin
from cppo_lab.reports.page import render_template
from cppo_lab.reports.record import About, listed_files, record
from cppo_lab.reports.registration import Standing
from cppo_lab.reports.saved import RECORD


@dataclass(frozen=True, eq=False)
class Contents:
    """The content of a report, scored and not yet drawn.

    `texts`: table files by name. `pictures`: the figures that are written to separate files. `inline`: calls that make
    the drawings of the page, so that they can be made ahead in two processes. `boards`: the scored sweeps for the
    record. `claims`: their own hypotheses, each with its standing. `judged`: the verdicts on hypotheses that are not
    about scores, as in the record. `page`: returns the info that `template` renders.
    """

    about: About
    texts: Mapping[str, str]
    pictures: tuple[Picture, ...]
    inline: tuple[partial[Any], ...]
    boards: Mapping[str, Scoreboard]
    template: str
    page: Callable[[], object]
    claims: Mapping[Claim, Standing] = field(default_factory=dict)
    judged: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class Collected:
    """The runs in the store for a report. `versions` change with the runs; `score` may raise UserError."""

    versions: Sequence[str]
    score: Callable[[], Contents]


class BuildRequest(Protocol):
    """What to report, and into which folder. Implemented by frozen dataclasses."""

    @property
    def out(self) -> Path:
        """The folder of the report."""

    def collect(self) -> Collected:
        """Raises UserError if the store cannot be read."""


def build_report(request: BuildRequest, force: bool = False) -> Path:
    """Build the report and return the path of its page, `index.html`; see `make_report`."""
    return make_report(request, force).page


def make_report(request: BuildRequest, force: bool = False) -> Built:
    """Build the report, unless the folder already has the one of the same runs (`force`: even then).

    The same runs give the same bytes. Raises UserError, with nothing written, if the runs cannot be read or scored, or
    if `request.out` exists and is not one of our reports.
    """
    out = request.out.absolute()
    require_ours(out)
    collected = request.collect()
    inputs = _inputs(request, collected.versions)
    if not force and is_current(out, inputs):
        return Built(request.out / PAGE, rebuilt=False)
    with without_cache(force):
        contents = collected.score()
        files = _files(contents)
    about = contents.about
    swap_in(out, files, (about.name, origin(about.core)), inputs)
    return Built(request.out / PAGE, rebuilt=True)


def current_inputs(request: BuildRequest) -> str:
    """The fingerprint of the inputs of the report if it were made now."""
    return _inputs(request, request.collect().versions)


def _inputs(request: BuildRequest, versions: Sequence[str]) -> str:
    """A fingerprint that changes with anything that could change a file of the report: the request, the runs, our code
    and the libraries.

    It does not depend on the output folder or on the store's password.
    """
    settings: Any = request  # a protocol cannot declare that it is a dataclass
    asked = [(part.name, getattr(request, part.name)) for part in fields(settings) if part.name != "out"]
    plain = [(name, redacted(value) if name == "uri" else value) for name, value in asked]
    return fingerprint((report_code(), type(request).__name__, plain, tuple(versions)))


def _files(contents: Contents) -> dict[str, bytes]:
    """All files of the report by name."""
    drawn = _draw(contents)
    texts = dict(contents.texts) | {"tables.tex": latex_wrapper(contents.texts)}
    drawn |= {overleaf.NAME: overleaf.overleaf(texts, drawn, contents.pictures)}
    beside = listed_files([*texts, *drawn])
    texts[PAGE] = render_template(contents.template, contents.about, contents.page(), beside)
    files = {name: text.encode() for name, text in texts.items()} | drawn
    drawings = {
        one.name: partial(one.drawing) for one in contents.pictures if not isinstance(one.drawing, Absent)
    }
    return files | {
        RECORD: record(contents.about, contents.boards, drawings, files, contents.claims, contents.judged)
    }


def _draw(contents: Contents) -> dict[str, bytes]:
    """The files of every figure that can be drawn."""
    calls = [partial(_picture_files, one, contents.about.command) for one in contents.pictures]
    draw_ahead([*calls, *contents.inline])
    return {name: data for call in calls for name, data in call().items()}


def _picture_files(picture: Picture, command: str) -> dict[str, bytes]:
    if isinstance(picture.drawing, Absent):
        return {}
    title = f"{picture.heading} ({picture.source})"
    drawn = render(picture.drawing, title, picture.run_ids, command)
    files = {f"{picture.name}.{kind}": data for kind, data in drawn.items()}
    return files | ({f"{picture.name}.csv": picture.data.encode()} if picture.data else {})
