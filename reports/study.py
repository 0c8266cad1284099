"""The report of a study -- several sweeps of an experiment: Tables 1 to 4, Figures 1 to 11, the tables of the
ablations, and its page.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun, SweepGrid
from cppo_lab.analysis.scoring import Scoreboard, describe_gap
from cppo_lab.analysis.statistics.claims import CLAIMS
from cppo_lab.analysis.study import MAIN, StudyResults, read_study
from cppo_lab.errors import counted
from cppo_lab.reports.answers import answers_section, kept_answers
from cppo_lab.reports.build import Contents, GridRequest
from cppo_lab.reports.figures.drawing import PALETTES
from cppo_lab.reports.figures.gallery import MECHANISMS, SETTINGS, gallery
from cppo_lab.reports.health import collapse_section
from cppo_lab.reports.names import ABSENT, OURS, display_name
from cppo_lab.reports.sections import Scored, Section, run_section, verdict_section
from cppo_lab.reports.statistics_tables import statistics_section, with_looks
from cppo_lab.reports.tables import (
    TextRow,
    TextTable,
    ablation_curves,
    full_table,
    main_grid,
    main_table,
    printed_table,
)
from cppo_lab.reports.words import findings_section, headlines
from cppo_lab.rules import RULES, Rule, known


@dataclass(frozen=True, kw_only=True)
class StudyRequest(GridRequest):
    """The report of the `sweeps` of a study.

    The sweep called "main" declares the models in the order of their roles: post-trained, then three Base models by
    size.
    """

    def contents(self) -> Contents:
        """Raises UserError as `read_study`."""
        claims = {name: stated.claims for name, stated in self.stated.items()}
        return study_contents(
            self, read_study(self.uri, self.experiment, self.name, self.sweeps, self.partial, claims)
        )


def paper_study_request(uri: str, out: Path, **about: Any) -> StudyRequest:
    """The study of the paper's curves, imported into the store by `cppo reference import`."""
    curves = ablation_curves()[["ablation", "model", "variant"]].drop_duplicates()
    grids = [SweepGrid(MAIN, "Main results", "Is CPPO best on every model?", main_grid())]
    for name, heading in (*MECHANISMS, *SETTINGS):
        rows = curves[curves["ablation"] == name].itertuples()
        runs = tuple(ExpectedRun(None, row.model, row.variant, None) for row in rows)
        grids.append(SweepGrid(name, heading, "An ablation of the paper, from its curves.", runs))
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


