"""One self-contained HTML page: frozen info in, text out. No network, no scripts, no dates."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from cppo_lab.analysis.audit import percent, round_half_up
from cppo_lab.analysis.scoring import Scoreboard, describe_gap
from cppo_lab.analysis.selection import RunScore
from cppo_lab.reports.audit_view import ABSENT, AuditView
from cppo_lab.reports.figures import curves, diagnostics
from cppo_lab.reports.figures.inline import InlineFigure, inline_curves, inline_diagnostics
from cppo_lab.reports.headlines import Headline, headlines
from cppo_lab.reports.markup import plain, steps_text
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.tables import FullTable, MainTable
from cppo_lab.reports.text_tables import TextTable


@dataclass(frozen=True)
class RunLine:
    """One row of the list of runs, as text."""

    label: str
    model: str
    seed: str
    state: str
    t_stop: str
    step: str
    score: str
    run_id: str
    mlflow_id: str


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
    gaps: tuple[str, ...]
    headlines: tuple[Headline, ...]
    main: MainTable
    full: FullTable
    intervals: TextTable | None
    legend: tuple[tuple[str, str], ...]
    curves: tuple[InlineFigure, ...]
    diagnostics: tuple[tuple[str, tuple[InlineFigure, ...]], ...]
    audit: AuditView | None
    runs: tuple[RunLine, ...]
    unused: tuple[str, ...]
    files: tuple[str, ...]


def page_info(
    board: Scoreboard,
    tables: tuple[MainTable, FullTable, TextTable | None],
    shown: tuple[curves.CurvesInfo, diagnostics.DiagnosticsInfo | None],
    audit: AuditView | None,
    about: tuple[str, str, str, str],
    files: Sequence[str],
) -> PageInfo:
    """Puts the page together; `about` is (name, title, question, command)."""
    name, title, question, command = about
    curves_shown, diagnostics_shown = shown
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
        gaps=tuple(describe_gap(run) for run in board.gaps),
        headlines=headlines(board),
        main=tables[0],
        full=tables[1],
        intervals=tables[2],
        legend=curves_shown.legend,
        curves=inline_curves(curves_shown),
        diagnostics=inline_diagnostics(diagnostics_shown) if diagnostics_shown else (),
        audit=audit,
        runs=tuple(run_line(run) for run in board.runs),
        unused=tuple(sorted(board.unused["run_id"])),
        files=tuple(files),
    )


def render_page(info: PageInfo) -> str:
    """The page as HTML. Every text in `info` is escaped; only the drawings (`InlineFigure.svg`) are
    markup.
    """
    return render_template("page.html.j2", info)


def render_template(name: str, page: object) -> str:
    """One of the templates with its `page`."""
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.globals.update(plain=plain, steps_text=steps_text, drawing=Markup)
    return environment.get_template(name).render(page=page, style=Markup(_template("page.css")))


def _template(name: str) -> str:
    return resources.files("cppo_lab.reports").joinpath("templates", name).read_text(encoding="utf-8")


def run_line(run: RunScore) -> RunLine:
    """A run as a row of the list."""
    choice = run.choice
    score = ABSENT if choice.score is None else str(round_half_up(percent(choice.score)))
    return RunLine(
        label=display_name(run.variant),
        model=run.model,
        seed=ABSENT if run.seed is None else str(run.seed),
        state=run.state.value + (f": {run.reason}" if run.reason else ""),
        t_stop=ABSENT if run.t_stop is None else str(run.t_stop),
        step=ABSENT if choice.step is None else str(choice.step),
        score=score,
        run_id=run.run_id or ABSENT,
        mlflow_id=run.mlflow_id or ABSENT,
    )
