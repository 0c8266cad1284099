"""The page's part on answers: what it shows, that it stays small, and that no text in it acts."""

import base64
import json
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from cppo_lab.analysis.answers import RunAnswers
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.answers.outcomes import Outcomes, no_outcomes
from cppo_lab.answers.replay import replay
from cppo_lab.answers.texts import Texts, as_text
from cppo_lab.reports.answers import problem_map, samples, token_traces
from cppo_lab.reports.answers.problem_map import problem_maps
from cppo_lab.reports.answers.samples import shortened, visible
from cppo_lab.reports.answers.token_traces import token_responses
from cppo_lab.reports.answers.view import MOST_BYTES, answers_view, shown_runs
from tests.analysis.made_sweeps import MadeRun, expect, make_data
from tests.answers import made
from tests.reports.made_answers import HOSTILE, IDS, TOKENS, made_outcomes, made_texts, made_tokens


def scored(outcomes: dict[tuple[str, int], Outcomes]) -> Scoreboard:
    """A sweep with these outcomes of (variant, seed)."""
    runs = []
    for (variant, seed), own in outcomes.items():
        averages = own.averages()
        scores = {
            name: dict(zip(own.steps.tolist(), averages[:, number].tolist(), strict=True))
            for number, name in enumerate(own.benchmarks)
        }
        runs.append(MadeRun(variant, seed=seed, scores=scores, t_stop=200))
    data = make_data(runs)
    ids = data.runs.set_index("run_id")["mlflow_id"]
    known = {ids[run.key]: own for run, own in zip(runs, outcomes.values(), strict=True)}
    return score_sweep(replace(data, outcomes=known), expect(runs))


@cache
def pair() -> Scoreboard:
    return scored({(name, seed): made_outcomes(name, seed) for name in ("dppo", "cppo") for seed in (0, 1)})


@cache
def answers() -> dict[str, RunAnswers]:
    return {
        run.mlflow_id or "": RunAnswers((made_texts(run.variant, 200),), (made_tokens(run.variant),))
        for run in shown_runs(pair())
    }


def test_a_map_has_each_share_where_it_belongs() -> None:
    (found,) = problem_maps(pair())
    assert found.methods == ("dppo", "cppo") and found.runs == (2, 2)
    means = []
    for place in range(len(IDS)):
        shares = [int(count) / 16 for own in pair().data.outcomes.values() for count in own.right[:, place]]
        means.append(sum(shares) / len(shares))
    assert [means[IDS.index(name)] for name in found.problems] == sorted(means, reverse=True)
    for method, cells in zip(found.methods, found.cells, strict=True):
        runs = [
            own
            for run in pair().runs
            if run.variant == method
            for own in [pair().data.outcomes[run.mlflow_id or ""]]
        ]
        for row, step in enumerate(found.steps):
            for column, name in enumerate(found.problems):
                at = list(runs[0].steps).index(step)
                share = sum(int(own.right[at, IDS.index(name)]) for own in runs) / 32
                assert abs(cells[row, column] / problem_map.FULL - share) <= 0.501 / problem_map.FULL
    last = found.problems.index(IDS[-1])
    assert last in found.alone[1, 0] and (0, 1) not in found.alone


def test_runs_that_ended_early_leave_blanks() -> None:
    whole, short = made_outcomes("dppo", 0), made_outcomes("cppo", 0).until(100)
    (found,) = problem_maps(scored({("dppo", 0): whole, ("cppo", 0): short}))
    assert (found.cells[1][found.steps.index(110) :] == problem_map.NOT_SEEN).all()
    assert (found.cells[1][: found.steps.index(110)] <= problem_map.FULL).all()


def test_controls_are_written_out() -> None:
    assert (
        visible("a\u202eb\x00\x1b[1m\n\tc\ud800\u200b")
        == "a⟨U+202E⟩b⟨U+0000⟩⟨U+001B⟩[1m\n\tc⟨U+D800⟩⟨U+200B⟩"
    )
    assert visible("naïve 答案 😀") == "naïve 答案 😀"
    assert (
        shortened("x" * 100 + "y" * 100, 20) == "x" * 10 + "\n[… 180 characters are left out …]\n" + "y" * 10
    )


def test_no_text_can_act_on_the_page() -> None:
    view = answers_view(pair(), answers())
    assert view is not None and view["maps"] and view["texts"] and view["tokens"]
    assert not set(view["content"]) & {"<", ">", "&", "\u2028", "\u202e", "\x00"}
    content = json.loads(view["content"])
    shown = content["texts"]["samples"]
    assert any("</script>" in one["text"] for one in shown)
    for one in shown:
        assert "\u202e" not in one["text"] + one.get("answer", "") + one["stop"]
    assert visible(HOSTILE) in shown[0]["text"]


