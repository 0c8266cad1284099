"""A store with the quickstart's runs, trained in no time."""

from pathlib import Path

import pytest

from cppo_lab.answers import outcomes
from cppo_lab.answers.outcomes import OUTCOMES
from cppo_lab.cli import main
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from tests import plausible
from tests.answers import made
from tests.conftest import at_work, working_in


def train(spec: RunSpec, recorder: Recorder, resources: object) -> Outcome:
    """As `plausible.train`; CPPO's runs keep outcomes, those of GRPO fail."""
    if spec.rule.name == "grpo":
        raise RuntimeError("out of memory")
    ended = plausible.train(spec, recorder, resources)
    if spec.rule.name == "cppo":
        recorder.file(OUTCOMES, outcomes.write(made.outcomes(seed=spec.seed)))
    return ended


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder: `dppo` with seed 0, `cppo` with two seeds and two values of w_min, `grpo` failed. Read only."""
    folder = tmp_path_factory.mktemp("trained")
    with working_in(folder) as patch:
        patch.setattr("cppo_lab.runs.attempt.load_core", lambda name: train)
        for texts in (["variant=cppo", "rule.w_min=0.6,0.8"], ["variant=dppo,grpo", "seed=0"]):
            main(["launch", "quickstart", "launcher=inline", *texts])
    return folder


@pytest.fixture
def in_trained(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the working folder."""
    at_work(monkeypatch, trained)
    return trained
