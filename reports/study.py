"""The report of a study -- several sweeps of an experiment: Tables 1 to 4, Figures 1 to 11, the tables of the
ablations, and its page.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun, SweepGrid
from cppo_lab.analysis.scoring import Scoreboard, describe_gap
from cppo_lab.analysis.statistics.claims import NONE_STATED, Hypotheses, withdrawn
from cppo_lab.analysis.study import MAIN, StudyResults, read_study
from cppo_lab.errors import counted, has
from cppo_lab.reports.answers import answers_section, kept_answers
from cppo_lab.reports.build import About, Contents, GridRequest
from cppo_lab.reports.figures.drawing import PALETTES, Picture
from cppo_lab.reports.figures.gallery import MECHANISMS, SETTINGS, gallery
from cppo_lab.reports.health import collapse_section
from cppo_lab.reports.names import ABSENT, OURS, display_name
from cppo_lab.reports.sections import (
    Scored,
    Section,
    run_files,
    run_section,
    verdict_section,
)
from cppo_lab.reports.statistics_tables import statistics_section, with_looks
from cppo_lab.reports.tables import (
    FullTable,
    TextRow,
    TextTable,
    ablation_curves,
    full_table,
    main_grid,
    main_table,
    printed_table,
)
from cppo_lab.reports.verdict_view import short_answers
from cppo_lab.reports.words import findings_section, headlines, paper_texts
from cppo_lab.rules import RULES, Rule, known


@dataclass(frozen=True, kw_only=True)
class StudyRequest(GridRequest):
    """The report of the `sweeps` of a study. `stated`: their own hypotheses, by sweep.

    The sweep called "main" declares the models in the order of their roles: post-trained, then three Base models by
    size.
    """

    stated: Mapping[str, Hypotheses] = field(default_factory=dict)

    def contents(self) -> Contents:
        """Raises UserError as `read_study`."""
        claims = {name: stated.claims for name, stated in self.stated.items()}
        return study_contents(
            self, read_study(self.uri, self.experiment, self.name, self.sweeps, self.partial, claims)
        )


def paper_study_request(uri: str, out: Path, **about: Any) -> StudyRequest:
    """The study of the paper's curves, imported into the store by `cppo reference import`."""
    ablations: dict[str, dict[ExpectedRun, None]] = {}
    for row in ablation_curves()[["ablation", "model", "variant"]].drop_duplicates().itertuples():
        ablations.setdefault(row.ablation, {})[ExpectedRun(None, row.model, row.variant, None)] = None
    grids = [SweepGrid(MAIN, "Main results", "Is CPPO best on every model?", main_grid())]
    for name, heading in (*MECHANISMS, *SETTINGS):
        question = "An ablation of the paper, from its curves."
        grids.append(SweepGrid(name, heading, question, tuple(ablations[name])))
    return StudyRequest(
        name="study",
        uri=uri,
        experiment=schema.experiment_name(schema.PAPER),
        sweeps=tuple(grids),
        out=out,
        title="The paper's figures, drawn again from its curves",
        question="What do the paper's plotted curves show when they go through the report of our own runs?",
        **{"command": "cppo report study --from paper", **about},
    )


@dataclass(frozen=True, eq=False)
class StudyReport:
    """A study and its scored sweeps. `pictures`: its figures, which several sections show."""

    study: StudyResults
    scored: Mapping[str, Scored]
    pictures: tuple[Picture, ...]

    @property
    def main(self) -> Scored | None:
        """The main sweep."""
        return self.scored.get(MAIN)

    @property
    def anchors(self) -> Mapping[tuple[str, str], str]:
        """Those of the main sweep."""
        return self.main.anchors if self.main else {}

    @property
    def core(self) -> str:
        """The core behind the study's runs; several are named together."""
        cores = {core for sweep in self.scored.values() for core in sweep.board.core.split("+")}
        return "+".join(sorted(cores)) or schema.PAPER

    @cached_property
    def verdicts(self) -> Section:
        """The section on the claims."""
        return verdict_section(self.scored, self.core, whole=True)

    @cached_property
    def statistics(self) -> Mapping[str, Section]:
        """The section on the statistics of each sweep."""
        return {name: statistics_section(sweep) for name, sweep in self.scored.items()}

    @cached_property
    def table(self) -> TextTable | None:
        """Table 1."""
        main = self.main
        if main is None:
            return None
        return with_looks(main_table(main.board, "Mean score by model (Table 1)", main.statistics), main)