def study_contents(request: StudyRequest, study: StudyResults) -> Contents:
    """The report of a scored study."""
    scored: dict[str, Scored] = {}
    for grid in study.grids:
        if board := study.boards.get(grid.name):
            answers = kept_answers(request.uri, board) if grid.name == MAIN else {}
            place = {"suffix": f"_{grid.name}", "number": len(scored)}
            scored[grid.name] = request.scored(grid, board, grid.title, answers=answers, **place)
    # The core behind the study's runs; several are named together.
    cores = {core for board in study.boards.values() for core in board.core.split("+")}
    core = "+".join(sorted(cores)) or schema.PAPER
    of_paper = not {claim.sweep for claim in CLAIMS}.isdisjoint(grid.name for grid in study.grids)
    pictures = gallery(study, PALETTES[request.palette]) if of_paper else ()
    verdicts = verdict_section(scored, core, whole=True)
    gaps: dict[tuple[str | None, str], list[str]] = {}  # sweeps may have different runs under one name
    for name, board in study.boards.items():
        for run in board.gaps:
            gaps.setdefault((run.run_id, describe_gap(run)), []).append(name)
    absent = [f"Sweep {name}: {why}" for name, why in study.absent.items()]
    absent += [
        f"Hypotheses of sweep {name} about the error of the surrogate: see the report of that sweep"
        for name, of_sweep in scored.items()
        if any(claim.of_errors for claim in of_sweep.standings)
    ]
    absent += [f"{picture.heading}: {picture.absent}" for picture in pictures if picture.absent]
    runs = [run for board in study.boards.values() for run in board.runs]
    count = len({run.run_id or describe_gap(run) for run in runs})
    unused = {run_id for board in study.boards.values() for run_id in board.unused["run_id"]}
    main = scored.get(MAIN)
    anchors = main.anchors if main else {}
    table_1 = None
    if main:
        table_1 = main_table(main.board, "Mean score by model (Table 1)", main.statistics)
        table_1 = with_looks(table_1, main)
    table_4 = full_table(main.board, "Score by benchmark (Table 4)") if main else None
    findings = [
        (about if name == MAIN else f"{sweep.title} ({about})", sentences)
        for name, sweep in scored.items()
        for about, sentences in headlines(sweep.board)
    ]
    statistics = {name: statistics_section(sweep) for name, sweep in scored.items()}
    collapses = {name: collapse_section(sweep) for name, sweep in scored.items()}
    of_sweeps = filter(None, (*statistics.values(), *collapses.values()))  # whose tables are files
    files = {stem: table for section in of_sweeps for stem, table in section.tables.items()}
    ablations, tables = [], {}
    for grid in study.grids:
        name, board = grid.name, study.boards.get(grid.name)
        if name == MAIN:
            continue
        table = full_table(board, grid.title) if board else None
        tables[f"table_{name}"] = table
        ablations.append(
            {
                "grid": grid,
                "absent": study.absent.get(name),
                "table": table,
                # Those that the main table does not have.
                "notes": [note for note in table.notes if not table_1 or note not in table_1.notes]
                if table
                else [],
                "statistics": statistics[name].view if board else {},
            }
        )
    used = {run.rule for board in study.boards.values() for run in board.runs if run.rule}
    title = "Configuration of each model (Table 3)"
    methods = {
        "table_2": comparison_table("How the rules differ (Table 2)", used),
        "table_3": configuration_table(main.board, study.models, title) if main else None,
    }
    shown = {"tables": [table for table in methods.values() if table], "anchors": {}}
    sections = [  # in the order of the page; None for a section with nothing to show
        Section(
            "main",
            "Main results",
            {"table": table_1, "absent": "" if main else study.why_absent(MAIN), "anchors": anchors},
            tables=files | {"table_1": table_1},
        ),
        verdicts,
        findings_section(findings),
        Section(
            "figures",
            "The largest model and scores by benchmark",
            {"table": table_4, "anchors": anchors},
            "Figure 1, Table 4",
            "largest",
            {"table_4": table_4},
        ),
        statistics.get(MAIN),
        collapses.get(MAIN),
        Section(
            "ablations",
            "Ablations" if of_paper else "Sweeps",
            {"shown": ablations, "figures": ["figure_5", "figure_6"] * of_paper},
            f"Figures 5 and 6, {len(ablations)} tables" if of_paper else None,
            tables=tables if of_paper else files | tables,
        ),
        _figure_list("mechanism", "The mechanism at work", "Figures 2, 3 and 7", 2, 3, 7),
        Section(
            "methods",
            "Methods and settings",
            shown,
            "Tables 2 and 3" if main else "Table 2",
            "statistics",
            methods,
        ),
        _figure_list("models", "All curves, model by model", "Figures 8 to 11", 8, 9, 10, 11),
        answers_section(main) if main else None,
        run_section(scored, count, sorted(unused - {run.run_id for run in runs})),
    ]
    return request.report(
        "study",
        core,
        scored,
        main,
        [section for section in sections if section and (of_paper or section.name not in _OF_PAPER)],
        gaps=[f"{gap}: in {', '.join(sweeps)}" for (_, gap), sweeps in gaps.items()],
        gap_count=len({run_id or gap for run_id, gap in gaps}),
        counts=f"{counted(count, 'run')} in {counted(len(study.grids), 'sweep')}",
        pictures=pictures,
        caution=verdicts.view["caution"],
        absent=absent,
    )


_OF_PAPER = ("main", "figures", "mechanism", "models")  # sections of the paper's own tables and figures


def _figure_list(name: str, title: str, hint: str, *numbers: int) -> Section:
    view = {"figures": [f"figure_{number}" for number in numbers]}
    return Section(name, title, view, hint, "figure_list")


# Tables 2 and 3: how the rules differ, and the configuration of each model.

_RULE_HEADINGS = ("Bounds", "Decides per", "Position", "Prefix", "Beyond it", "In this study")


def comparison_table(title: str, used: Collection[str]) -> TextTable:
    """All built-in rules, and the others in `used`, the rules of the report's runs."""
    rows = []
    for name in (*RULES, *sorted(set(used) - set(RULES))):
        rule = known(name)
        cells = rule.row if isinstance(rule, Rule) and rule.row is not None else (ABSENT,) * 5
        rows.append(TextRow(display_name(name), name == OURS, (*cells, "yes" if name in used else "no")))
    notes = (
        "Position, Prefix: whether the limit of a token depends on its position, and on the tokens before it.",
        "Beyond it: masked, no objective; clipped, no gradient; capped, the coefficient stops growing and the "
        "token keeps its gradient; weighed less, the weight falls below 1.",
    )
    return TextTable(title, "Rule", _RULE_HEADINGS, rows, notes)


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
        logged = [dict(board.params_of(run)) for run in board.runs_of(model, OURS)]
        for params in logged:
            with suppress(KeyError, ValueError, ZeroDivisionError):
                updates = int(params["batch.prompts"]) // int(params["batch.minibatch_prompts"])
                params["updates"] = str(updates)
        # In the order of the runs.
        values = (
            dict.fromkeys(params[key] for params in logged if key in params) for key in _COLUMNS.values()
        )
        rows.append(TextRow(model, False, tuple(" / ".join(of_column) or ABSENT for of_column in values)))
    notes = (
        f"As logged by the runs of {display_name(OURS)}. Prompts and Minibatch count prompts, n responses per prompt, "
        "T_max tokens. delta_b_min is the rate itself where the budget is fixed.",
    )
    return TextTable(title, "Model", [*_COLUMNS], rows, notes, core)
