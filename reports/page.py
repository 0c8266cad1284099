"""One self-contained HTML page: frozen info in, text out. No network, no dates, and one script, our own."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from cppo_lab.analysis.scoring import Scoreboard, describe_gaps
from cppo_lab.reports.answers.view import AnswersView
from cppo_lab.reports.audit_view import AuditView
from cppo_lab.reports.charts import Charts, charts_json, charts_of
from cppo_lab.reports.figures import curves, diagnostics
from cppo_lab.reports.figures.inline import InlineFigure, inline_curves, inline_diagnostics
from cppo_lab.reports.figures.lines import FEW
from cppo_lab.reports.headlines import Headline, headlines
from cppo_lab.reports.markup import plain, steps_text
from cppo_lab.reports.mismatch import MismatchView
from cppo_lab.reports.names import origin
from cppo_lab.reports.run_list import RunGroup, anchors_of, run_groups
from cppo_lab.reports.tables import FullTable, MainTable
from cppo_lab.reports.text_tables import TextTable
from cppo_lab.reports.verdict_view import VerdictView

MOST_ROWS = 500  # of one table; of a longer one the page has the first, and the files beside it have all
ANSWERS = ("answers",)  # the template of the part that a report without answers does not have
_LIST = "0"  # the page has one list of runs


@dataclass(frozen=True)
class PageInfo:
    """Everything on the page."""

    name: str
    title: str
    question: str
    experiment: str
    command: str
    core: str
    origin: str
    run_count: int
    several_seeds: bool
    crowded: bool
    gap_count: int
    gaps: tuple[str, ...]
    headlines: tuple[Headline, ...]
    main: MainTable
    full: FullTable
    verdicts: VerdictView
    statistics: tuple[TextTable, ...]
    charts: Charts
    anchors: Mapping[tuple[str, str], str]
    legend: tuple[tuple[str, str], ...]
    curves: tuple[InlineFigure, ...]
    diagnostics: tuple[tuple[str, tuple[InlineFigure, ...]], ...]
    mismatch: MismatchView | None
    audit: AuditView | None
    runs: tuple[RunGroup, ...]
    served: bool
    unused: tuple[str, ...]
    files: tuple[str, ...]
    answers: AnswersView | None = None


def page_info(
    board: Scoreboard,
    tables: tuple[MainTable, FullTable, tuple[TextTable, ...]],
    verdicts: VerdictView,
    shown: tuple[curves.CurvesInfo, diagnostics.DiagnosticsInfo | None],
    audit: AuditView | None,
    about: tuple[str, str, str, str],
    uri: str,
    files: Sequence[str],
    mismatch: MismatchView | None = None,
    answers: AnswersView | None = None,
) -> PageInfo:
    """Puts the page together; `about` is (name, title, question, command), `uri` that of the store."""
    name, title, question, command = about
    curves_shown, diagnostics_shown = shown
    anchors = anchors_of(board, _LIST)
    return PageInfo(
        name=name,
        title=title,
        question=question,
        experiment=board.data.experiment,
        command=command,
        core=tables[0].core,
        origin=origin(tables[0].core),
        run_count=len(board.runs),
        several_seeds=any(cell.expected > 1 for cell in board.cells.values()),
        gap_count=len(board.gaps),
        gaps=tuple(describe_gaps(board.gaps)),
        crowded=any(cell.expected > FEW for cell in board.cells.values()),
        headlines=headlines(board),
        main=tables[0],
        full=tables[1],
        verdicts=verdicts,
        statistics=tables[2],
        charts=charts_of(board, "main", anchors, curves_shown, diagnostics_shown),
        anchors=anchors,
        legend=curves_shown.legend,
        curves=inline_curves(curves_shown),
        diagnostics=inline_diagnostics(diagnostics_shown) if diagnostics_shown else (),
        mismatch=mismatch,
        audit=audit,
        runs=run_groups(board, _LIST, uri),
        served=uri.startswith("http"),
        unused=tuple(sorted(board.unused["run_id"])),
        files=tuple(files),
        answers=answers,
    )


def render_page(info: PageInfo) -> str:
    """The page as HTML. Every text in `info` is escaped; only the drawings (`InlineFigure.svg`) are markup. The page's
    policy lets the browser run its own script alone, known by its hash, and load nothing.
    """
    return render_template("page.html.j2", info, ANSWERS if info.answers else ())


def render_template(name: str, page: object, parts: Sequence[str] = ()) -> str:
    """One of the templates with its `page`; `parts` have a style and a script of their own."""
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.globals.update(plain=plain, steps_text=steps_text, drawing=Markup, charts_json=_charts_json)
    environment.globals["most_rows"] = MOST_ROWS
    script = "\n".join(_template(f"{part}.js") for part in ("page", *parts))
    style = "\n".join(_template(f"{part}.css") for part in ("page", *parts))
    return environment.get_template(name).render(
        page=page,
        style=Markup(style),  # noqa: S704  files of this package
        script=Markup(script),  # noqa: S704  files of this package
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
    )


def _charts_json(charts: Charts) -> Markup:
    return Markup(charts_json(charts))  # noqa: S704  escaped there


def _template(name: str) -> str:
    return resources.files("cppo_lab.reports").joinpath("templates", name).read_text(encoding="utf-8")
