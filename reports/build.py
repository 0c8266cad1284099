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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from cppo_lab.analysis.inputs import SweepGrid
from cppo_lab.analysis.scoring import Scoreboard, Stat
from cppo_lab.analysis.statistics.claims import NONE_STATED, Hypotheses, withdrawn
from cppo_lab.errors import counted, has
from cppo_lab.files import appearing
from cppo_lab.reports.figures.drawing import (
    PALETTES,
    USUAL_STYLE,
    Drawn,
    Picture,
    Style,
    dark_style,
    render,
)
from cppo_lab.reports.names import escape_json, escape_latex, origin
from cppo_lab.reports.saved import FORMAT, MARKER, PAGE, RECORD, require_ours, words_of
from cppo_lab.reports.sections import Scored, Section, long_csv, runs_csv
from cppo_lab.reports.tables import latex_wrapper, table_files
from cppo_lab.reports.verdict_view import reason, short_answers
from cppo_lab.reports.words import METHODS, paper_texts

ZIP = "overleaf.zip"
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest date of the zip format: the same files give the same bytes
_SECTION = re.compile(r'<section id="([a-z_]+)"[^>]*>\s*(?:<details[^>]*>\s*<summary>)?<h2>(.*?)</h2>')
_MOST_ANSWERS = 6  # sentences that a page begins with; what is beyond them is in the tables
MOST_ROWS = 500  # of a table; a longer table is cut on the page, and complete in the files beside it
_OF_CELL = ("model", "variant", "state", "provisional", "expected")


