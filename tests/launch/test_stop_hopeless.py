"""`cppo launch --stop-hopeless`: a run with early signs of a collapse is stopped, left, and resumed when asked."""

import pytest

from cppo_lab import schema
from cppo_lab.runs import attempt as attempts
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from tests.conftest import TINY, Command
from tests.recorded import mlflow_runs
from tests.waiting import until

SWEEP = " ".join(["quickstart", *TINY, "variant=cppo seed=0,1 training.t_stop=1000 launcher=inline"])
SCORE = schema.validation_metric(schema.MEAN, 16)
LAST_STEP = 40


def warned() -> bool:
    """Replaced where nobody stops the run."""
    return False


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of seed 1 falls to a fiftieth of its best, and waits there; it recovers, also when it is resumed."""

    def train(spec: RunSpec, recorder: Recorder, resources: object) -> Outcome:
        began = recorder.step or 0
        recorder.begin(began or None)
        recorder.log(0, {SCORE: 0.5})
        if spec.seed and not began:
            recorder.log(5, {SCORE: 0.01})
            until("it is stopped, or its signs are reported", warned)
        recorder.log(LAST_STEP, {SCORE: 0.6})
        return Outcome(schema.DONE, LAST_STEP)

    monkeypatch.setattr(attempts, "load_core", lambda name: train)


def runs(cppo: Command) -> list[tuple[str, str]]:
    """State and reason, by seed."""
    return [(run["state"], run["reason"]) for run in cppo(f"status {SWEEP} --json").answer["runs"]]


def test_a_hopeless_run_is_stopped_by_the_rule_left_and_resumed(cppo: Command) -> None:
    said = cppo(f"launch {SWEEP} --stop-hopeless", code=1).err
    signs = "early signs of a collapse: score 1.0 % is below "
    assert said.count(signs) == 2  # when it is seen, and at the end
    assert "1 of 2 runs are not done (1 stopped)" in said
    [done, (state, reason)] = runs(cppo)
    assert (done, state) == (("done", ""), "stopped")
    assert reason.startswith(signs) and "(early warning 1) at step 5; stopped at step 5" in reason
    stored = {run.data.tags[schema.TAG_SEED]: run for run in mlflow_runs()}["1"]
    ended = {schema.TAG_STATUS: "stopped", schema.TAG_REASON: reason}
    assert stored.info.status == "KILLED" and ended.items() <= stored.data.tags.items()

    assert "0 to train" in cppo(f"launch {SWEEP} --stop-hopeless", code=1).err  # it is left
    cppo(f"launch {SWEEP}")
    assert runs(cppo) == [("done", "")] * 2
    assert len(mlflow_runs()) == 2


def test_without_the_option_its_signs_are_only_reported(
    cppo: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def warned() -> bool:
        said.append(capsys.readouterr().err)
        return "early signs" in "".join(said)

    monkeypatch.setattr(f"{__name__}.warned", warned)
    said.append(cppo(f"launch {SWEEP}").err)
    assert "".join(said).count("early signs of a collapse") == 1
    assert runs(cppo) == [("done", "")] * 2
