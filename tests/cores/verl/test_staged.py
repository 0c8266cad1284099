"""Answers on their way from verl's trainer to the run's files: none twice, none lost, whoever is killed and when."""

from pathlib import Path

import numpy as np
import pytest

from cppo_lab.answers import ANSWERS, outcomes
from cppo_lab.answers.outcomes import OUTCOMES, no_outcomes
from cppo_lab.answers.records import StepAnswers
from cppo_lab.answers.texts import Sample, texts_name
from cppo_lab.core_records import Resources
from cppo_lab.cores.verl.checkpoints import STAGED, TAGS_FILE, HandOver, stage
from cppo_lab.files import replace_file
from cppo_lab.spec import AnswersSpec
from cppo_lab.sweep.compose import compose
from tests.cores.kills import Killed

KEPT = AnswersSpec(keep=True, problems=8, groups=2, megabytes=50)
STEPS = (0, 2, 4)


class Sink:
    """Writes files as the recorder does; killed before or behind one of them."""

    def __init__(self, folder: Path, kill_at: int | None = None, behind: bool = False) -> None:
        self.folder, self.kill_at, self.behind, self.written = folder, kill_at, behind, list[str]()
        self.tags: list[tuple[str, str]] = []

    def tag(self, name: str, value: str) -> None:
        self.tags.append((name, value))

    def file(self, name: str, content: bytes) -> None:
        if self.kill_at == len(self.written) and not self.behind:
            raise Killed
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        replace_file(path, content)
        self.written.append(name)
        if self.kill_at == len(self.written) - 1 and self.behind:
            raise Killed


def answers_of(step: int) -> StepAnswers:
    """What a validation of three problems gives; other numbers at each step."""
    none = no_outcomes(4, ["a", "b"], ["a-1", "a-2", "b-1"], [0, 0, 1])
    counts = np.array([step % 4, 1, 4]), np.array([0, step % 3, 1]), np.array([step + 0.25, 2, 3])
    sample = Sample(
        kind="validation", step=step, benchmark="a", problem="a-1", draw=0, prompt="1 + 1 =", response=f"at {step}",
        truth="2", answer=None, right=False, length=3, cut_off=False, stop="end",
    )  # fmt: skip
    return StepAnswers(none.append(step, *counts), (sample,))


def hand_over(folder: Path, sink: Sink, settings: AnswersSpec | None = KEPT) -> HandOver:
    run = compose(["core=verl", "model=tiny_qwen3", "training.t_stop=4", "validation.every=2"]).run
    return HandOver(run, Resources(folder.parent, folder, answers=settings), sink)  # type: ignore[arg-type]


def train(folder: Path, sink: Sink, resumed: int | None, steps: tuple[int, ...] = STEPS) -> None:
    """An attempt: rows up to `resumed` are on file already; the trainer validates the others."""
    answers = hand_over(folder, sink)
    answers.begin(resumed)
    for step in steps:
        if resumed is None or step > resumed:
            stage(folder, answers_of(step))
        answers.add(step)
    answers.end()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / ANSWERS).iterdir())}


@pytest.fixture
def unbroken(tmp_path: Path) -> dict[str, bytes]:
    """The files of a run that was not killed: every step is there once."""
    folder = tmp_path / "unbroken"
    folder.mkdir()
    train(folder, Sink(folder), None)
    assert not (folder / STAGED).exists()
    files = contents(folder)
    assert set(files) == {Path(OUTCOMES).name, *(Path(texts_name(step)).name for step in STEPS)}
    read = outcomes.read(files["outcomes.npz"], "outcomes")
    assert read.steps.tolist() == list(STEPS)
    assert read.right.tolist() == [[step % 4, 1, 4] for step in STEPS]
    assert read.length.tolist() == [[step + 0.25, 2, 3] for step in STEPS]
    return files


@pytest.mark.parametrize("resumed", [None, 0, 2, 4])
@pytest.mark.parametrize("behind", [False, True])
def test_whoever_is_killed_the_files_are_those_of_an_unbroken_run(
    tmp_path: Path, unbroken: dict[str, bytes], behind: bool, resumed: int | None
) -> None:
    """At each file; the trainer was up to two validations ahead, and the run continues from any of its checkpoints."""
    for kill_at in range(2 * len(STEPS)):
        folder = tmp_path / f"{kill_at}"
        folder.mkdir()
        for step in STEPS:  # the trainer does not wait for the process that records
            stage(folder, answers_of(step))
        answers = hand_over(folder, Sink(folder, kill_at, behind))
        with pytest.raises(Killed):
            for step in STEPS:
                answers.add(step)
        train(folder, Sink(folder), resumed)
        assert contents(folder) == unbroken, kill_at


@pytest.mark.parametrize("settings", [KEPT, None, KEPT.model_copy(update={"keep": False})])
def test_a_step_that_was_not_written_to_its_end_or_is_not_kept(
    tmp_path: Path, settings: AnswersSpec | None
) -> None:
    """The trainer was killed between the texts and the outcomes: the step has no row, and is trained again."""
    stage(tmp_path, answers_of(2))
    if settings is KEPT:
        (tmp_path / STAGED / "000002-outcomes.npz").unlink()
    sink = Sink(tmp_path)
    answers = hand_over(tmp_path, sink, settings)
    answers.begin(None)
    answers.add(2)
    answers.end()
    assert sink.written == []
    assert not (tmp_path / STAGED).exists()


@pytest.mark.parametrize("settings", [KEPT, None])
def test_tags_of_a_start_are_passed_on_once(tmp_path: Path, settings: AnswersSpec | None) -> None:
    """Whether or not the run keeps answers, and those of a later start again."""
    sink = Sink(tmp_path)
    moved = hand_over(tmp_path, sink, settings)
    for text in ('{"cppo.env.rollout": "a"}', '{"cppo.env.rollout": "b"}'):
        (tmp_path / TAGS_FILE).write_text(text)
        moved.add(1)
        moved.add(2)
    assert sink.tags == [("cppo.env.rollout", "a"), ("cppo.env.rollout", "b")]
