"""From a request to a report, in the same three steps for a sweep, a study and a search.

1. score: `request.contents()` reads the runs and prepares tables and figures, not yet drawn
2. draw: every figure as PNG, SVG and PDF, with its numbers as CSV
3. page: a self-contained HTML page, without network access, dates or foreign scripts; and `report.json`, the record
   for programs: cells, runs, verdicts, and digests of figures and files

The report is replaced atomically: nothing at `request.out` changes until the whole folder is swapped in. The record
contains neither MLflow ids nor times, so that equal runs in different stores give equal records.
"""

import io
import json
import math
import re
import shlex
import zipfile
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from cppo_lab.analysis.inputs import SweepGrid
from cppo_lab.analysis.scoring import CellScore, RunScore, Scoreboard, Stat
from cppo_lab.errors import counted
from cppo_lab.files import appearing
from cppo_lab.reports.figures.drawing import USUAL_STYLE, Drawn, Picture, Style, dark_style, render
from cppo_lab.reports.names import escape_latex, origin
from cppo_lab.reports.saved import FORMAT, MARKER, PAGE, RECORD, require_ours
from cppo_lab.reports.sections import Section
from cppo_lab.reports.tables import latex_wrapper, table_files
from cppo_lab.reports.verdict_view import VerdictLine, reason
from cppo_lab.reports.words import METHODS

ZIP = "overleaf.zip"
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest date of the zip format: the same files give the same bytes
_SECTION = re.compile(r'<section id="([a-z_]+)"[^>]*>\s*(?:<details[^>]*>\s*<summary>)?<h2>(.*?)</h2>')
_MOST_ANSWERS = 6  # sentences that a page begins with; what is beyond them is in the tables
MOST_ROWS = 500  # of a table; a longer table is cut on the page, and complete in the files beside it


@dataclass(frozen=True)
class About:
    """Report-level information; `kind` is sweep, study or search. `withdrawn`: see `claims.withdrawn`, a sentence
    for each sweep. The record omits the question, the links and these sentences.
    """

    kind: str
    name: str
    title: str
    question: str
    experiment: str
    core: str
    command: str
    beside: tuple[str, ...] = ()  # sweeps whose reports are in sibling folders of their names
    withdrawn: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: str, request: Any, core: str, withdrawn: tuple[str, ...], **more: Any) -> "About":
        """Of the request of a sweep or a study."""
        copied = {key: getattr(request, key) for key in ("name", "title", "question", "experiment")}
        command = request.command or f"cppo report {request.name}"
        return cls(kind=kind, core=core, command=command, withdrawn=withdrawn, **copied, **more)

    @property
    def overrides(self) -> str:
        """The overrides on the command line; empty for the whole sweep as in its file."""
        try:
            words = shlex.split(self.command)
        except ValueError:  # not a valid shell command
            return ""
        before_options = takewhile(lambda word: not word.startswith("-"), words)
        return shlex.join(word for word in before_options if "=" in word)


@dataclass(frozen=True, eq=False)
class Contents:
    """The content of a report, scored and not yet drawn.

    `texts`: files by name. `pictures`: figures that are written to separate files. `boards`: the scored sweeps for the
    record. `page`: what `template` renders beside the `sections`, by name.
    """

    about: About
    texts: Mapping[str, str]
    pictures: tuple[Picture, ...]
    boards: Mapping[str, Scoreboard]
    template: str
    page: Mapping[str, Any]
    sections: tuple[Section, ...] = ()

    @property
    def figures(self) -> tuple[Picture, ...]:
        """All figures that are written."""
        return (*self.pictures, *(picture for section in self.sections for picture in section.pictures))


@dataclass(frozen=True, kw_only=True)
class BuildRequest(ABC):
    """What to report: of `experiment` of the store at `uri`, into folder `out`. `command` rebuilds the report. `style`:
    width and font of its figures.
    """

    uri: str
    experiment: str
    out: Path
    command: str = ""
    style: Style = USUAL_STYLE

    @abstractmethod
    def contents(self) -> Contents:
        """Raises UserError if the runs cannot be read or scored."""


