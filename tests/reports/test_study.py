"""The report of a whole study: its eleven figures and tables, and what is missing is said."""

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.claims import CLAIMS, Claim, Hypotheses, Kind
from cppo_lab.analysis.statistics.values import Quantity
from cppo_lab.analysis.study import PositionGaps, StudyResults, TokenWindow
from cppo_lab.reports.build import build_report
from cppo_lab.reports.figures import gallery as paper
from cppo_lab.reports.figures.drawing import figure_csv, render
from cppo_lab.reports.names import METHOD_ORDER
from cppo_lab.reports.study import (
    StudyRequest,
    comparison_table,
    configuration_table,
    paper_study_request,
    study_contents,
)
from cppo_lab.rules import RULES
from tests.analysis.made_sweeps import MadeRun, expect, make_data
from tests.conftest import user_error
from tests.reports.conftest import svg_alone
from tests.reports.test_build import ALWAYS, assert_self_contained, contents, named

# The grids of the paper's study; none of the runs here was trained.
GRIDS = {grid.name: grid for grid in paper_study_request("sqlite://", Path()).sweeps}
MODELS = POST, SMALL, _, LARGEST = tuple(dict.fromkeys(run.model for run in GRIDS["main"].expected))
BEST = dict(zip(METHOD_ORDER, (0.30, 0.36, 0.40, 0.42, 0.44, 0.46, 0.52), strict=True))
SAME = dict.fromkeys(("cppo_db0.02_w0.8", "cppo_tv", "cppo_topk_tv"), "cppo")  # what these sweeps call CPPO
PAIR = {f"{POST}-{name}-{seed}" for name in ("cppo", "dppo") for seed in (0, 1)}  # those of Figure 2
T_STOP, LENGTH = 20, 32  # steps of each run, and tokens of a response
LOGGED = [
    "train/response_length",
    "train/relative_logprob_error",
    "rule/delta_b_mean",
    "rule/prefix_budget_share",
]
PARAMS = {
    "batch.prompts": "32",
    "batch.minibatch_prompts": "16",
    "rollout.max_response_length": "32",
    "rule.delta": "0.15",
    "rule.delta_b": "0.02",
}