def study_contents(request: StudyRequest, study: StudyResults) -> Contents:
    """The report of a scored study."""
    palette = PALETTES[request.palette]
    scored = {
        sweep.grid.name: Scored(
            name=sweep.grid.name,
            title=sweep.grid.title,
            board=sweep.board,
            uri=request.uri,
            palette=palette,
            baseline=sweep.grid.baseline,
            stated=request.stated.get(sweep.grid.name, NONE_STATED),
            answers=kept_answers(request.uri, sweep.board) if sweep.grid.name == MAIN else {},
            suffix=f"_{sweep.grid.name}",
            number=number,
        )
        for number, sweep in enumerate(each for each in study.sweeps if each.board is not None)
        if sweep.board is not None
    }
    report = StudyReport(study, scored, gallery(study, palette))
    sentences = (sentence for name, stated in request.stated.items() for sentence in withdrawn(name, stated))
    about = About.of("study", request, report.core, tuple(sentences))
    sections = tuple(section for section in study_sections(report) if section)
    stated = report.main.standings if report.main else ()
    hypotheses = [line for line in report.verdicts.lines if line.verdict.claim in stated]
    files = paper_texts(scored.values(), sections, about.withdrawn)
    for name, of_sweep in scored.items():
        files |= run_files(of_sweep.board, f"long_{name}", f"runs_{name}")
    gaps: dict[str, list[str]] = {}
    for name, board in study.boards.items():
        for run in board.gaps:
            gaps.setdefault(describe_gap(run), []).append(name)
    missing = f", of which {len(gaps)} {has(len(gaps))} no result yet" if gaps else ""
    absent = [f"Sweep {sweep.grid.name}: {sweep.absent}" for sweep in study.sweeps if sweep.board is None]
    absent += [
        f"Hypotheses of sweep {name} about the error of the surrogate: see the report of that sweep"
        for name, of_sweep in scored.items()
        if any(claim.of_errors for claim in of_sweep.standings)
    ]
    absent += [f"{picture.heading}: {picture.absent}" for picture in report.pictures if picture.absent]
    return Contents(
        about=about,
        texts=files,
        pictures=report.pictures,
        boards=study.boards,
        template="page.html.j2",
        page={
            "kind": "study",
            "short": short_answers(hypotheses, report.main.statistics) if report.main else (),
            "caution": report.verdicts.view["caution"],
            "counts": f"{counted(_run_count(report), 'run')} in {counted(len(study.sweeps), 'sweep')}{missing}.",
            "gaps": [f"{gap}: in {', '.join(sweeps)}" for gap, sweeps in gaps.items()],
            "gap_count": len(gaps),
            "absent": absent,
            "anchors": {name: of_sweep.anchors for name, of_sweep in scored.items()},
        },
        sections=sections,
    )


def study_sections(report: StudyReport) -> list[Section | None]:
    """The sections of a study's page, in its order; None for a section with nothing to show."""
    return [
        _main(report),
        report.verdicts,
        _findings(report),
        _figures(report),
        _of_main(report.statistics),
        _of_main({name: collapse_section(sweep) for name, sweep in report.scored.items()}),
        _ablations(report),
        _figure_list("mechanism", "The mechanism at work", "Figures 2, 3 and 7", 2, 3, 7),
        _methods(report),
        _figure_list("models", "All curves, model by model", "Figures 8 to 11", 8, 9, 10, 11),
        answers_section(report.main) if report.main else None,
        _runs(report),
    ]


def _main(report: StudyReport) -> Section:
    absent, anchors = "" if report.main else report.study.why_absent(MAIN), report.anchors
    view = {"table": report.table, "absent": absent, "anchors": anchors}
    return Section("main", "Main results", view, tables={"table_1": report.table})


def _findings(report: StudyReport) -> Section:
    """The findings of the main sweep by model, and of each ablation under its title."""
    return findings_section(
        [
            (about if name == MAIN else f"{sweep.title} ({about})", sentences)
            for name, sweep in report.scored.items()
            for about, sentences in headlines(sweep.board)
        ]
    )


def _figures(report: StudyReport) -> Section:
    main = report.main
    full = full_table(main.board, "Score by benchmark (Table 4)") if main else None
    view = {"table": full, "anchors": report.anchors}
    title = "The largest model and scores by benchmark"
    return Section("figures", title, view, "Figure 1, Table 4", "largest", {"table_4": full})


def _of_main(sections: Mapping[str, Section | None]) -> Section | None:
    """A section on the main sweep; its tables are those of every sweep."""
    made = filter(None, sections.values())
    tables = {stem: table for section in made for stem, table in section.tables.items()}
    section = sections.get(MAIN)
    if section is None:
        return Section("", "", {}, tables=tables) if tables else None
    return replace(section, tables=tables)


def _ablations(report: StudyReport) -> Section:
    """The sweeps other than the main sweep: table, and the notes that the main table does not have."""
    shown, tables = [], dict[str, FullTable | None]()
    main_notes = report.table.notes if report.table else ()
    for sweep in report.study.sweeps:
        name, scored = sweep.grid.name, report.scored.get(sweep.grid.name)
        if name == MAIN:
            continue
        table = full_table(scored.board, sweep.grid.title) if scored else None
        notes = [note for note in table.notes if note not in main_notes] if table else []
        tables[f"table_{name}"], of_sweep = table, report.statistics[name].view if scored else {}
        shown.append({"sweep": sweep, "table": table, "notes": notes, "statistics": of_sweep})
    hint = f"Figures 5 and 6, {len(shown)} tables"
    return Section("ablations", "Ablations", {"shown": shown}, hint, tables=tables)