@dataclass(frozen=True, kw_only=True)
class GridRequest(BuildRequest):
    """The report of the sweep or study `name`, of the runs of its `sweeps`. `title` and `question` head the page.
    `partial` allows a grid with gaps, which are marked. `palette`: the colours of the figures, a name in
    `drawing.PALETTES`.
    """

    name: str
    title: str
    question: str
    sweeps: tuple[SweepGrid, ...]
    partial: bool = False
    palette: str = "paper"


def build_report(request: BuildRequest, tell: Callable[[str], None] = lambda text: None) -> Path:
    """Build the report and return the path of its page, `index.html`. The same runs give the same bytes.

    `tell` takes what is done, once no input can be wrong any more. Raises UserError, with nothing written, if the runs
    cannot be read or scored, or if `request.out` exists and is no report of ours.
    """
    out = request.out.absolute()
    require_ours(out)
    contents = request.contents()
    runs, figures = (
        sum(len(board.runs) - len(board.gaps) for board in contents.boards.values()),
        len(contents.figures),
    )
    tell((f"scored {counted(runs, 'run')}; " if runs else "") + f"drawing {counted(figures, 'figure')}")
    files = _files(contents, request.style)
    tell("writing the page")
    about = f"{contents.about.name}; {origin(contents.about.core)}\n"
    with appearing(out, replace=True) as folder:
        for name, data in {**files, MARKER: about.encode()}.items():
            (folder / name).write_bytes(data)
    return request.out / PAGE


def _files(contents: Contents, style: Style) -> dict[str, bytes]:
    """All files of the report by name."""
    about, pictures, sections = contents.about, contents.figures, contents.sections
    figures = {picture.name: render(picture, about.command, style) for picture in pictures}
    drawn = {name: data for figure in figures.values() for name, data in figure.files.items()}
    texts = dict(contents.texts)
    for section in sections:
        texts |= table_files(section.tables)
    texts["tables.tex"] = latex_wrapper(texts)
    drawn[ZIP] = _overleaf(texts, drawn, pictures)
    page = {**contents.page, "sections": sections}
    texts[PAGE] = render_template(contents.template, about, page, figures, sorted([*texts, *drawn, RECORD]))
    files = {name: text.encode() for name, text in texts.items()} | drawn
    lines = [line for section in sections for line in section.lines]
    values = {name: value for section in sections for name, value in section.values.items()}
    return files | {RECORD: record(about, contents.boards, files, lines, values)}


