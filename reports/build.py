"""From a request to a report, in the same three steps for a sweep, a study and a search.

1. score: `request.contents()` reads the runs and prepares tables and figures, not yet drawn
2. draw: every figure as PNG, SVG and PDF, with its numbers as CSV
3. page: one HTML page, and the record `report.json`

The report is replaced atomically: nothing at `request.out` changes until the whole folder is swapped in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim
from cppo_lab.reports import overleaf
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.folder import PAGE, require_ours, swap_in
from cppo_lab.reports.markup import latex_wrapper
from cppo_lab.reports.names import origin
from cppo_lab.reports.page import page_figure, render_template
from cppo_lab.reports.record import About, listed_files, record
from cppo_lab.reports.registration import Standing
from cppo_lab.reports.saved import RECORD


@dataclass(frozen=True, eq=False)
class Contents:
    """The content of a report, scored and not yet drawn.

    `texts`: table files by name. `pictures`: the figures that are written to separate files. `boards`: the scored
    sweeps for the record. `claims`: their own hypotheses, each with its standing. `judged`: the verdicts on
    hypotheses that are not about scores, as in the record. `page`: returns the info that `template` renders.
    """

    about: About
    texts: Mapping[str, str]
    pictures: tuple[Picture, ...]
    boards: Mapping[str, Scoreboard]
    template: str
    page: Callable[[], object]
    claims: Mapping[Claim, Standing] = field(default_factory=dict)
    judged: tuple[Mapping[str, Any], ...] = ()


class BuildRequest(Protocol):
    """What to report, and into which folder. Implemented by frozen dataclasses."""

    @property
    def out(self) -> Path:
        """The folder of the report."""

    def contents(self) -> Contents:
        """Raises UserError if the runs cannot be read or scored."""


def build_report(request: BuildRequest) -> Path:
    """Build the report and return the path of its page, `index.html`. The same runs give the same bytes.

    Raises UserError, with nothing written, if the runs cannot be read or scored, or if `request.out` exists and is not
    one of our reports.
    """
    out = request.out.absolute()
    require_ours(out)
    contents = request.contents()
    files = _files(contents)
    swap_in(out, files, f"{contents.about.name}; {origin(contents.about.core)}")
    return request.out / PAGE


def _files(contents: Contents) -> dict[str, bytes]:
    """All files of the report by name."""
    about, pictures = contents.about, contents.pictures
    figures = {picture.name: page_figure(picture, about.command) for picture in pictures}
    drawn = {name: data for figure in figures.values() for name, data in figure.files.items()}
    texts = dict(contents.texts) | {"tables.tex": latex_wrapper(contents.texts)}
    drawn |= {overleaf.NAME: overleaf.overleaf(texts, drawn, pictures)}
    beside = listed_files([*texts, *drawn])
    texts[PAGE] = render_template(contents.template, about, contents.page(), figures, beside)
    files = {name: text.encode() for name, text in texts.items()} | drawn
    return files | {RECORD: record(about, contents.boards, files, contents.claims, contents.judged)}
