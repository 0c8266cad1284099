"""The sweeps of a study, and diagnostics read from a store's artifacts: what is there, what is absent, and what is
refused.
"""

import json
import math
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.analysis import study
from cppo_lab.analysis.inputs import SweepGrid
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.verdicts import LENGTH, verdicts
from cppo_lab.analysis.study import (
    PositionGaps,
    TokenWindow,
    gap_curves,
    induced_threshold,
    parse_diagnostics,
    read_positions,
    read_study,
    read_windows,
)
from cppo_lab.errors import StoreAway
from tests.analysis.made_sweeps import MadeRun, expect, experiment_in, write_runs
from tests.conftest import user_error

SCORE = schema.validation_metric("chain24")
POSITIONS: dict[str, Any] = {
    "position": [1, 2, 3],
    "tokens": [40, 30, 0],
    "gap_mean": [0.1, 0.2, None],
    "gap_top10": [0.5, 0.6, float("nan")],
    "w_min": 0.8,
    "delta": None,
}
WINDOW: dict[str, Any] = {
    "step": 7,
    "symbols": ["a", "b"],
    "weighted_divergence": [0.1, 0.2],
    "token_threshold": 0.15,
    "prefix_threshold": [0.1, float("inf")],
    "moves_away": [True, False],
    "masked_by": ["prefix", ""],
}


def test_a_trend_of_another_sweep_than_the_main_one_is_judged(uri: str) -> None:
    """By the lengths of its responses, of which its figures show nothing."""
    runs = [
        MadeRun(variant, f"of_{length}", seed, logged={SCORE: {0: 0.1, 100: score}, LENGTH: {1: length}})
        for length, lead in ((100, 0.01), (200, 0.03), (400, 0.05))
        for variant, better in (("cppo", lead), ("dppo", 0.0))
        for seed, score in enumerate((0.3 + better, 0.301 + better, 0.302 + better))
    ]
    write_runs(uri, runs, "mine")
    read = read_study(uri, "cppo-mini", "both", [SweepGrid("mine", "", "", expect(runs))])
    trend = Claim("longer", "the lead grows", "mine", Kind.TREND, (("cppo",), ("dppo",)))
    [verdict] = verdicts(read.boards, [trend])
    assert verdict.comparisons[0].estimate.value == pytest.approx(0.02)


