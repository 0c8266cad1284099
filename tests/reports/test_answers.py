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
from cppo_lab.answers.outcomes import no_outcomes
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
from tests.reports.made_answers import HOSTILE, IDS, TOKENS, made_outcomes, made_texts, made_tokens

MOST_BYTES = 6_000_000  # that answers add to a page


@cache
def pair() -> Scoreboard:
    return scored_outcomes(
        {(name, seed): made_outcomes(name, seed) for name in ("dppo", "cppo") for seed in (0, 1)}
    )


def view_of(**tokens: RecordedTokens) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page has of these tokens of the variants, without texts, and what of it is JSON."""
    ids = {run.variant: run.mlflow_id for run in shown_runs(pair())}
    answers = {ids[name]: RunAnswers((), (of_run,)) for name, of_run in tokens.items()}
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
    right = np.array([[made_outcomes(name, seed).right for seed in (0, 1)] for name in ("dppo", "cppo")])
    means = dict(zip(IDS, right.mean(axis=(0, 1, 2)), strict=True))
    assert [means[name] for name in shown["problems"]] == sorted(means.values(), reverse=True)
    share = right.sum(axis=1)[:, :, [IDS.index(name) for name in shown["problems"]]] / 32
    assert np.abs(cells(shown) / FULL - share).max() <= 0.501 / FULL
    assert shown["steps"] == list(made_outcomes("cppo", 0).steps)
    alone = {(ours, theirs): problems for ours, theirs, problems in shown["alone"]}
    assert shown["problems"].index(IDS[-1]) in alone[1, 0] and (0, 1) not in alone


def cells(shown: dict[str, Any]) -> np.ndarray:
    """[methods, validations, problems]"""
    packed = [base64.b64decode(method["cells"]) for method in shown["methods"]]
    return np.array([np.frombuffer(data, "<u2") for data in packed]).reshape(
        len(packed), len(shown["steps"]), -1
    )


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
    shown = content["texts"]["samples"]
    assert any("</script>" in sample["text"] for sample in shown)
    for sample in shown:
        assert "\u202e" not in sample["text"] + sample.get("answer", "") + sample["stop"]
    assert visible(HOSTILE) in shown[0]["text"]
    # A response of the paper's length has room in every method.
    assert [response["method"] for response in content["tokens"]] == ["DPPO", "CPPO"] * 2
    assert [len(response["pieces"]) for response in content["tokens"]] == [TOKENS, TOKENS, 600, 600]


def test_tokens_are_those_of_the_file_and_of_the_replay() -> None:
    tokens = made_tokens("cppo", (40, 700))
    _, content = view_of(cppo=tokens, dppo=made_tokens("dppo", (30,)))
    theirs, first, second = content["tokens"]
    assert (first["method"], theirs["method"], second["method"]) == ("CPPO", "DPPO", "CPPO")
    cppo, dppo = second["rules"]
    assert (cppo["name"], dppo["name"], "w" in dppo) == ("CPPO", "DPPO", False)
    expected = replay(tokens)
    for text, values in (
        (second["ratio"], tokens.logp - tokens.rollout_logp),
        (cppo["w"], expected.weight),
    ):
        decoded = np.frombuffer(base64.b64decode(text), "<f2")
        np.testing.assert_allclose(decoded, values[40:], rtol=1e-3, atol=1e-6)
    for rule, of_rule in ((cppo, expected), (dppo, replay(tokens, "dppo", {"delta": 0.15}))):
        assert list(base64.b64decode(rule["reason"])) == of_rule.reason[40:].tolist()
    assert 0 < sum(reason > 0 for reason in expected.reason[40:]) < 700


@pytest.mark.parametrize(
    "rule, constants, reason",
    [("m2po", {"m2": 0.04}, "rule 'm2po' decides over a whole minibatch"), ("somebodys", {}, "somebodys")],
)
def test_a_rule_that_cannot_be_replayed_is_named(rule: str, constants: dict[str, float], reason: str) -> None:
    """One that decides over whole minibatches, or is not installed: the page is made, and says why it lacks those."""
    theirs = made_tokens("dppo", (30,))
    theirs = replace(theirs, rule=replace(theirs.rule, name=rule, constants=constants))
    view, content = view_of(cppo=made_tokens("cppo", (40,)), dppo=theirs)
    (shown,) = content["tokens"]
    assert shown["method"] == "CPPO" and [used["name"] for used in shown["rules"]] == ["CPPO"]
    assert len(view["not_replayed"]) == 1 and reason in view["not_replayed"][0]


def test_without_torch_the_page_has_all_but_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cppo_lab.analysis.replay")
    monkeypatch.setitem(sys.modules, "torch", None)
    view = answers_view(pair(), answers())
    assert view["maps"] and view["texts"] and not view["tokens"]
    assert view["not_replayed"] == ["package 'torch' is not installed"]


def test_what_it_adds_to_a_page_is_bounded() -> None:
    """Nine methods, 1,500 problems, megabytes of text, and responses beyond any length: under 6 MB together."""
    rng, count = np.random.default_rng(0), 1500
    large = no_outcomes(16, ("a",), [f"problem-{number:040d}" for number in range(count)], [0] * count)
    for step in range(0, 600, 10):
        large = large.append(step, rng.integers(0, 17, count), np.zeros(count), np.zeros(count))
    board = scored_outcomes({(f"method {number}", 0): large for number in range(9)})
    response = as_text(HOSTILE * 1_000)
    text = Texts(200, tuple(made.sample(step=200, draw=draw, response=response) for draw in range(30)))
    of_run = RunAnswers((text,) * 3, (made_tokens("cppo", (TOKENS, 40_000, TOKENS)),))
    view = answers_view(board, {run.mlflow_id: of_run for run in shown_runs(board)})
    assert len(view["content"].encode()) <= MOST_BYTES
    content = json.loads(view["content"])
    assert len(content["tokens"]) >= 1 and content["texts"]["left"] > 0 and content["maps"][0]["left"] > 0
