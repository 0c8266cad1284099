"""`cppo samples` and `cppo replay`: from a run's folder and from the store, and what they refuse."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.analysis.replay import replay
from cppo_lab.answers.texts import Sample, texts_name
from cppo_lab.answers.tokens import RecordedTokens, tokens_name, write
from cppo_lab.runs.folder import CONFIG, read_status, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import RunSpec
from tests.answers import made
from tests.conftest import FINISHED, Command, user_error
from tests.recorded import sent

HOSTILE = "two\nlines \x1b[2J\u202e\x07"


def samples_at(step: int) -> list[Sample]:
    return [
        made.sample(step=step, response=HOSTILE),
        made.sample(step=step, draw=1, right=False, answer=None),
        made.sample(step=step, problem="aime25-7", right=False, answer="3", prompt="2 + 2 ="),
        made.sample(step=step, kind="training", problem="t-1", group=4, reward=1.0, advantage=0.5),
        made.sample(step=step, kind="training", problem="t-2", group=5, reward=1.0),
    ]


@pytest.fixture
def run(workspace: Path, tiny_spec: RunSpec) -> Path:
    """The folder of a finished run, which the store has too."""
    folder = workspace / "runs" / tiny_spec.run_id
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    made.record(recorder, samples_at, 0, 10)
    recorder.finish(FINISHED)
    sent(folder)
    return folder


def test_samples_are_printed_as_text_that_steers_no_terminal(run: Path, cppo: Command) -> None:
    text = cppo(f"samples {run.name}").out
    for words in (
        f"5 of 5 samples of run {run.name}, step 10",
        "    two\n    lines \\x1b[2J\\u202e\\x07\n",
        "draw 0: right, answer 2, 4 tokens, end",
        "draw 1: wrong, no answer",
        "reward 1, advantage 0.5, 4 tokens",
        "reward 1, 4 tokens",
    ):
        assert words in text
    assert all(sign.isprintable() or sign == "\n" for sign in text)


def test_samples_are_chosen(run: Path, cppo: Command) -> None:
    whole = cppo(f"samples {run.name} --step 0 --json").answer
    assert (whole["run"], whole["step"], whole["left_out"]) == (run.name, 0, 0)
    problems = " ".join(sample["problem"] for sample in whole["samples"])
    assert problems == "aime24-1 aime25-7 t-1 t-2 aime24-1"
    assert whole["samples"][0]["response"] == HOSTILE
    wrong = cppo(f"samples {run.name[:6]} --wrong --json").answer["samples"]
    assert [sample["answer"] for sample in wrong] == ["3", None]
    [sample] = cppo(f"samples {run.name} --problem aime25 --json").answer["samples"]
    assert sample["prompt"] == "2 + 2 ="


def test_of_a_run_finished_elsewhere_they_come_from_the_store(run: Path, cppo: Command) -> None:
    lines = (f"samples {run.name} --json", f"replay {run.name} --rule dppo --json")
    here = [cppo(line).answer for line in lines]
    stub, config = {**read_status(run), "origin": "sqlite:///elsewhere.db"}, (run / CONFIG).read_bytes()
    shutil.rmtree(run)
    run.mkdir()
    (run / CONFIG).write_bytes(config)
    write_status(run, stub)
    assert [cppo(line).answer for line in lines] == here


def test_a_rule_is_replayed(run: Path, cppo: Command) -> None:
    """What it drops, by loops: tests/analysis/test_replay.py."""
    line = f"replay {run.name} --rule dppo delta=0.15"
    answer = cppo(f"{line} --json").answer
    named = [answer[key] for key in ("rule", "constants", "divergence")]
    assert named == ["dppo", {"delta": 0.15}, "binary_tv"]
    differing = [token for response in answer["responses"] for token in response["differ"]]
    assert {(token["test"], token["own_test"]) for token in differing} == {("threshold", "")}
    assert {response["own_kept"] for response in answer["responses"]} == {1}
    assert 0 < answer["share_kept"] < 1
    text = cppo(line).out
    assert f"{answer['share_kept']:.2%}" in text and f"{len(differing)} differing token" in text


def test_constants_are_those_of_the_runs_model(run: Path, cppo: Command) -> None:
    def replayed(words: str) -> tuple[str, dict[str, object]]:
        answer = cppo(f"replay {run.name} {words} --json").answer
        return answer["divergence"], answer["constants"]

    assert replayed("")[1] == made.tokens().rule.constants
    assert replayed("w_min=0.5")[1]["w_min"] == 0.5
    assert (replayed("reverse=false")[1]["reverse"], replayed("reverse=true")[1]["reverse"]) == (False, True)
    assert replayed("--rule grpo")[1].keys() >= {"clip_low", "clip_high"}
    divergence, constants = replayed("--rule trm_avg")
    assert (divergence, list(constants)) == ("binary_kl", ["delta_avg"])
    assert replayed("--rule dppo divergence=sample_k3")[0] == "sample_k3"


def of_rule(run: Path, **change: Any) -> RecordedTokens:
    """The run's tokens are now of another rule, as a stranger may write them."""
    tokens = made.tokens()
    tokens = replace(tokens, rule=replace(tokens.rule, **change))
    (run / tokens_name(10)).write_bytes(write(tokens))
    return tokens