@dataclass(frozen=True, eq=False, kw_only=True)
class Contents:
    """A report, scored and not yet drawn. `kind` is sweep, study or search.

    `texts`: files by name. `boards`: the scored sweeps for the record. `page`: what `template` renders beside the
    `sections`, by name. `pictures`: figures that are written to separate files. `withdrawn`: see `claims.withdrawn`, a
    sentence for each sweep. The record omits the question, the links and these sentences.
    """

    kind: str
    name: str
    title: str
    question: str
    experiment: str
    core: str
    command: str
    texts: Mapping[str, str]
    boards: Mapping[str, Scoreboard]
    template: str
    page: Mapping[str, Any]
    pictures: tuple[Picture, ...] = ()
    sections: tuple[Section, ...] = ()
    beside: tuple[str, ...] = ()  # sweeps whose reports are in sibling folders of their names
    withdrawn: tuple[str, ...] = ()

    @property
    def overrides(self) -> str:
        """The overrides on the command line; empty for the whole sweep as in its file."""
        return shlex.join(word for word in words_of(self.command) if "=" in word)

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
    `stated`: the hypotheses of each sweep, by its name. `beside`: sweeps whose pages are linked. `partial` allows a
    grid with gaps, which are marked. `palette`: the colours of the figures, a name in `drawing.PALETTES`.
    """

    name: str
    title: str
    question: str
    sweeps: tuple[SweepGrid, ...]
    stated: Mapping[str, Hypotheses] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    partial: bool = False
    palette: str = "paper"

    def scored(self, grid: SweepGrid, board: Scoreboard, title: str, **more: Any) -> Scored:
        """The scored sweep, as its sections need it."""
        return Scored(
            name=grid.name,
            title=title,
            board=board,
            uri=self.uri,
            palette=PALETTES[self.palette],
            baseline=grid.baseline,
            stated=self.stated.get(grid.name, NONE_STATED),
            **more,
        )

    def report(
        self,
        kind: str,
        core: str,
        scored: Mapping[str, Scored],
        main: Scored | None,
        sections: Iterable[Section | None],
        gaps: Sequence[str],
        gap_count: int,
        counts: str,
        pictures: tuple[Picture, ...] = (),
        **page: Any,
    ) -> Contents:
        """The contents of a report with these `sections` on its `scored` sweeps. It begins with the hypotheses of the
        `main` sweep, without one with those of all. `gaps` lists `gap_count` runs, `counts` the numbers of all;
        `page`: what else the page shows.
        """
        shown = tuple(section for section in sections if section)
        first = [main] if main else [*scored.values()]
        stated = {claim for sweep in first for claim in sweep.standings}
        lines = [line for section in shown for line in section.lines if line.verdict.claim in stated]
        sentences = tuple(text for name, stated in self.stated.items() for text in withdrawn(name, stated))
        texts = paper_texts(scored.values(), shown, sentences)
        for sweep in scored.values():
            scores = f"long{sweep.suffix}.csv" if sweep.suffix else "table_long.csv"
            texts |= {scores: long_csv(sweep.board), f"runs{sweep.suffix}.csv": runs_csv(sweep.board)}
        if gap_count:
            counts += f", of which {gap_count} {has(gap_count)} no result yet"
        return Contents(
            kind=kind,
            name=self.name,
            title=self.title,
            question=self.question,
            experiment=self.experiment,
            core=core,
            command=self.command or f"cppo report {self.name}",
            beside=self.beside,
            withdrawn=sentences,
            texts=texts,
            pictures=pictures,
            boards={name: sweep.board for name, sweep in scored.items()},
            template="page.html.j2",
            page={
                "short": short_answers(lines, first[0].statistics) if main or lines else (),
                "counts": f"{counts}.",
                "gaps": gaps,
                "gap_count": gap_count,
                "anchors": {name: sweep.anchors for name, sweep in scored.items()},
                **page,
            },
            sections=shown,
        )


def build_report(request: BuildRequest, tell: Callable[[str], None] = lambda text: None) -> Path:
    """Build the report and return the path of its page, `index.html`. The same runs give the same bytes.

    `tell` takes what is done, once no input can be wrong any more. Raises UserError, with nothing written, if the runs
    cannot be read or scored, or if `request.out` exists and is no report of ours.
    """
    out = request.out.absolute()
    require_ours(out)
    contents = request.contents()
    pictures = contents.figures
    runs = sum(len(board.runs) - len(board.gaps) for board in contents.boards.values())
    tell((f"scored {counted(runs, 'run')}; " if runs else "") + f"drawing {counted(len(pictures), 'figure')}")
    figures = {picture.name: render(picture, contents.command, request.style) for picture in pictures}
    drawn = {name: data for figure in figures.values() for name, data in figure.files.items()}
    texts = dict(contents.texts)
    for section in contents.sections:
        texts |= table_files(section.tables)
    texts["tables.tex"] = latex_wrapper(texts)
    drawn[ZIP] = _overleaf(texts, drawn, pictures)
    texts[PAGE] = render_template(contents, figures, sorted([*texts, *drawn, RECORD]))
    files = {name: text.encode() for name, text in texts.items()} | drawn
    files[RECORD] = record(contents, files)
    files[MARKER] = f"{contents.name}; {origin(contents.core)}\n".encode()
    tell("writing the page")
    with appearing(out, replace=True) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
    return request.out / PAGE


def render_template(contents: Contents, figures: Mapping[str, Drawn], files: Sequence[str]) -> str:
    """The HTML of the page; `figures` are by name, `files` are the names of the files beside it.

    Every text is escaped; only drawings and the numbers of curves are markup. The page's Content-Security-Policy lets
    the browser run only our script, identified by its hash, and load nothing. A page with `answers` has an additional
    style sheet and script.
    """
    folder = resources.files("cppo_lab.reports") / "templates"
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    has_answers = any(section.name == "answers" for section in contents.sections)
    names = ("page", "answers") if has_answers else ("page",)
    script, style = (
        "\n".join((folder / f"{part}.{kind}").read_text("utf-8") for part in names) for kind in ("js", "css")
    )
    return environment.get_template(contents.template).render(
        about=contents,
        page=contents.page,
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
        escape_json=escape_json,
    )


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


def record(contents: Contents, files: Mapping[str, bytes]) -> bytes:
    """The record of a report with these files.

    Estimates of a claim about errors are ratios of errors, or factors per tenfold horizon; `lead` of its power is the
    log of such a ratio, else a fraction.
    """
    verdicts = []
    for line in (line for section in contents.sections for line in section.lines):
        verdict, claim, power = line.verdict, line.verdict.claim, line.verdict.power
        deciding, estimate = verdict.deciding, verdict.deciding and verdict.deciding.estimate
        value, low, high = claim.as_reported(estimate) if estimate else (None, None, None)
        entry = {
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
            "pairs": estimate and estimate.n,
            "exploratory": line.exploratory,
            "p_adjusted": deciding and _number(deciding.p_adjusted),
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
        verdicts.append(entry)
    content = {
        "format": FORMAT,
        **{key: getattr(contents, key) for key in ("kind", "name", "title", "experiment", "core", "command")},
        "sweeps": [
            {
                "name": name,
                "cells": [
                    {
                        **{key: getattr(cell, key) for key in _OF_CELL},
                        "score": _stat(cell.score),
                        "components": {part: _stat(stat) for part, stat in cell.components.items()},
                    }
                    for cell in board.cells.values()
                ],
                "runs": [
                    {
                        "key": f"{run.variant} on {run.model}, seed {'-' if run.seed is None else run.seed}",
                        "run_id": run.run_id,
                        "state": run.state.value,
                        "step": run.choice.step,
                        "score": _number(run.choice.score),
                        "version": board.data.versions.get(run.mlflow_id, ""),
                    }
                    for run in board.runs
                ],
            }
            for name, board in contents.boards.items()
        ],
        "verdicts": verdicts,
        **{name: value for section in contents.sections for name, value in section.values.items()},
        "figures": {
            # Without a drawing's metadata, which name the command.
            name.removesuffix(".svg"): sha256(re.sub(rb"(?s)<metadata>.*?</metadata>", b"", data)).hexdigest()
            for name, data in sorted(files.items())
            if name.endswith(".svg")
        },
        "files": {name: sha256(data).hexdigest() for name, data in sorted(files.items())},
    }
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def _stat(stat: Stat | None) -> dict[str, float | int | None] | None:
    return None if stat is None else {"mean": _number(stat.mean), "std": _number(stat.std), "n": stat.n}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