def render_template(
    name: str, about: About, page: Mapping[str, Any], figures: Mapping[str, Drawn], files: Sequence[str]
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
    has_answers = any(section.name == "answers" for section in page["sections"])
    names = ("page", "answers") if has_answers else ("page",)
    script = "\n".join(_template(f"{part}.js") for part in names)
    style = "\n".join(_template(f"{part}.css") for part in names)
    return environment.get_template(name).render(
        about=about,
        page=page,
        figures=figures,
        files=files,
        style=f"{style}\n{dark_style()}",
        script=script,
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        sections=_SECTION.findall,  # ids and escaped headings, for the table of contents
        most_rows=MOST_ROWS,
        most_answers=_MOST_ANSWERS,
        origin=origin,
        counted=counted,
    )


def _template(name: str) -> str:
    return resources.files("cppo_lab.reports").joinpath("templates", name).read_text(encoding="utf-8")


def _overleaf(texts: Mapping[str, str], drawn: Mapping[str, bytes], pictures: Sequence[Picture]) -> bytes:
    """Every LaTeX table of `texts`, numbers and methods, every PDF of `drawn`, and `main.tex`, which shows them all."""
    figures = [
        "\\begin{figure}[htbp]\\centering\n"
        f"  \\includegraphics[width=\\linewidth]{{{picture.name}.pdf}}\n"
        f"  \\caption{{{escape_latex(f'{picture.title}. {picture.caption}'.strip())}}}\n\\end{{figure}}\\clearpage"
        for picture in pictures
        if f"{picture.name}.pdf" in drawn
    ]
    before = [rf"\input{{{name}}}" for name in ("numbers", METHODS) if f"{name}.tex" in texts]
    files = {"main.tex": latex_wrapper(texts, figures, before).encode()}
    files |= {
        name: text.encode()
        for name, text in texts.items()
        if (name.endswith(".tex") and name != "tables.tex") or name == f"{METHODS}.md"
    }
    files |= {name: data for name, data in drawn.items() if name.endswith(".pdf")}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return out.getvalue()


def record(
    about: About,
    boards: Mapping[str, Scoreboard],
    files: Mapping[str, bytes],
    lines: Sequence[VerdictLine] = (),
    values: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """The record of a report with these scored sweeps, files and claims, and further values of its sections."""
    content = {
        "format": FORMAT,
        **{key: getattr(about, key) for key in ("kind", "name", "title", "experiment", "core", "command")},
        "sweeps": [
            {
                "name": name,
                "cells": [_cell(cell) for cell in board.cells.values()],
                "runs": [_run(run, board.data.versions) for run in board.runs],
            }
            for name, board in boards.items()
        ],
        "verdicts": [_verdict(line) for line in lines],
        **values,
        "figures": {
            # Without a drawing's metadata, which name the command.
            name.removesuffix(".svg"): sha256(re.sub(rb"(?s)<metadata>.*?</metadata>", b"", data)).hexdigest()
            for name, data in sorted(files.items())
            if name.endswith(".svg")
        },
        "files": {name: sha256(data).hexdigest() for name, data in sorted(files.items())},
    }
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def _cell(cell: CellScore) -> dict[str, Any]:
    return {
        **{key: getattr(cell, key) for key in ("model", "variant", "state", "provisional", "expected")},
        "score": _stat(cell.score),
        "components": {name: _stat(stat) for name, stat in cell.components.items()},
    }


def _stat(stat: Stat | None) -> dict[str, float | int | None] | None:
    return None if stat is None else {"mean": _number(stat.mean), "std": _number(stat.std), "n": stat.n}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _run(run: RunScore, versions: Mapping[str, str]) -> dict[str, Any]:
    return {
        "key": f"{run.variant} on {run.model}, seed {'-' if run.seed is None else run.seed}",
        "run_id": run.run_id,
        "state": run.state.value,
        "step": run.choice.step,
        "score": _number(run.choice.score),
        "version": versions.get(run.mlflow_id, ""),
    }


def _verdict(line: VerdictLine) -> dict[str, Any]:
    """Estimates of a claim about errors are ratios of errors, or factors per tenfold horizon; `lead` of its power is
    the log of such a ratio, else a fraction.
    """
    verdict, claim = line.verdict, line.verdict.claim
    deciding, power = verdict.deciding, verdict.power
    estimate = None if deciding is None else deciding.estimate
    value, low, high = (None, None, None) if estimate is None else claim.as_reported(estimate)
    return {
        "claim": claim.key,
        "text": claim.text,
        "sweep": claim.sweep,
        "score": verdict.score.value,
        "outcome": verdict.outcome.value,
        "provisional": verdict.provisional,
        "reason": reason(verdict) + line.beside,
        "estimate": _number(value),
        "low": _number(low),
        "high": _number(high),
        "pairs": None if estimate is None else estimate.n,
        "exploratory": line.exploratory,
        "p_adjusted": None if deciding is None else _number(deciding.p_adjusted),
        "unit": claim.unit,
        "power": power
        and {
            "lead": power.lead,
            "power": _number(power.power),
            "runs": power.runs,
            "runs_needed": power.needed,
            "unknown": power.unknown,
        },
        "others": dict(sorted(verdict.others.items())),
    }
