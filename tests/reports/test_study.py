"""The report of a study: every figure from a made-up store, gaps named, collapse handled, the same bytes again."""

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.analysis.selection import SelectionState
from cppo_lab.analysis.statistics.claims import CLAIMS
from cppo_lab.analysis.study import StudyResults, read_study
from cppo_lab.errors import UserError
from cppo_lab.reports.build import build_report
from cppo_lab.reports.figures import gallery as paper
from cppo_lab.reports.figures import model_curves, schematic, tokens, training
from cppo_lab.reports.names import METHOD_ORDER
from cppo_lab.reports.printed import comparison_table, configuration_table
from cppo_lab.reports.saved import MARKER
from cppo_lab.reports.study import StudyRequest, paper_study_request
from cppo_lab.rules import RULES
from tests.reports.made_study import BENCHMARKS, METHODS, MODELS, SWEEPS, MadeStudy

MADE = MadeStudy()
FIGURES = {
    f"figure_{name}.{kind}" for name in (*range(1, 12), "survival") for kind in ("png", "svg", "pdf", "csv")
}


@pytest.fixture(scope="session")
def made_store(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The store of the whole made-up study. Do not write to it."""
    folder = tmp_path_factory.mktemp("study")
    shutil.copy(empty_store, folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    MADE.write(uri, folder)
    return uri


@pytest.fixture(scope="session")
def study(made_store: str) -> StudyResults:
    return read_study(made_store, "cppo-mini", "study", MADE.grids())


def request_for(uri: str, out: Path) -> StudyRequest:
    return StudyRequest("study", uri, "cppo-mini", MADE.grids(), out, "A study", "Does it hold?")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_models_take_their_roles_in_the_order_of_the_declaration(study: StudyResults) -> None:
    assert study.models == MODELS
    headings = [picture.heading for picture in paper.gallery(study)]
    assert headings[7:] == [
        f"Figure {8 + index}. All curves of {model}" for index, model in enumerate(MODELS)
    ]
    turned = replace_models(study, ("moe", "base_m", "base_s", "post"))
    assert [picture.heading for picture in paper.gallery(turned)][7] == "Figure 8. All curves of moe"
    assert "post, with the best score" in paper.gallery(turned)[0].caption


def replace_models(study: StudyResults, models: Sequence[str]) -> StudyResults:
    """The same study, its main sweep declared in another order."""
    main = study.sweeps[0]
    expected = sorted(main.grid.expected, key=lambda run: models.index(run.model))
    return replace(
        study, sweeps=(replace(main, grid=replace(main.grid, expected=tuple(expected))), *study.sweeps[1:])
    )


def test_all_eleven_figures_can_be_drawn(study: StudyResults) -> None:
    pictures = paper.gallery(study)
    assert [picture.name for picture in pictures] == [f"figure_{number}" for number in range(1, 12)]
    assert not [picture.heading for picture in pictures if picture.absent]
    assert all("core=mini" in picture.info.source for picture in pictures)
    assert all(picture.info.run_ids for picture in pictures)
    assert len(pictures[3].info.run_ids) == 3 * len(METHODS) * 2
    assert "bands of two seeds reach from one to the other" in pictures[3].caption


def test_figure_1(study: StudyResults) -> None:
    info = schematic.schematic_info(study.board("main"), "moe", "Figure 1", "")
    assert [panel.rule for panel in info.rules] == ["grpo", "dppo", "trm_max", "cppo"]
    assert {"token", "prefix", "away", "toward"} <= set(info.rules[3].kinds)
    assert info.panel is not None
    assert info.panel.model == "moe"
    labels = [key.label for key in info.scores]
    assert [label.split(": ")[0] for label in labels][-1] == "CPPO"
    assert re.fullmatch(r"CPPO: \d+\.\d\d", labels[-1])
    assert "CISPO: collapse" in labels
    empty = schematic.schematic_info(None, None, "Figure 1", "no runs")
    assert (empty.panel, empty.absent, len(empty.rules)) == (None, "no runs", 4)


def test_figure_2(study: StudyResults) -> None:
    info = tokens.gaps_info(study, "Figure 2")
    assert isinstance(info, tokens.GapsInfo)
    assert (info.model, info.delta) == ("post", 0.15)
    assert [(line.variant, line.gaps.runs) for line in info.lines] == [("dppo", 2), ("cppo", 2)]
    assert len(info.threshold) == MADE.length
    assert info.threshold[0] == pytest.approx(0.15)
    assert info.threshold[-1] == pytest.approx(0.15 / 0.8)
    assert set(info.run_ids) == {f"post-{name}-{seed}" for name in ("cppo", "dppo") for seed in (0, 1)}


def test_figure_3_shows_both_kinds_of_masking(study: StudyResults) -> None:
    info = tokens.window_info(study, "Figure 3")
    assert isinstance(info, tokens.WindowInfo)
    assert len(info.symbols) == tokens.TOKENS
    assert {"token", "prefix"} <= set(info.kinds)
    assert len(info.run_ids) == 1
    assert all(value <= info.window.token_threshold for value in info.effective)


@pytest.mark.parametrize(("rows", "first"), [(paper.MECHANISMS, "post"), (paper.SETTINGS, "base_s")])
def test_figures_5_and_6(study: StudyResults, rows: tuple[tuple[str, str], ...], first: str) -> None:
    info = paper.ablations_info(study, "Figure", rows)
    assert isinstance(info, paper.AblationsInfo)
    assert [panel.sweep for panel in info.panels] == [name for name, _ in rows]
    for entry in info.panels:
        assert entry.panel is not None
        assert entry.panel.model == first
        assert {line.variant for line in entry.panel.lines} == set(SWEEPS[entry.sweep][1])
        assert all(len(line.seeds) == 2 for line in entry.panel.lines)
        # The full method has its colour, whatever the sweep calls it.
        full = [own for own in entry.panel.lines if SWEEPS[entry.sweep][1][own.variant] == "cppo"]
        assert {line.colour for line in full} <= {"#0052D9"}
        assert len({line.colour for line in entry.panel.lines}) == len(entry.panel.lines)


def test_figure_7(study: StudyResults) -> None:
    board = study.board("main")
    assert board is not None
    info = training.warmup_info(board, MODELS[1:], "Figure 7")
    assert isinstance(info, training.WarmupInfo)
    assert [(panel.metric, panel.model) for panel in info.panels] == [
        (metric, model) for metric, _ in training.METRICS for model in MODELS[1:]
    ]
    assert all(panel.traces[0].runs == 2 for panel in info.panels)
    assert len(info.run_ids) == 6


def test_figures_8_to_11(study: StudyResults) -> None:
    board = study.board("main")
    assert board is not None
    info = model_curves.model_info(board, "moe", "Figure 11")
    assert isinstance(info, model_curves.ModelInfo)
    assert [panel.benchmark for panel in info.benchmarks] == list(BENCHMARKS)
    assert [key.label for key in info.keys][-1] == "CPPO"
    assert len(info.keys) == len(METHODS)
    assert [panel.metric for panel in info.traces] == [model_curves.LENGTH, model_curves.ERROR]
    reward = next(line for line in info.rewards if line.variant == "cppo")
    assert reward.steps == tuple(range(1, MADE.t_stop + 1))
    assert max(reward.smooth) < max(reward.raw)
    # Seed 1 of CISPO fell at half time: its line ends there, and so does the mean.
    cispo = next(line for line in info.benchmarks[0].lines if line.variant == "cispo")
    assert [(seed.collapsed, seed.steps[-1]) for seed in cispo.seeds] == [(False, 20), (True, 10)]
    assert cispo.steps[-1] == 10


def test_a_stopped_run_is_a_collapse_and_no_gap(study: StudyResults) -> None:
    board = study.board("main")
    assert board is not None
    cell = board.cells["moe", "cispo"]
    assert (cell.state, cell.collapsed, cell.provisional) == (SelectionState.COLLAPSE, 1, False)
    assert board.gaps == ()


def test_the_report(made_store: str, tmp_path: Path) -> None:
    page = build_report(request_for(made_store, tmp_path / "report"))
    files = contents(page.parent)
    tables = {
        f"table_{name}.{kind}" for name in (1, 2, 3, 4, *list(SWEEPS)[1:]) for kind in ("md", "tex", "csv")
    }
    lists = {f"{kind}_{name}.csv" for kind in ("runs", "long") for name in SWEEPS}
    sure = {name for name in files if name.startswith("statistics_")}
    sure |= {name for name in files if name.startswith("collapse")}
    # One run of the main sweep collapsed: its steps are there, and its curves on the page.
    assert {f"collapses_{name}.csv" for name in SWEEPS} <= sure
    assert {name for name in sure if name.startswith("collapse_steps")} == {
        f"collapse_steps_main.{kind}" for kind in ("md", "tex", "csv")
    }
    tables |= {f"verdicts.{kind}" for kind in ("md", "tex", "csv")}
    assert {f"statistics_{name}_{what}.csv" for name in SWEEPS for what in ("scores", "differences")} <= sure
    assert set(files) == FIGURES | tables | lists | sure | {
        "index.html",
        "tables.tex",
        "numbers.tex",
        "methods.md",
        "methods.tex",
        "report.json",
        "overleaf.zip",
        MARKER,
    }
    html = files["index.html"].decode()
    assert html.count("<svg") == 11 + 1
    assert html.count('id="collapses"') == 1
    assert "Not drawn" not in html
    assert "Incomplete" not in html
    assert "collapse 1/2" in html
    assert "CPPO has the highest score on 4 of 4 models" in html
    counted = Counter(re.findall(r'\bid="([^"]+)"', html))
    assert max(counted.values()) == 1
    drawn = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    loaded = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)|@import', drawn)
    figures = {path.name for path in page.parent.glob("figure_*.csv")}
    assert {first or second for first, second in loaded} <= {f"#{name}" for name in counted} | set(files)
    assert figures <= {first for first, _ in loaded}
    # One picture, one table, then a verdict for each of the paper's claims, labelled as what they are.
    assert html.index('id="main"') < html.index('id="verdicts"') < html.index('id="findings"')
    assert html.count('<span class="verdict">core=mini</span>') == len(CLAIMS)
    assert "no evidence for or against the paper" in html
    assert html.count("<script") == 1 + 12  # the page's own, and the values of every figure's curves
    assert files["table_3.csv"].decode().splitlines()[:2] == [
        "Model,Prompts,n,Minibatch,Updates,T_max,delta,delta_b_min,w_min,Learning rate,T_stop,core",
        "post,32,8,16,2,32,0.15,0.02,0.8,0.0006,20,mini",
    ]
    for name in ("figure_1.png", "figure_11.svg", "figure_6.pdf"):
        assert b"core=mini" in files[name] or b"/Title" in files[name]
    assert b"base_s-cppo_kl-1" in files["figure_6.svg"]
    build_report(request_for(made_store, tmp_path / "again"))
    assert contents(tmp_path / "again") == files


def test_a_study_with_gaps_is_refused_or_marked(empty_store: Path, tmp_path: Path) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    some = MadeStudy(
        seeds=(0,),
        artifacts=False,
        left_out=frozenset({"post-dppo-0", "base_s-cppo_kl-0", *(f"moe-{name}-0" for name in METHODS)}),
    )
    some.write(uri, tmp_path)
    grids = tuple(grid for grid in some.grids() if grid.name != "binary_vs_topk")
    late = replace(some.grids()[0], name="late", title="Late")
    request = replace(request_for(uri, tmp_path / "out"), sweeps=(*grids, replace(late, expected=())))
    with pytest.raises(UserError, match=r"dppo on post, seed 0 \(missing\)"):
        build_report(request)
    assert not (tmp_path / "out").exists()

    files = contents(build_report(replace(request, partial=True)).parent)
    html = files["index.html"].decode()
    assert "dppo on post, seed 0 (missing): in main, single_mechanism" in html
    for reason in (
        "Sweep late:",
        "Figure 2. Gap between the policies by token position: no run of CPPO on post has",
        "Figure 3. The prefix constraint on some tokens of one response: no run of CPPO has",
        "Figure 11. All curves of moe: no run on moe yet",
        "the study has no sweep &#39;binary_vs_topk&#39;",
    ):
        assert reason in html, reason
    assert {name for name in files if name.endswith(".png")} == {
        f"figure_{number}.png" for number in range(1, 11) if number not in (2, 3)
    }
    assert "bands" not in html  # there is one seed


def test_a_broken_diagnostic_is_named_and_nothing_written(made_store: str, tmp_path: Path) -> None:
    folder = Path(made_store.removeprefix("sqlite:///")).parent
    shutil.copy(folder / "mlflow.db", tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("cppo-mini")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`{schema.TAG_RUN_ID}` = 'post-cppo-0'")
    broken = folder / "artifacts" / run.info.run_id / "artifacts" / "diagnostics" / "positions.json"
    kept = broken.read_text()
    try:
        broken.write_text("{")
        with pytest.raises(UserError, match=r"diagnostics/positions.json of MLflow run .* has no JSON"):
            build_report(request_for(uri, tmp_path / "out"))
    finally:
        broken.write_text(kept)
    assert not (tmp_path / "out").exists()


def test_the_papers_own_curves_make_the_figures_they_can(reference_uri: str, tmp_path: Path) -> None:
    request = paper_study_request(reference_uri, tmp_path / "study")
    study = read_study(reference_uri, request.experiment, request.name, request.sweeps)
    reasons = {picture.name: picture.absent for picture in paper.gallery(study) if picture.absent}
    assert reasons == {
        "figure_2": "no run of CPPO on Qwen3-1.7B has diagnostics/positions.json",
        "figure_3": "no run of CPPO has diagnostics/window.json",
    }
    board = study.board("main")
    assert board is not None
    table = configuration_table(board, study.models, "Table 3")
    assert table.rows[-1].cells == ("256", "16", "32", "8", "16384", "0.20", "0.020", "0.8")


def test_table_2_describes_the_built_in_rules() -> None:
    assert all(rule.row is not None for rule in RULES.values())
    assert METHOD_ORDER == ("grpo", "minpro", "cispo", "dppo", "trm_max", "trm_avg", "cppo")
    table = comparison_table("Table 2", {"cppo", "dppo"})
    assert len(table.rows) == len(RULES)
    assert [row.label for row in table.rows if row.cells[-1] == "yes"] == ["DPPO", "CPPO"]
    assert {len(row.cells) for row in table.rows} == {len(table.headings)}


def test_table_2_shows_a_rule_that_nobody_described() -> None:
    *described, last = comparison_table("Table 2", {"a_new_rule", "cppo"}).rows
    assert len(described) == len(RULES)
    assert (last.label, last.cells) == ("a_new_rule", ("–", "–", "–", "–", "–", "yes"))