def _figure_list(name: str, title: str, hint: str, *numbers: int) -> Section:
    view = {"figures": [f"figure_{number}" for number in numbers]}
    return Section(name, title, view, hint, "figure_list")


def _methods(report: StudyReport) -> Section:
    used = {run.rule for sweep in report.scored.values() for run in sweep.board.runs if run.rule}
    models, title = report.study.models, "Configuration of each model (Table 3)"
    tables = {
        "table_2": comparison_table("How the rules differ (Table 2)", used),
        "table_3": configuration_table(report.main.board, models, title) if report.main else None,
    }
    view = {"tables": [table for table in tables.values() if table], "anchors": {}}
    return Section("methods", "Methods and settings", view, "Tables 2 and 3", "statistics", tables=tables)


def _runs(report: StudyReport) -> Section:
    boards = [sweep.board for sweep in report.scored.values()]
    used = {run.run_id for board in boards for run in board.runs}
    unused = {run_id for board in boards for run_id in board.unused["run_id"]} - used
    return run_section(report.scored, _run_count(report), sorted(unused))


def _run_count(report: StudyReport) -> int:
    runs = [run for sweep in report.scored.values() for run in sweep.board.runs]
    return len({run.mlflow_id or describe_gap(run) for run in runs})


# Tables 2 and 3: how the rules differ, and the configuration of each model.

_RULE_HEADINGS = ("Bounds", "Decides per", "Position", "Prefix", "Beyond it", "In this study")
_YES, _NO = "yes", "no"


def comparison_table(title: str, used: Collection[str]) -> TextTable:
    """All built-in rules, and the others in `used`, the rules of the report's runs."""
    others = sorted(set(used) - set(RULES))
    rows = []
    for name in (*RULES, *others):
        rule = known(name)
        cells = rule.row.cells if isinstance(rule, Rule) and rule.row is not None else (ABSENT,) * 5
        rows.append(TextRow(display_name(name), name == OURS, (*cells, _YES if name in used else _NO)))
    notes = (
        "Position, Prefix: whether the limit of a token depends on its position, and on the tokens before it.",
        "Beyond it: masked, no objective; clipped, no gradient; capped, the coefficient stops growing and the "
        "token keeps its gradient; weighed less, the weight falls below 1.",
    )
    return TextTable(title, "Rule", _RULE_HEADINGS, rows, notes)


def _updates(params: Mapping[str, str]) -> str | None:
    try:
        return str(int(params["batch.prompts"]) // int(params["batch.minibatch_prompts"]))
    except (KeyError, ValueError, ZeroDivisionError):
        return None


# The paper's columns (as in `paper/table_config.csv`), then ours. Keys are those of the logged configuration, and
# `updates`.
_COLUMNS = {
    "Prompts": "batch.prompts",
    "n": "batch.responses",
    "Minibatch": "batch.minibatch_prompts",
    "Updates": "updates",
    "T_max": "rollout.max_response_length",
    "delta": "rule.delta",
    "delta_b_min": "rule.delta_b",
    "w_min": "rule.w_min",
    "Learning rate": "optim.learning_rate",
    "T_stop": "training.t_stop",
}
_PRINTED = ("prompts", "n", "minibatch", "updates", "t_max", "delta", "delta_b_min", "w_min")


def configuration_table(board: Scoreboard, models: Sequence[str], title: str) -> TextTable:
    """One row per model; if its runs differ in a value, all values are listed."""
    core = board.core
    if core == schema.PAPER:
        printed = {
            row["model"]: tuple(row[name] for name in _PRINTED) for row in printed_table("table_config")
        }
        rows = [TextRow(model, False, printed[model]) for model in models if model in printed]
        headings = [*_COLUMNS][: len(_PRINTED)]
        return TextTable(title, "Model", headings, rows, ("As printed in the paper's Table 3.",), core)
    rows = []
    for model in models:
        of_runs = [board.params_of(run) for run in board.runs_of(model, OURS)]
        logged = [{**params, "updates": _updates(params)} for params in of_runs]
        # In the order of the runs.
        values = (
            dict.fromkeys(value for params in logged if (value := params.get(key)) is not None)
            for key in _COLUMNS.values()
        )
        rows.append(TextRow(model, False, tuple(" / ".join(of_column) or ABSENT for of_column in values)))
    notes = (
        f"As logged by the runs of {display_name(OURS)}. Prompts and Minibatch count prompts, n responses per prompt, "
        "T_max tokens. delta_b_min is the rate itself where the budget is fixed.",
    )
    return TextTable(title, "Model", [*_COLUMNS], rows, notes, core)