def made_run(model: str, variant: str, seed: int) -> MadeRun:
    """A run whose score rises and saturates; one diverges half-way."""
    collapsed, method = (model, variant, seed) == (LARGEST, "cispo", 1), SAME.get(variant, variant)
    best = BEST.get(method, 0.43) * (0.6 + 0.2 * MODELS.index(model)) + 0.01 * seed
    steps = range(T_STOP // 2 + 1 if collapsed else T_STOP + 1)
    level = {step: best * (1 - 0.85 * math.exp(-step / 8)) for step in steps}
    if collapsed:
        level[steps[-1]] = 0.0
    validated = {step: level[step] for step in steps[::5]}
    scores = dict.fromkeys(("chain24", "chain25", "chain26"), validated)
    logged = dict.fromkeys(LOGGED, level)
    logged["train/reward"] = {step: level[step] + 0.05 * (step % 3) for step in steps[1:]}
    status, run_id = schema.COLLAPSED if collapsed else schema.DONE, f"{model}-{method}-{seed}"
    return MadeRun(variant, model, seed, scores, logged, status, t_stop=T_STOP, run_id=run_id)


@cache
def made_study() -> StudyResults:
    """All seven sweeps of the paper's grid on four models with two seeds."""
    declared = {
        name: [made_run(run.model, run.variant, seed) for run in grid.expected for seed in (0, 1)]
        for name, grid in GRIDS.items()
    }
    # A run of several sweeps is one, under its name in the main sweep.
    distinct = {run.key: run for runs in reversed(declared.values()) for run in runs}
    data = make_data([*distinct.values()])
    ids = dict(zip(data.runs["run_id"], data.runs["mlflow_id"], strict=True))
    data = replace(data, params=dict.fromkeys(ids.values(), PARAMS))
    grids = tuple(replace(GRIDS[name], expected=expect(runs)) for name, runs in declared.items())
    boards = {name: score_sweep(replace(data, sweep=name), expect(runs)) for name, runs in declared.items()}
    places = tuple(range(1, LENGTH + 1))
    gap = tuple(0.01 + 0.0005 * place for place in places)
    gaps = PositionGaps(places, (4000,) * LENGTH, gap, gap, w_min=0.8, delta=0.15)
    # Of four tokens, one is over the token's threshold, and one over the prefix's.
    times = LENGTH // 2
    window = TokenWindow(
        step=10,
        symbols=("0", "+", "\n", "long token that is cut") * times,
        weighted_divergence=(0.01, 0.2, 0.1, 0.02) * times,
        token_threshold=0.15,
        prefix_threshold=(0.12, 0.14, 0.05, 0.15) * times,
        moves_away=(True, True, True, False) * times,
        masked_by=("", "token", "prefix", "") * times,
    )
    windows = {ids[f"{model}-cppo-0"]: window for model in MODELS}
    return StudyResults(grids, boards, {}, {ids[run]: gaps for run in PAIR}, windows)


def request_of(study: StudyResults, out: Path) -> StudyRequest:
    request = paper_study_request("sqlite://", out)
    return replace(request, experiment="cppo-mini", sweeps=study.grids, title="A study")


def test_the_models_take_their_roles_in_the_order_of_the_declaration() -> None:
    """Also if that is not the paper's."""
    study, models = made_study(), MODELS[::-1]
    main = study.grids[0]
    expected = tuple(sorted(main.expected, key=lambda run: models.index(run.model)))
    pictures = paper.gallery(replace(study, grids=(replace(main, expected=expected), *study.grids[1:])))
    for number, picture in enumerate(pictures, 1):
        assert picture.name == f"figure_{number}" and not picture.absent
        assert "core=mini" in picture.info.source and picture.info.run_ids
    for number, model in enumerate(models, 8):
        assert pictures[number - 1].heading == f"Figure {number}. All curves of {model}"
    assert number == len(pictures) and f"{model}, with the best score" in pictures[0].caption
    assert "bands of two seeds reach from one to the other" in pictures[3].caption
    for grids, number, said in (
        (study.grids[1:], 1, "the study has no sweep 'main'"),
        (study.grids[:-1], 6, "no results yet"),
    ):
        boards = {grid.name: study.boards[grid.name] for grid in grids}
        picture = paper.gallery(replace(study, grids=grids, boards=boards))[number - 1]
        picture.draw(picture.info, figure := Figure())
        shown = [text.get_text() for ax in figure.axes for text in ax.texts]
        assert said in shown, shown
    assert "the study has no sweep 'binary_vs_topk'" in figure_csv(picture.info)


def test_figures_1_to_3() -> None:
    study = made_study()
    info = paper.schematic_info(study, LARGEST, "Figure 1")
    assert {"token", "prefix", "away", "toward"} <= set(info.rules[3].kinds)
    assert info.panel.model == LARGEST
    labels = [key.label for key in info.scores]
    assert "CISPO: collapse" in labels and re.fullmatch(r"CPPO: \d+\.\d\d", labels[-1])

    gaps = paper.gaps_info(study, "Figure 2")
    first, *_, last = gaps.threshold
    assert (gaps.model, gaps.delta, len(gaps.threshold)) == (POST, 0.15, LENGTH)
    assert [(line.variant, line.gaps.runs) for line in gaps.lines] == [("dppo", 2), ("cppo", 2)]
    assert (first, last) == pytest.approx((0.15, 0.15 / 0.8)) and {*gaps.run_ids} == PAIR

    window = paper.window_info(study, "Figure 3")
    assert (len(window.symbols), len(window.run_ids)) == (paper.TOKENS, 1)
    assert {"token", "prefix"} <= set(window.kinds)  # both kinds of masking
    assert max(window.effective) <= window.window.token_threshold


def test_the_values_of_every_panel_of_the_budget_are_at_training_steps() -> None:
    """The upper panels have no label of their own."""
    panels = render(paper.gallery(made_study())[6]).curves
    assert len(panels) == 6 and {panel["what"] for panel in panels} == {"training step"}


def test_rewards_are_smoothed() -> None:
    info = paper.model_info(made_study(), LARGEST, "Figure 11")
    (reward,) = (line for line in info.rewards if line.variant == "cppo")
    assert reward.steps == tuple(range(1, T_STOP + 1)) and max(reward.smooth) < max(reward.raw)


def test_the_report(tmp_path: Path) -> None:
    request = request_of(study := made_study(), tmp_path / "report")
    made = study_contents(request, study)
    with svg_alone():
        page = build_report(SimpleNamespace(out=request.out, style=request.style, contents=lambda: made))
    files = contents(page.parent)
    figures = tuple(f"figure_{name}" for name in (*range(1, 12), "survival"))
    tables = [
        "verdicts",
        "collapse_steps_main",
        "statistics_main_models",
    ]  # a run of the main sweep collapsed
    tables += [f"table_{name}" for name in (1, 2, 3, 4, *[*GRIDS][1:])]
    of_each = ("statistics_{}_scores", "statistics_{}_differences", "statistics_{}_order", "collapses_{}")
    tables += [kind.format(name) for kind in of_each for name in GRIDS]
    lists = named(tuple(f"{kind}_{name}" for kind in ("runs", "long") for name in GRIDS), "csv")
    expected = named(figures, "png svg pdf csv") | named(tables, "md tex csv") | lists | ALWAYS
    assert set(files) == expected - {"table_long.csv", "runs.csv"}
    html = assert_self_contained(page.parent)
    assert html.count("<svg") == 11 + 1
    for text, count in {
        "74 runs in 7 sweeps": 1,  # those of several sweeps count once
        'id="collapses"': 1,
        "Not drawn": 0,
        "Incomplete": 0,
        "</strong> CPPO scores higher than DPPO over the models: +8.10 (": 1,  # the answer, first
        '<span class="verdict">core=mini</span>': len(CLAIMS),  # each verdict is labelled as what it is
        "<script": 1 + 12,  # the page's own, and the values of every figure's curves
    }.items():
        assert html.count(text) == count, text
    assert "CPPO has the highest score on 4 of 4 models" in html and "collapse 1/2" in html
    assert "no evidence for or against the paper" in html
    # One picture, one table, then a verdict for each of the paper's claims.
    assert html.index('id="main"') < html.index('id="verdicts"') < html.index('id="findings"')
    assert (
        files["table_3.csv"]
        .decode()
        .startswith(
            "Model,Prompts,n,Minibatch,Updates,T_max,delta,delta_b_min,w_min,Learning rate,T_stop,core\n"
            "Qwen3-1.7B,32,–,16,2,32,0.15,0.02,–,–,–,mini\n"
        )
    )
    assert f"{SMALL}-cppo_kl-1".encode() in files["figure_6.svg"]


def test_the_answer_is_about_the_hypotheses_of_the_main_sweep() -> None:
    study = made_study()
    study = replace(study, grids=study.grids[:1], boards={"main": study.boards["main"]})
    claim = Claim(
        "hypothesis own", "TRM-Max is above GRPO", "main", Kind.SUPERIORITY, (("trm_max",), ("grpo",))
    )
    request = request_of(study, Path())
    for stated, pairs in (({}, 6), ({"main": Hypotheses((claim,))}, len(MODELS))):
        answers = study_contents(replace(request, stated=stated), study).page["short"]
        assert len(answers) == pairs
        assert all("TRM-Max" in text and "GRPO" in text for _, text in answers) is bool(stated)
    errors = Hypotheses((replace(claim, score=Quantity.ERROR),))
    absent = study_contents(replace(request, stated={"main": errors}), study).page["absent"]
    assert "Hypotheses of sweep main about the error of the surrogate: see the report of that sweep" in absent


def test_a_study_of_other_sweeps_has_nothing_of_the_papers() -> None:
    made = made_study()
    study = replace(
        made, grids=(replace(made.grids[1], name="own"),), boards={"own": made.boards[made.grids[1].name]}
    )
    first, second, *_ = study.boards["own"].variants
    claim = Claim("hypothesis own", "One is above", "own", Kind.SUPERIORITY, ((first,), (second,)))
    shown = study_contents(replace(request_of(study, Path()), stated={"own": Hypotheses((claim,))}), study)
    assert shown.page["short"] and not shown.page["absent"] and not shown.figures
    names = ["verdicts", "findings", "ablations", "methods", "runs"]
    assert [section.name for section in shown.sections] == names
    assert not shown.sections[0].view["not_judged"] and "statistics_own_scores" in shown.sections[2].tables


def test_a_study_with_gaps_is_refused_or_marked(reference_uri: str, tmp_path: Path, undrawn: None) -> None:
    request = paper_study_request(reference_uri, tmp_path / "out")
    main, single, third, *others = request.sweeps
    gone = ExpectedRun("gone", POST, "dppo", 0)
    of_main = [run for run in main.expected if run.model != LARGEST]
    of_main += [replace(gone, run_id="gone-moe", model="moe"), gone]
    sweeps = (
        replace(main, expected=tuple(of_main)),
        replace(single, expected=(*single.expected, gone)),
        replace(third, expected=(*third.expected, replace(gone, run_id="other settings"))),
        *others[:-1],
        replace(main, name="late", expected=()),
    )
    request = replace(request, sweeps=sweeps)
    with user_error(r"dppo on Qwen3-1.7B, seed 0 \(missing\)"):
        build_report(request)
    assert not (tmp_path / "out").exists()

    page = build_report(replace(request, partial=True))
    html = page.read_text()
    for reason in (
        "of which 3 have no result yet",
        "dppo on Qwen3-1.7B, seed 0 (missing): in main, single_mechanism<",
        f"dppo on Qwen3-1.7B, seed 0 (missing): in {third.name}<",
        "Sweep late:",
        "Figure 2. Gap between the policies by token position: no run of CPPO on Qwen3-1.7B has",
        "Figure 3. The prefix constraint on some tokens of one response: no run of CPPO has",
        "Figure 11. All curves of moe: no run on moe yet",
    ):
        assert reason in html, reason
    assert "bands" not in html  # there is one seed


def test_the_papers_own_configuration_is_as_printed(paper_board: Scoreboard) -> None:
    table = configuration_table(paper_board, paper_board.models, "Table 3")
    assert table.rows[-1].cells == ("256", "16", "32", "8", "16384", "0.20", "0.020", "0.8")


def test_table_2_describes_the_built_in_rules_and_shows_others() -> None:
    *described, last = comparison_table("Table 2", {"cppo", "dppo", "a_new_rule"}).rows
    assert len(described) == len(RULES)
    assert [row.label for row in described if row.cells[-1] == "yes"] == ["DPPO", "CPPO"]
    assert (last.label, *last.cells) == ("a_new_rule", *"–––––", "yes")
