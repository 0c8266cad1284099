"""Renders a frozen info as one self-contained HTML page, without network access, dates or foreign scripts."""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from cppo_lab.reports.figures.drawing import Picture, dark_style, render
from cppo_lab.reports.markup import plain, steps_text
from cppo_lab.reports.names import origin
from cppo_lab.reports.record import About

_SECTION = re.compile(r'<section id="([a-z]+)"[^>]*>\s*(?:<details[^>]*>\s*<summary>)?<h2>(.*?)</h2>')
MOST_ROWS = 500  # of one table; a longer one is cut on the page, and complete in the files beside it


@dataclass(frozen=True)
class PageFigure:
    """A figure of a page with its heading and caption. `svg` is our own markup, `values` JSON with the numbers of its
    curves; both are empty if there is a `reason` why it is not drawn. `files`: those beside the page, by name; `data`
    is the name of the one with its numbers.
    """

    heading: str
    caption: str
    reason: str
    svg: str = ""
    values: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    data: str = ""


def page_figure(picture: Picture, command: str) -> PageFigure:
    """Draw a picture; `command` is what made it."""
    if picture.absent:
        return PageFigure(picture.heading, picture.caption, picture.absent)
    drawn = render(picture, command)
    svg, values = Markup(drawn.inline), Markup(drawn.values)  # noqa: S704  escaped there
    caption = f"{picture.caption} Source: {picture.info.source}.".strip()
    return PageFigure(picture.heading, caption, "", svg, values, drawn.files, f"{picture.name}.csv")


def render_template(
    name: str, about: About, page: object, figures: Mapping[str, PageFigure], files: Sequence[str]
) -> str:
    """The HTML of `page`, rendered with the template `name`; `figures` are by name, `files` are the names of the
    files beside it.

    Every text is escaped; only drawings and the numbers of curves are markup. The page's Content-Security-Policy lets
    the browser run only our script, identified by its hash, and load nothing. A page with `answers` has an additional
    style sheet and script.
    """
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.globals.update(plain=plain, steps_text=steps_text)
    environment.globals.update(most_rows=MOST_ROWS, origin=origin, sections=sections)
    environment.globals.update(dark_style=Markup(dark_style()))  # noqa: S704  digits and letters of our own
    names = ("page", "answers") if getattr(page, "answers", None) else ("page",)
    script = "\n".join(_template(f"{part}.js") for part in names)
    style = "\n".join(_template(f"{part}.css") for part in names)
    return environment.get_template(name).render(
        about=about,
        page=page,
        figures=figures,
        files=files,
        style=Markup(style),  # noqa: S704  files of this package
        script=Markup(script),  # noqa: S704  files of this package
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
    )


def sections(content: str) -> list[tuple[str, Markup]]:
    """(id, heading) of the sections of a page in order, for its table of contents. The headings are already escaped."""
    found = _SECTION.findall(content)
    return [(name, Markup(heading)) for name, heading in found]  # noqa: S704  escaped there


def _template(name: str) -> str:
    return resources.files("cppo_lab.reports").joinpath("templates", name).read_text(encoding="utf-8")
