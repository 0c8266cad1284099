"""`cppo samples` and `cppo replay`: from a run's folder and from the store, and what they refuse."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.answers.recording import Recording, StepAnswers
from cppo_lab.cli import main
from cppo_lab.runs.folder import CONFIG, read_status, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import AnswersSpec, RunSpec
from tests.answers import made
from tests.conftest import FINISHED
from tests.recorded import sent

KEPT = AnswersSpec(keep=True, problems=8, groups=2, megabytes=50.0)
HOSTILE = "two\nlines \x1b[2J\u202e\x07"


@pytest.fixture
def run(workspace: Path, tiny_spec: RunSpec) -> Path:
    """The folder of a finished run, which the store has too."""
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    recording = Recording(KEPT, folder, 2, recorder.file)
    recording.begin(None)
    whole = made.outcomes(validations=2)
    for row, step in enumerate((0, 10)):
        one = type(whole)(
            **vars(whole)
            | {name: getattr(whole, name)[row : row + 1] for name in ("steps", "right", "cut_off", "length")}
        )
        samples = [
            made.sample(step=step, response=HOSTILE),
            made.sample(step=step, draw=1, right=False, answer=None),
            made.sample(step=step, problem="aime25-7", right=False, answer="3", prompt="2 + 2 ="),
            made.sample(step=step, kind="training", problem="t-1", group=4, reward=1.0, advantage=0.5),
        ]
        recording.add(StepAnswers(one, samples, made.tokens() if step else None))
    recorder.log(0, {"train/reward": 0.5})
    recorder.finish(FINISHED)
    sent(folder)
    return folder


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_samples_are_printed_as_text_that_steers_no_terminal(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["samples", run.name]) == 0
    text = capsys.readouterr().out
    assert f"4 of 4 samples of run {run.name}, step 10" in text
    assert "    two\n    lines \\x1b[2J\\u202e\\x07\n" in text
    assert "draw 0: right, answer 2, 4 tokens, end" in text
    assert "draw 1: wrong, no answer" in text
    assert "reward 1, advantage 0.5" in text
    assert all(sign.isprintable() or sign == "\n" for sign in text)


def test_samples_are_chosen(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = as_json(capsys, "samples", run.name, "--step", "0")
    assert (whole["run"], whole["step"], whole["left_out"]) == (run.name, 0, 0)
    assert [one["problem"] for one in whole["samples"]] == ["aime24-1", "aime25-7", "t-1", "aime24-1"]
    assert whole["samples"][0]["response"] == HOSTILE
    wrong = as_json(capsys, "samples", run.name[:6], "--wrong")
    assert [one["answer"] for one in wrong["samples"]] == ["3", None]
    one = as_json(capsys, "samples", run.name, "--problem", "aime25")
    assert [found["prompt"] for found in one["samples"]] == ["2 + 2 ="]


def test_of_a_run_finished_elsewhere_they_come_from_the_store(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = [as_json(capsys, "samples", run.name), as_json(capsys, "replay", run.name, "--rule", "dppo")]
    stub, config = {**read_status(run), "origin": "sqlite:///elsewhere.db"}, (run / CONFIG).read_bytes()
    shutil.rmtree(run)
    run.mkdir()
    (run / CONFIG).write_bytes(config)
    write_status(run, stub)
    assert [
        as_json(capsys, "samples", run.name),
        as_json(capsys, "replay", run.name, "--rule", "dppo"),
    ] == here


def test_a_run_that_was_never_started_is_not_searched_for_in_sweeps(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.sweep.plan._declared", lambda name: pytest.fail(f"{name} was composed"))
    assert main(["samples", "0000"]) == 2
    assert "run '0000' has not been started: no folder in " in capsys.readouterr().err


def test_a_rule_is_replayed_with_its_constants(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a loop: DPPO drops what moves away and is further than delta."""
    tokens = made.tokens()
    found = as_json(capsys, "replay", run.name, "--rule", "dppo", "delta=0.15")
    assert (found["rule"], found["constants"], found["divergence"]) == ("dppo", {"delta": 0.15}, "binary_tv")
    kept = 0
    for number, place in enumerate(tokens.responses()):
        response, own = found["responses"][number], 0
        for at in range(place.start, place.stop):
            away = tokens.advantage[number] * (tokens.logp[at] - tokens.rollout_logp[at]) > 0
            own += not (away and tokens.divergence[at] > 0.15)
        assert response["kept"] == pytest.approx(own / (place.stop - place.start))
        assert response["own_kept"] == 1
        assert sum(response["tests"].values()) == len(response["differ"]) == place.stop - place.start - own
        kept += own
    assert found["share_kept"] == pytest.approx(kept / 14)
    assert 0 < kept < 14
    differing = [one for response in found["responses"] for one in response["differ"]]
    assert {(one["test"], one["own_test"]) for one in differing} == {("threshold", "")}
    assert main(["replay", run.name, "--rule", "dppo", "delta=0.15"]) == 0
    text = capsys.readouterr().out
    assert f"{kept / 14:.2%}" in text
    assert f"{14 - kept} tokens differ" in text


def test_constants_are_those_of_the_runs_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "replay", run.name)["constants"] == made.tokens().rule.constants
    assert as_json(capsys, "replay", run.name, "w_min=0.5")["constants"]["w_min"] == 0.5
    assert as_json(capsys, "replay", run.name, "--rule", "grpo")["constants"].keys() >= {
        "clip_low",
        "clip_high",
    }
    kl = as_json(capsys, "replay", run.name, "--rule", "trm_avg")
    assert (kl["divergence"], list(kl["constants"])) == ("binary_kl", ["delta_avg"])
    other = as_json(capsys, "replay", run.name, "--rule", "dppo", "divergence=sample_k3")
    assert other["divergence"] == "sample_k3"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["samples", "RUN", "--step", "5"], "has texts of the steps 0, 10"),
        (["samples", "RUN", "--problem", "x"], "step 10 has answers to aime24-1, aime25-7, t-1"),
        (["samples", "zzzz"], "is not a prefix of a run's id"),
        (["replay", "RUN", "--step", "0"], "has tokens of the steps 10"),
        (["replay", "RUN", "--rule", "m2po"], "whole minibatch"),
        (["replay", "RUN", "--rule", "nobodys"], "unknown rule 'nobodys'"),
        (["replay", "RUN", "--rule", "dppo", "delta"], "must be KEY=VALUE"),
        (["replay", "RUN", "--rule", "dppo", "delta=-1"], "cannot be replayed"),
        (["replay", "RUN", "--rule", "dppo", "delta=big"], "cannot be replayed"),
        (["replay", "RUN", "--rule", "dppo", "nonsense=1"], "nonsense"),
        (["replay", "RUN", "--rule", "dppo", "divergence=exact_tv"], "unknown divergence"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main([run.name if word == "RUN" else word for word in words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_run_without_answers_says_how_to_keep_them(
    workspace: Path, tiny_spec: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    recorder.finish(FINISHED)
    for command, kind in (("samples", "texts"), ("replay", "tokens")):
        assert main([command, folder.name]) == 2
        assert f"has kept no {kind}: runs keep them" in capsys.readouterr().err
