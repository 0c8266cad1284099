"""The page's part on answers: what it shows, that it stays small, and that no text in it acts."""

import base64
import json
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from cppo_lab.analysis.reader import RunAnswers
from cppo_lab.analysis.replay import replay
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.answers.texts import Texts, as_text
from cppo_lab.answers.tokens import RecordedTokens
from cppo_lab.reports.answers import (
    FULL,
    NOT_SEEN,
    answers_view,
    problem_maps,
    shortened,
    shown_runs,
    visible,
)
from tests.analysis.made_sweeps import scored_outcomes
from tests.answers import made
from tests.reports.made_answers import HOSTILE, IDS, STEPS, TOKENS, made_outcomes, made_texts, made_tokens


@cache
def pair() -> Scoreboard:
    return scored_outcomes(
        {(name, seed): made_outcomes(name, seed) for name in ("dppo", "cppo") for seed in (0, 1)}
    )


def view_of(**tokens: RecordedTokens) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page has of these tokens of the variants, without texts, and what of it is JSON."""
    runs = shown_runs(pair())
    answers = {run.mlflow_id: RunAnswers((), (tokens[run.variant],)) for run in runs}
    view = answers_view(pair(), answers)
    return view, json.loads(view["content"])


@cache
def answers() -> dict[str, RunAnswers]:
    return {
        run.mlflow_id: RunAnswers((made_texts(run.variant, 200),), (made_tokens(run.variant),))
        for run in shown_runs(pair())
    }


def test_a_map_has_each_share_where_it_belongs() -> None:
    (shown,) = problem_maps(pair())
    assert [(method["name"], method["runs"]) for method in shown["methods"]] == [("DPPO", 2), ("CPPO", 2)]
    order = [IDS.index(name) for name in shown["problems"]]
    right = np.array([[made_outcomes(name, seed).right for seed in (0, 1)] for name in ("dppo", "cppo")])
    share = right.sum(axis=1)[:, :, order] / 32
    assert (np.diff(share.mean(axis=(0, 1))) <= 1e-12).all()  # the easiest first
    assert cells(shown) / FULL == pytest.approx(share, abs=0.501 / FULL)
    assert shown["steps"] == [*STEPS]
    [(ours, theirs, problems)] = shown["alone"]
    assert (ours, theirs) == (1, 0) and order.index(len(IDS) - 1) in problems


def cells(shown: dict[str, Any]) -> np.ndarray:
    """[methods, validations, problems]"""
    packed = b"".join(base64.b64decode(method["cells"]) for method in shown["methods"])
    return np.frombuffer(packed, "<u2").reshape(len(shown["methods"]), len(shown["steps"]), -1)


def test_runs_that_ended_early_leave_blanks() -> None:
    whole, short = made_outcomes("dppo", 0), made_outcomes("cppo", 0).until(100)
    (shown,) = problem_maps(scored_outcomes({("dppo", 0): whole, ("cppo", 0): short}))
    cppo, end = cells(shown)[1], shown["steps"].index(110)
    assert (cppo[end:] == NOT_SEEN).all() and (cppo[:end] <= FULL).all()


def test_controls_are_written_out_and_no_text_can_act_on_the_page() -> None:
    hostile = "a\u202eb\x00\x1b[1m\n\tc\ud800\u200b naïve 答案 😀"
    assert visible(hostile) == "a⟨U+202E⟩b⟨U+0000⟩⟨U+001B⟩[1m\n\tc⟨U+D800⟩⟨U+200B⟩ naïve 答案 😀"
    short = "x" * 10 + "\n[… 180 characters are left out …]\n" + "y" * 10
    assert shortened("x" * 100 + "y" * 100, 20) == short
    view = answers_view(pair(), answers())
    assert view["maps"] and view["texts"] and view["tokens"]
    assert not set(view["content"]) & {"<", ">", "&", "\u2028", "\u202e", "\x00"}
    content = json.loads(view["content"])
    assert "\u202e" not in json.dumps(content, ensure_ascii=False)
    assert visible(HOSTILE) in content["texts"]["samples"][0]["text"]
    # A response of the paper's length has room in every method.
    shown = [(response["method"], len(response["pieces"])) for response in content["tokens"]]
    assert shown == [("DPPO", TOKENS), ("CPPO", TOKENS), ("DPPO", 600), ("CPPO", 600)]


def test_tokens_are_those_of_the_file_and_of_the_replay() -> None:
    tokens = made_tokens("cppo", (40, 700))
    _, content = view_of(cppo=tokens, dppo=made_tokens("dppo", (30,)))
    assert [response["method"] for response in content["tokens"]] == ["DPPO", "CPPO", "CPPO"]
    shown, expected = content["tokens"][-1], replay(tokens)
    cppo, dppo = shown["rules"]
    assert (cppo["name"], dppo["name"], "w" in dppo) == ("CPPO", "DPPO", False)
    for text, values in ((shown["ratio"], tokens.logp - tokens.rollout_logp), (cppo["w"], expected.weight)):
        decoded = np.frombuffer(base64.b64decode(text), "<f2")
        np.testing.assert_allclose(decoded, values[40:], rtol=1e-3, atol=1e-6)
    for rule, of_rule in ((cppo, expected), (dppo, replay(tokens, "dppo", {"delta": 0.15}))):
        assert list(base64.b64decode(rule["reason"])) == of_rule.reason[40:].tolist()
    assert 0 < np.count_nonzero(expected.reason[40:]) < 700


@pytest.mark.parametrize(
    "rule, reason", [("m2po", "rule 'm2po' decides over a whole minibatch"), ("somebodys", "somebodys")]
)
def test_a_rule_that_cannot_be_replayed_is_named(rule: str, reason: str) -> None:
    """One that decides over whole minibatches, or is not installed: the page is made, and says why it lacks those."""
    theirs = made_tokens("dppo", (30,))
    theirs = replace(theirs, rule=replace(theirs.rule, name=rule))
    view, content = view_of(cppo=made_tokens("cppo", (40,)), dppo=theirs)
    (shown,) = content["tokens"]
    assert shown["method"] == "CPPO" and [used["name"] for used in shown["rules"]] == ["CPPO"]
    [said] = view["not_replayed"]
    assert reason in said


def test_without_torch_the_page_has_all_but_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cppo_lab.analysis.replay")
    monkeypatch.setitem(sys.modules, "torch", None)
    view = answers_view(pair(), answers())
    assert view["maps"] and view["texts"] and not view["tokens"]
    assert view["not_replayed"] == ["package 'torch' is not installed"]


def test_what_it_adds_to_a_page_is_bounded() -> None:
    """Nine methods, 1,500 problems, megabytes of text, and responses beyond any length: under 6 MB together."""
    large = made.outcomes(1500, 60)
    large = replace(large, problems=tuple(f"problem-{number:040d}" for number in range(1500)))
    board = scored_outcomes({(f"method {number}", 0): large for number in range(9)})
    response = as_text(HOSTILE * 1_000)
    text = Texts(200, tuple(made.sample(step=200, draw=draw, response=response) for draw in range(30)))
    of_run = RunAnswers((text,) * 3, (made_tokens("cppo", (TOKENS, 40_000, TOKENS)),))
    view = answers_view(board, {run.mlflow_id: of_run for run in shown_runs(board)})
    assert len(view["content"].encode()) <= 6_000_000
    content = json.loads(view["content"])
    assert len(content["tokens"]) >= 1 and content["texts"]["left"] > 0 and content["maps"][0]["left"] > 0