def test_tokens_are_those_of_the_file_and_of_the_replay() -> None:
    kept = made_tokens("cppo", (40, 700))
    run = next(run for run in shown_runs(pair()) if run.variant == "cppo")
    other = next(run for run in shown_runs(pair()) if run.variant == "dppo")
    runs = [(run, RunAnswers((), (kept,))), (other, RunAnswers((), (made_tokens("dppo", (30,)),)))]
    first, theirs, second = token_responses(runs)
    assert (first.method, theirs.method, second.method) == ("CPPO", "DPPO", "CPPO")
    assert [rule.name for rule in first.rules] == ["CPPO", "DPPO"] and first.rules[0].own
    expected = replay(kept)
    plain = second.plain()
    ratio = np.frombuffer(base64.b64decode(plain["ratio"]), "<f2")
    np.testing.assert_allclose(ratio, (kept.logp - kept.rollout_logp)[40:], rtol=1e-3, atol=1e-6)
    own = plain["rules"][0]
    assert list(base64.b64decode(own["reason"])) == expected.reason[40:].tolist()
    assert 0 < sum(reason > 0 for reason in expected.reason[40:]) < 700
    assert expected.weight is not None
    np.testing.assert_allclose(
        np.frombuffer(base64.b64decode(own["w"]), "<f2"), expected.weight[40:], rtol=1e-3
    )
    dppo = replay(kept, "dppo", {"delta": 0.15})
    assert list(base64.b64decode(plain["rules"][1]["reason"])) == dppo.reason[40:].tolist()
    assert "w" not in plain["rules"][1]


def test_a_rule_over_whole_minibatches_has_no_decisions_to_show() -> None:
    """The page of a sweep with M2PO is made, and says why it lacks those tokens."""
    runs = {run.variant: run for run in shown_runs(pair())}
    theirs = made_tokens("dppo", (30,))
    kept = {
        "cppo": RunAnswers((), (made_tokens("cppo", (40,)),)),
        "dppo": RunAnswers(
            (), (replace(theirs, rule=replace(theirs.rule, name="m2po", constants={"m2": 0.04})),)
        ),
    }
    view = answers_view(pair(), {runs[name].mlflow_id or "": own for name, own in kept.items()})
    assert view is not None and view["tokens"]
    (shown,) = json.loads(view["content"])["tokens"]
    assert shown["method"] == "CPPO" and [rule["name"] for rule in shown["rules"]] == ["CPPO"]
    (reason,) = view["not_replayed"]
    assert reason.startswith("rule 'm2po' decides over a whole minibatch")


def test_tokens_of_a_rule_that_is_not_installed() -> None:
    runs = {run.variant: run for run in shown_runs(pair())}
    theirs = made_tokens("dppo", (30,))
    gone = replace(theirs, rule=replace(theirs.rule, name="somebodys"))
    view = answers_view(pair(), {runs["dppo"].mlflow_id or "": RunAnswers((), (gone,))})
    assert view is not None and not view["tokens"] and "somebodys" in view["not_replayed"][0]


def test_without_torch_the_page_has_all_but_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cppo_lab.answers.replay")
    monkeypatch.setitem(sys.modules, "torch", None)
    view = answers_view(pair(), answers())
    assert view is not None and view["maps"] and view["texts"] and not view["tokens"]
    assert view["not_replayed"] == ["package 'torch' is not installed"]


def test_a_response_of_the_papers_length_has_room_in_every_method() -> None:
    runs = [(run, answers()[run.mlflow_id or ""]) for run in shown_runs(pair())]
    found = token_responses(runs)
    assert [len(one.pieces) for one in found] == [TOKENS, TOKENS, 600, 600]


def test_what_it_adds_to_a_page_is_bounded() -> None:
    """Nine methods, 1,500 problems, megabytes of text, and responses beyond any length: under 6 MB together."""
    rng = np.random.default_rng(0)
    count = 1500
    large = no_outcomes(16, ("a",), [f"problem-{number:040d}" for number in range(count)], [0] * count)
    for step in range(0, 600, 10):
        large = large.append(step, rng.integers(0, 17, count), np.zeros(count), np.zeros(count))
    board = scored({(f"method {number}", 0): large for number in range(9)})
    text = Texts(200, tuple(made.sample(step=200, draw=draw, response=HOSTILE * 1_000) for draw in range(30)))
    text = replace(text, samples=tuple(replace(one, response=as_text(one.response)) for one in text.samples))
    kept = RunAnswers((text,) * 3, (made_tokens("cppo", (TOKENS, 40_000, TOKENS)),))
    view = answers_view(board, {run.mlflow_id or "": kept for run in shown_runs(board)})
    assert view is not None and len(view["content"].encode()) <= MOST_BYTES
    content = json.loads(view["content"])
    assert len(content["tokens"]) >= 1 and content["texts"]["left"] > 0 and content["maps"][0]["left"] > 0
    parts = samples.MOST_BYTES + token_traces.MOST_BYTES + 3 * problem_map.MOST_CELLS
    assert parts < MOST_BYTES


def test_without_outcomes_and_texts_there_is_no_such_part() -> None:
    bare = replace(pair().data, outcomes={})
    board = score_sweep(
        bare, expect([MadeRun(run.variant, seed=run.seed, model=run.model) for run in pair().runs])
    )
    assert answers_view(board, {}) is None
    assert shown_runs(board) == ()
