"""`cppo launch --stop-hopeless`: a run with early signs of a collapse is stopped, told of once, and resumed when asked."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.runs import attempt as attempts
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import notify
from tests.conftest import TINY
from tests.launch.test_launch import mlflow_runs
from tests.tracking.test_notify import Receiver, receive  # noqa: F401  a fixture
from tests.waiting import until

LAUNCH = ["quickstart", *TINY, "variant=cppo", "seed=0,1", "training.t_stop=1000", "launcher=inline"]
SCORE = schema.validation_metric(schema.MEAN, 16)
LAST_STEP = 40


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of seed 1 falls to a tenth of its best score, waits there for its end, and recovers when it is resumed."""

    def train(spec: RunSpec, recorder: Recorder, resources: object) -> Outcome:
        began = recorder.step or 0
        recorder.begin(began or None)
        recorder.log(0, {SCORE: 0.5})
        if spec.seed and not began:
            recorder.log(5, {SCORE: 0.05})
            recorder.doing("waiting")  # writes the status
            until("it is stopped", lambda: time.sleep(0.1))
        recorder.log(LAST_STEP, {SCORE: 0.6})
        return Outcome(schema.DONE, LAST_STEP)

    monkeypatch.setattr(attempts, "load_core", lambda name: train)


def runs(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """State and reason, by seed."""
    capsys.readouterr()
    assert main(["status", *LAUNCH, "--json"]) == 0
    return [(run["state"], run["reason"]) for run in json.loads(capsys.readouterr().out)["runs"]]


def test_a_hopeless_run_is_stopped_by_the_rule_left_and_resumed(
    workspace: Path, capsys: pytest.CaptureFixture[str], receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(notify, "EVERY_SECONDS", 0.1)
    webhook = receive()
    assert main(["launch", *LAUNCH, "--stop-hopeless", f"notify.url={webhook.url}"]) == 1
    said = capsys.readouterr().err
    assert (
        said.count("early signs of a collapse: score 5.0 % is at most ") == 2
    )  # when it is seen, and at the end
    assert "1 of 2 runs are not done (1 stopped)" in said
    [done, (state, reason)] = runs(capsys)
    assert done == ("done", "") and state == "stopped"
    assert (
        reason.startswith("early signs of a collapse")
        and "(early warning 1) at step 5; stopped at step 5" in reason
    )
    stored = {run.data.tags[schema.TAG_SEED]: run for run in mlflow_runs()}["1"]
    assert (stored.info.status, stored.data.tags[schema.TAG_STATUS]) == ("KILLED", "stopped")
    assert stored.data.tags[schema.TAG_REASON] == reason
    assert [body["event"] for body in webhook.bodies][-2:] == ["stopped", "ended"]
    assert {body["event"] for body in webhook.bodies[:-2]} <= {"early signs"}  # if it was looked at in time

    assert main(["launch", *LAUNCH, "--stop-hopeless"]) == 1  # it is left
    assert "0 to train" in capsys.readouterr().err
    assert main(["launch", *LAUNCH]) == 0
    assert runs(capsys) == [("done", "")] * 2
    assert len(mlflow_runs()) == 2


def test_without_the_option_it_is_told_alone(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.launch.test_stop_hopeless.until", lambda *_: time.sleep(2.0))
    assert main(["launch", *LAUNCH]) == 0
    assert capsys.readouterr().err.count("early signs of a collapse") == 1
    assert runs(capsys) == [("done", "")] * 2