def test_a_store_that_goes_away_is_not_taken_for_a_sweep_without_results(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [MadeRun("cppo", logged={SCORE: {0: 0.1, 100: 0.3}})]
    write_runs(uri, runs, "mine")
    monkeypatch.setattr(
        "cppo_lab.analysis.study.read_sweep", Mock(side_effect=StoreAway("the server does not answer"))
    )
    grid = SweepGrid("mine", "", "", expect(runs))
    with pytest.raises(StoreAway):
        read_study(uri, "cppo-mini", "both", [grid], partial=True)
    monkeypatch.undo()
    none = replace(grid, name="none", expected=expect([MadeRun("dppo")]))
    with user_error("study 'both' has nothing to report: .*no run of sweep 'none'"):
        read_study(uri, "cppo-mini", "both", [none], partial=True)


def test_a_study_has_the_diagnostics_that_its_figures_show(uri: str) -> None:
    """And training metrics for the main sweep alone."""
    logged = {SCORE: {0: 0.1, 100: 0.3}, "train/reward": {1: 0.5}}
    runs = [MadeRun(name, model, logged=logged) for model in "mn" for name in ("grpo", "dppo", "cppo")]
    run_ids = {mlflow_id: run_id for run_id, mlflow_id in write_runs(uri, runs, "main").items()}
    for mlflow_id in run_ids:
        for name, content in (("positions", POSITIONS), ("window", WINDOW)):
            MlflowClient(uri).log_text(mlflow_id, json.dumps(content), f"diagnostics/{name}.json")
    grids = [SweepGrid("main", "", "", expect(runs)), SweepGrid("other", "", "", expect(runs[:1]))]
    read = read_study(uri, "cppo-mini", "all", grids)
    assert read.models == ("m", "n")
    metrics = {name: {*board.data.metrics["metric"]} for name, board in read.boards.items()}
    assert metrics == {"main": {*logged}, "other": {*logged} - {"train/reward"}}
    assert [run_ids[mlflow_id] for mlflow_id in read.positions] == ["m-cppo-0", "m-dppo-0"]
    assert [run_ids[mlflow_id] for mlflow_id in read.windows] == ["m-cppo-0", "n-cppo-0"]


def with_diagnostic(uri: str, name: str, text: str) -> str:
    """A run with one of its files: its MLflow id."""
    client = MlflowClient(uri)
    mlflow_id = client.create_run(experiment_in(uri, "x")).info.run_id
    client.log_text(mlflow_id, text, f"diagnostics/{name}.json")
    return mlflow_id


def without_tokens(table: dict[str, Any]) -> dict[str, Any]:
    return {name: [] if isinstance(value, list) else value for name, value in table.items()}


def test_diagnostics_are_read_and_runs_without_are_left_out(uri: str) -> None:
    """So is a run that saw no token: its groups were all equal at every watched step."""
    contents = ("positions", POSITIONS), ("window", WINDOW), ("positions", without_tokens(POSITIONS))
    ids = [with_diagnostic(uri, name, json.dumps(content)) for name, content in contents]
    [(of_run, gaps)] = read_positions(uri, ids).items()
    assert of_run == ids[0]
    assert (gaps.positions, gaps.tokens, gaps.w_min, gaps.delta) == ((1, 2, 3), (40, 30, 0), 0.8, None)
    assert gaps.mean[:2] == (0.1, 0.2) and math.isnan(gaps.mean[2]) and math.isnan(gaps.top10[2])
    [(of_run, window)] = read_windows(uri, ids).items()
    assert of_run == ids[1]
    assert (window.step, window.symbols, window.masked_by) == (7, ("a", "b"), ("prefix", ""))
    assert window.effective() == (0.1, 0.15)


def test_what_the_cores_keep_of_the_longest_responses_is_read_and_small() -> None:
    """Both cores go through `cores.rule_loss`; the paper's longest responses have 16,384 tokens."""
    torch = pytest.importorskip("torch")
    from cppo_lab.cores.rule_loss import Diagnostics, ObservedTokens
    from cppo_lab.spec import RuleSpec

    rule = RuleSpec(name="cppo", delta=0.15, delta_b=0.02, delta_b_mode="fixed", w_min=0.8)
    diagnostics, draw = Diagnostics(rule, 16_384), torch.Generator().manual_seed(1)
    logp, mu = -3 * torch.rand(2, 1, 16_384, generator=draw)
    gaps, ones = (logp.exp() - mu.exp()).abs(), torch.ones_like(logp)
    observed = ObservedTokens(logp, mu, gaps, ones, ones.bool(), ones.long(), mu)
    diagnostics.see(3, observed, lambda ids: ["中文 \n"] * len(ids))
    diagnostics.end_step()
    texts = [json.dumps(table) for table in diagnostics.tables().values()]
    assert max(len(text.encode()) for text in texts) < study.LARGEST / 2
    positions, window = map(parse_diagnostics, (PositionGaps, TokenWindow), texts, ("positions", "window"))
    assert positions.mean == pytest.approx(gaps[0].tolist(), abs=1e-6)
    assert (window.step, len(window.symbols), window.token_threshold) == (3, 16_384, 0.15)
    assert {"token", "prefix"} <= set(window.masked_by)


@pytest.mark.parametrize(
    "kind, content, message",
    [
        (TokenWindow, {**WINDOW, "masked_by": ["", "whim"]}, r"masked_by\.1='whim': Input should be '', 'token' or"),
        (TokenWindow, {**WINDOW, "moves_away": [True]}, r"lists of different lengths: .*'moves_away': 1"),
        (TokenWindow, {**WINDOW, "prefix_threshold": [math.nan, 1]}, r"has prefix_threshold\.0=nan"),
        (TokenWindow, without_tokens(WINDOW), "has symbols: Tuple should have at least 1"),
        (PositionGaps, {**POSITIONS, "tokens": [1]}, r"lists of different lengths: .*'tokens': 1"),
        (PositionGaps, {**POSITIONS, "gap_mean": [0.1, True, None]}, r"has gap_mean\.1=True: Input should be a valid"),
        (PositionGaps, {**POSITIONS, "gap_mean": [0.1, None, None]}, "no gap at a position that has tokens"),
        (PositionGaps, {**POSITIONS, "position": [1, 2, 4]}, "positions other than 1, 2, 3"),
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_is_named(kind: type, content: dict[str, Any], message: str) -> None:
    with user_error(f"^the file .*{message}.*: the run was recorded by other code than this"):
        parse_diagnostics(kind, json.dumps(content), "the file")


def test_what_is_no_such_file_is_refused_with_its_run(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow_id = with_diagnostic(uri, "window", "{")
    with user_error(f"^diagnostics/window.json of MLflow run {mlflow_id} is invalid: Invalid JSON"):
        read_windows(uri, [mlflow_id])
    monkeypatch.setattr("cppo_lab.analysis.study.LARGEST", 0)
    with user_error("more than the 0 allowed: delete that artifact"):
        read_windows(uri, [mlflow_id])


@pytest.mark.parametrize(
    "letters, shown",
    {
        "ttttaaaatpa": "aatp",  # both kinds before many of one; kept ones that move away beside them
        "....ttaa": "ttaa",
        "aaaaaaaa": "aaaa",
        "tp": "tp",
    }.items(),
)
def test_the_window_that_shows_most(letters: str, shown: str) -> None:
    """One letter a token: t token, p prefix, a kept and moving away, . kept and moving toward."""
    count = len(letters)
    window = TokenWindow(
        step=1,
        symbols=tuple(letters),
        weighted_divergence=(0.1,) * count,
        token_threshold=0.15,
        prefix_threshold=(0.2,) * count,
        moves_away=tuple(letter != "." for letter in letters),
        masked_by=tuple({"t": "token", "p": "prefix"}.get(letter, "") for letter in letters),
    )
    assert "".join(window.cut(4).symbols) == shown


def test_gaps_are_averaged_over_tokens_then_over_runs() -> None:
    contents = {}, {"gap_mean": [0.3, 0.2, None]}, {"tokens": [5, 5, 0]}
    *gaps, few = (
        parse_diagnostics(PositionGaps, json.dumps(POSITIONS | change), "positions") for change in contents
    )
    curves = gap_curves(gaps)
    assert (curves.runs, curves.mean.positions) == (2, (1.0, 2.0))  # the third has too few tokens
    shown = (*curves.mean.mean, *curves.mean.low, *curves.mean.high, *curves.top10.mean)
    assert shown == pytest.approx((0.2, 0.2, 0.1, 0.2, 0.3, 0.2, 0.5, 0.6))
    assert gap_curves([few]) is gap_curves([]) is None


def test_the_induced_threshold_is_that_of_the_rule() -> None:
    torch = pytest.importorskip("torch")
    from cppo_lab.maths.weights import position_weights

    for length in (1, 2, 7):
        weights = position_weights(torch.ones(1, length, dtype=torch.bool), 0.6, dtype=torch.float64)[0]
        assert induced_threshold(0.15, 0.6, length) == pytest.approx((0.15 / weights).tolist())
    assert induced_threshold(0.15, 0.6, 2, span=7) == induced_threshold(0.15, 0.6, 7)[:2]
