"""The embedded core keeps its answers: what is in the files, that nothing else changes, and the same after a kill."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cppo_lab import schema
from cppo_lab.analysis.replay import replay
from cppo_lab.answers import ANSWERS, outcomes, texts, tokens
from cppo_lab.answers.outcomes import OUTCOMES
from cppo_lab.answers.texts import texts_name
from cppo_lab.core_records import CHECKPOINT
from cppo_lab.cores.checkpoint import load_checkpoint
from cppo_lab.cores.mini.tasks import make_task, validation_sets
from cppo_lab.spec import AnswersSpec, MiniRun
from cppo_lab.sweep.compose import compose
from tests.answers.made import averages
from tests.conftest import TINY
from tests.cores.kills import Killed
from tests.cores.test_mini import ListSink, attempt, tiny

# With a mask that drops something in a few steps of a tiny model.
WORDS = [*TINY, "rule.delta=0.01", "optim.learning_rate=0.01", "rollout.staleness=1", "training.t_stop=4"]
DEFAULT = compose(TINY).tracking.answers


class FileSink(ListSink):
    """Keeps files in `folder`; dies after file number `files`, or when step `step` is logged."""

    def __init__(self, folder: Path, files: int = -1, step: int | None = None) -> None:
        super().__init__(step)
        self.folder, self.left = folder, files

    def file(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        self.left -= 1
        if self.left == 0:
            raise Killed


def read_outcomes(folder: Path) -> outcomes.Outcomes:
    return outcomes.read((folder / OUTCOMES).read_bytes(), "the file")


def read_texts(folder: Path, step: int) -> texts.Texts:
    return texts.read((folder / texts_name(step)).read_bytes(), "the file")


def run_of(*overrides: str) -> MiniRun:
    return compose([*WORDS, *overrides]).run


RUN = run_of()


def trained(folder: Path, run: MiniRun = RUN, answers: AnswersSpec | None = DEFAULT, **kill: int) -> FileSink:
    return attempt(run, folder, FileSink(folder, **kill), answers=answers)[0]


def tokens_in(folder: Path) -> list[tokens.RecordedTokens]:
    """Of all steps."""
    paths = sorted((folder / ANSWERS).glob("tokens-*"))
    return [tokens.read(path.read_bytes(), path.name) for path in paths]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / ANSWERS).iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> FileSink:
    """An unbroken run that keeps its answers."""
    return trained(tmp_path_factory.mktemp("whole") / "run")


def test_outcomes_are_those_of_the_logged_scores(whole: FileSink) -> None:
    outcome = read_outcomes(whole.folder)
    scored = [(step, row) for step, row in whole.rows if any(name.startswith("val/") for name in row)]
    assert len(scored) > 2
    assert (outcome.steps.tolist(), outcome.benchmarks) == ([step for step, _ in scored], RUN.data.benchmarks)
    for place, benchmark in enumerate(outcome.benchmarks):
        name = schema.validation_metric(benchmark, RUN.validation.samples)
        logged = np.array([row[name] for _, row in scored], dtype=np.float32)
        np.testing.assert_array_equal(averages(outcome)[:, place].astype(np.float32), logged)
    assert outcome.right.max() > 0 and outcome.length.min() >= 1


def test_texts_show_numbers_in_whatever_spelling_and_tokens_name_it(tmp_path: Path) -> None:
    run = run_of("data.spellings=3", "divergence.k=8")
    trained(tmp_path / "run", run)
    samples = read_texts(tmp_path / "run", 4).samples
    words = {word for sample in samples for word in f"{sample.prompt} {sample.response}".split()}
    assert words <= {*"0123456789+-*=", "<eos>", "<pad>"}
    table = tokens_in(tmp_path / "run")[-1]
    assert {piece.partition("_")[2] for piece in table.pieces} >= {"1", "2"}


def test_samples_are_graded_as_their_outcomes_say(whole: FileSink) -> None:
    outcome, task, drawn_groups = read_outcomes(whole.folder), make_task(RUN.data), []
    sets = validation_sets(task).values()
    prompts = {" ".join(task.tokenizer.names(ids)) for problems in sets for ids in problems.prompts.tolist()}
    for row, step in enumerate(outcome.steps.tolist()):
        file = read_texts(whole.folder, step)
        validated = [sample for sample in file.samples if sample.kind == "validation"]
        assert file.left_out == 0
        assert len(validated) == 8 * RUN.validation.samples
        for problem in {sample.problem for sample in validated}:
            place = outcome.problems.index(problem)
            k = [sample for sample in validated if sample.problem == problem]
            assert sorted(sample.draw for sample in k) == list(range(RUN.validation.samples))
            sums = [sum(getattr(sample, name) for sample in k) for name in ("right", "cut_off", "length")]
            assert sums[:2] == [outcome.right[row, place], outcome.cut_off[row, place]]
            assert sums[2] / len(k) == pytest.approx(outcome.length[row, place], rel=1e-6)
        for sample in validated:
            assert sample.right == (sample.answer is not None and sample.answer == sample.truth)
            assert sample.prompt in prompts
            assert sample.response.endswith("<eos>") == (sample.stop == "end") == (not sample.cut_off)
            assert len(sample.response.split()) <= sample.length  # padding that was sampled has no text
        drawn = [sample for sample in file.samples if sample.kind == "training"]
        drawn_groups.append(len(drawn) / RUN.batch.responses)
        assert all(sample.right == (sample.reward == 1) and sample.advantage is not None for sample in drawn)
        assert not {sample.prompt for sample in drawn} & prompts
    # Of groups with a signal: none before training, two at most.
    assert drawn_groups[0] == 0 and {*drawn_groups} <= {0, 1, 2} and max(drawn_groups) > 0


def test_tokens_are_those_of_the_training_samples(whole: FileSink) -> None:
    seen: set[str] = set()
    for table in tokens_in(whole.folder):
        file = read_texts(whole.folder, table.step)
        drawn = {(sample.group, sample.draw): sample for sample in file.samples if sample.kind == "training"}
        words, places = table.texts(), list(table.responses())
        assert len(places) == len(drawn) > 0
        for number, place in enumerate(places):
            sample = drawn[int(table.group[number]), int(table.draw[number])]
            assert " ".join(words[place]) == sample.response
            assert (sample.length, sample.reward) == (place.stop - place.start, table.reward[number])
            assert sample.advantage == pytest.approx(float(table.advantage[number]))
        seen |= {table.reason_of(number) for number in range(len(table.token))}
    assert {"", "threshold"} <= seen


@pytest.mark.parametrize("rule", ["cppo", "cppo_no_prefix_budget_shuffled", "grpo"])
def test_rules_are_replayed_as_they_were_trained(tmp_path: Path, rule: str) -> None:
    trained(tmp_path / "run", tiny("optim.learning_rate=0.01", f"rule={rule}"))
    for table in tokens_in(tmp_path / "run"):
        again = replay(table)
        np.testing.assert_array_equal(again.keep, table.keep)
        np.testing.assert_array_equal(again.reason, table.reason)
        assert (len(table.order) > 0) == ("shuffled" in rule)


def test_keeping_answers_changes_no_number(tmp_path: Path, whole: FileSink) -> None:
    for name, settings in (("none", None), ("off", DEFAULT.model_copy(update={"keep": False}))):
        sink = trained(tmp_path / name, answers=settings)
        assert sink.numbers() == whole.numbers()
        assert not (tmp_path / name / ANSWERS).exists()


def test_settings_decide_what_is_kept(tmp_path: Path) -> None:
    run = run_of("training.t_stop=2")
    settings = AnswersSpec(keep=True, problems="all", groups=0, megabytes=50.0)
    trained(tmp_path / "all", run, settings)
    file = read_texts(tmp_path / "all", 2)
    problems = len(run.data.benchmarks) * run.data.validation_problems
    assert len(file.samples) == problems * run.validation.samples
    assert tokens_in(tmp_path / "all") == []
    little = AnswersSpec(keep=True, problems="all", groups=2, megabytes=0.004)
    trained(tmp_path / "little", run, little)
    files = {name: len(data) for name, data in files_of(tmp_path / "little").items()}
    assert sum(files.values()) - files["outcomes.npz"] <= 0.004 * 2**20
    assert read_texts(tmp_path / "little", 2).left_out > 0


@pytest.mark.parametrize("kill", [{"files": n} for n in range(1, 6)] + [{"step": n} for n in (0, 2, 3)])
def test_killed_and_continued_it_leaves_the_same_files(
    tmp_path: Path, whole: FileSink, kill: dict[str, int]
) -> None:
    with pytest.raises(Killed):
        trained(tmp_path / "broken", **kill)
    continued = trained(tmp_path / "broken")
    assert files_of(tmp_path / "broken") == files_of(whole.folder)
    assert continued.numbers()[-1] == whole.numbers()[-1]


def test_files_of_a_run_that_starts_again_are_its_own(
    tmp_path: Path, whole: FileSink, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its checkpoint, or with outcomes that somebody has broken."""
    folder = tmp_path / "run" / ANSWERS
    folder.mkdir(parents=True)
    for name in ("texts-000099.jsonl.gz", "tokens-000099.npz", "outcomes.npz"):
        (folder / name).write_bytes(b"an earlier attempt's")
    trained(tmp_path / "run")
    assert files_of(tmp_path / "run") == files_of(whole.folder)
    with pytest.raises(Killed):
        trained(tmp_path / "damaged", step=3)
    (tmp_path / "damaged" / OUTCOMES).write_bytes(b"nothing of ours")
    trained(tmp_path / "damaged")
    assert "outcomes of earlier validations are lost" in capsys.readouterr().err
    left, whole_file = (read_outcomes(path) for path in (tmp_path / "damaged", whole.folder))
    assert 0 < len(left.steps) < len(whole_file.steps)
    np.testing.assert_array_equal(left.right, whole_file.right[-len(left.steps) :])


def test_no_checkpoint_is_written_whose_answers_are_not_on_disk(tmp_path: Path) -> None:
    """A disk that is full for a while may have room for one and not for the other."""
    run, sink = run_of("training.t_stop=6", "validation.every=2"), FileSink(folder := tmp_path / "run")
    write = sink.file  # full from the validation of step 4 on
    sink.file = lambda *given: write(*given) or not sink.rows or sink.rows[-1][0] < 3
    attempt(run, folder, sink, answers=DEFAULT)
    assert [step for step, _ in sink.rows] == list(range(7))
    checkpoint = load_checkpoint(folder / CHECKPOINT, run.run_id, f"torch {torch.__version__} on cpu")
    assert checkpoint["history"][-1][0] == 2