def test_code_that_a_file_names_runs_only_where_the_user_names_it(
    run: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody who can write to the store could name any."""
    path = "tests.rules.acme_rules:one_sided"
    tokens = of_rule(run, name="one_sided", path=path, constants={"delta": 0.1})
    monkeypatch.delitem(sys.modules, "tests.rules.acme_rules", raising=False)
    refused = f"not run on their word: if you trust it, set CPPO_RULES={path}"
    assert refused in cppo(f"replay {run.name}", code=2).err
    with user_error("not run on their word"):
        replay(tokens)
    assert "tests.rules.acme_rules" not in sys.modules
    assert "dppo keeps" in cppo(f"replay {run.name} --rule dppo").out
    monkeypatch.setenv("CPPO_RULES", path)
    assert "one_sided keeps" in cppo(f"replay {run.name}").out


def test_names_in_a_file_steer_no_terminal(run: Path, cppo: Command) -> None:
    of_rule(run, name=HOSTILE, estimator=HOSTILE)
    text = cppo(f"replay {run.name} --rule dppo divergence=binary_tv").out
    assert "two\\nlines" in text and all(sign.isprintable() or sign == "\n" for sign in text)


def test_a_file_under_the_name_of_another_step_is_refused(run: Path, cppo: Command) -> None:
    (run / tokens_name(10)).rename(run / tokens_name(20))
    (run / texts_name(10)).rename(run / texts_name(20))
    for command in ("samples", "replay"):
        assert "is of step 10, not 20: delete that file" in cppo(f"{command} {run.name}", code=2).err


@pytest.mark.parametrize(
    "words, said",
    {
        "samples RUN --step 5": "has texts of the steps 0, 10",
        "samples RUN --problem x": "step 10 has answers to aime24-1, aime25-7, t-1, t-2",
        "samples 0000": "run '0000' has not been started: no folder in ",  # and no sweep is composed
        "replay RUN --step 0": "has tokens of the steps 10",
        "replay RUN --rule m2po": "whole minibatch",
        "replay RUN --rule nobodys": "unknown rule 'nobodys'",
        "replay RUN --rule cppo_kl": "conf/rule/cppo_kl.yaml configures a rule, and a replay composes nothing",
        "replay RUN --rule dppo delta": "must be KEY=VALUE",
        "replay RUN --rule dppo delta=-1": "cannot be replayed",
        "replay RUN --rule dppo delta=big": "delta='big': rule 'dppo' takes a number",
        "replay RUN --rule dppo nonsense=1": "nonsense",
        "replay RUN --rule dppo divergence=exact_tv": "unknown divergence",
    }.items(),
)
def test_what_cannot_be_shown_is_one_line(
    run: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.setattr("cppo_lab.sweep.plan._declared", lambda name: pytest.fail(f"{name} was composed"))
    error = cppo(words.replace("RUN", run.name), code=2).err
    assert said in error and error.count("\n") == 1


def test_a_run_without_answers_says_how_to_keep_them(
    workspace: Path, tiny_spec: RunSpec, cppo: Command
) -> None:
    folder = workspace / "runs" / tiny_spec.run_id
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    recorder.finish(FINISHED)
    for command, kind in (("samples", "texts"), ("replay", "tokens")):
        said = cppo(f"{command} {folder.name}", code=2).err
        assert f"has kept no {kind}: runs keep them" in said
        assert "and their core (mini) samples text" in said
