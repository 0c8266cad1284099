"""The trainer's record and checkpoints: what a kill at any moment leaves of them can be continued."""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch

from cppo_lab import schema
from cppo_lab.answers import outcomes
from cppo_lab.answers.outcomes import OUTCOMES, no_outcomes
from cppo_lab.answers.records import StepAnswers
from cppo_lab.answers.texts import Sample, texts_name
from cppo_lab.core_records import BEST_CHECKPOINT, CHECKPOINTS, Resources
from cppo_lab.cores.verl.checkpoints import (
    OUTCOME,
    ROWS_FILE,
    STAGED,
    TAGS_FILE,
    HandOver,
    Staging,
    append_row,
    best_step,
    checkpoint_folder,
    drop_rows_after,
    keep_best,
    last_readable,
    make_room,
    read_outcome,
    resume,
    rows,
    seal,
    write_outcome,
    writing,
)
from cppo_lab.schema import Outcome
from cppo_lab.spec import AnswersSpec
from cppo_lab.sweep.compose import compose
from tests.conftest import user_error
from tests.cores.kills import killed_at_each
from tests.cores.test_mini_answers import FileSink, files_of
from tests.cores.verl.conftest import steps_in

SCORE = "val/mean/avg_at_16"
MODEL, OPTIMISER = "actor/model_world_size_1_rank_0.pt", "actor/optim_world_size_1_rank_0.pt"
ORDER, SHARD = "data.pt", "actor/model/dist_ckpt/__0_0.distcp"
CONFIG, SIZES = "actor/fsdp_config.json", "sizes.json"


def record(folder: Path, *numbers: int) -> None:
    for number in numbers:
        append_row(folder, number, {})


# -- The record --------------------------------------------------------------------------------------------------------


def test_rows_come_back_with_the_offset_behind_them(tmp_path: Path) -> None:
    """Exactly; a torn line waits until it is whole."""
    assert list(rows(tmp_path)) == []
    metrics = {"a": 0.1 + 0.2, "b": 1e-300, "c": float("inf")}
    append_row(tmp_path, 0, metrics)
    [(offset, row)] = rows(tmp_path)
    assert row == (0, metrics)
    append_row(tmp_path, 1, {})
    path = tmp_path / ROWS_FILE
    content = path.read_bytes()
    assert list(rows(tmp_path, offset)) == [(len(content), (1, {}))]
    for end in range(offset, len(content)):
        path.write_bytes(content[:end])
        assert steps_in(tmp_path) == [0], end


def test_cutting_drops_what_will_be_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row and a cut record are on disk at once. Kills: `test_trainer`."""
    monkeypatch.setattr(os, "fsync", synced := Mock())
    record(tmp_path, 0, 1, 2, 3)
    assert synced.call_count == 4
    with (tmp_path / ROWS_FILE).open("a") as file:
        file.write('{"step": 4, "metr')  # torn
    write_outcome(tmp_path, Outcome(schema.DONE, 3))
    assert [step for step, _ in drop_rows_after(tmp_path, 2)] == steps_in(tmp_path) == [0, 1, 2]
    assert read_outcome(tmp_path) is None and synced.call_count > 4
    record(tmp_path, 3)
    assert steps_in(tmp_path) == [0, 1, 2, 3]
    assert drop_rows_after(tmp_path, None) == []
    assert (tmp_path / ROWS_FILE).read_bytes() == b""  # it is there: its follower begins at its end


@pytest.mark.parametrize(
    "line",
    [
        b"\0" * 40, b"[" * 100_000, b'{"step": 2, "metr\xff', b'{"step": 2}', b'{"step": "x", "metrics": {}}',
               b'{"step": 2, "metrics": {"a": "much"}}', b'{"step": Infinity, "metrics": {}}',
    ],
    ids=lambda line: repr(line[:30]),
)  # fmt: skip
def test_a_bad_line_ends_the_reading_and_is_cut_away(tmp_path: Path, line: bytes) -> None:
    record(tmp_path, 0, 1)
    with (tmp_path / ROWS_FILE).open("ab") as file:
        file.write(line + b"\n")
    record(tmp_path, 3)
    assert steps_in(tmp_path) == [0, 1]
    drop_rows_after(tmp_path, 1)
    record(tmp_path, 2)
    assert steps_in(tmp_path) == [0, 1, 2]


def test_outcomes(tmp_path: Path) -> None:
    assert read_outcome(tmp_path) is None
    for outcome in (Outcome(schema.DONE, 4), Outcome(schema.COLLAPSED, 2, "score fell: äöü")):
        write_outcome(tmp_path, outcome)
        assert read_outcome(tmp_path) == outcome
    for text in ("", "[]", "[" * 100_000, '{"status": "done"}', '{"status": [], "step": 1, "reason": ""}'):
        (tmp_path / OUTCOME).write_text(text)
        assert read_outcome(tmp_path) is None, text


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    for name in (ROWS_FILE, OUTCOME):
        make(tmp_path / name)
    assert steps_in(tmp_path) == []
    assert read_outcome(tmp_path) is None
    drop_rows_after(tmp_path, None)
    record(tmp_path, 0)
    assert steps_in(tmp_path) == [0]


def test_one_writer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another descriptor of this process counts as another process. One that ends meanwhile makes way; that a killed
    one does: `test_core`.
    """
    with ExitStack() as first:
        first.enter_context(writing(tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr("cppo_lab.cores.verl.checkpoints.PATIENCE_SECONDS", -1.0)
            with user_error("an earlier attempt still writes to"), writing(tmp_path):
                pass
        monkeypatch.setattr("cppo_lab.cores.verl.checkpoints.time.sleep", lambda _: first.close())
        with writing(tmp_path):
            pass


# -- The best checkpoint -----------------------------------------------------------------------------------------------


def save(folder: Path, step: int, score: float) -> Path:
    """As verl saves, with a file of each kind, and our trainer seals; and the row of the step."""
    path = checkpoint_folder(folder, step)
    for name in (MODEL, OPTIMISER, ORDER, "verl_traces.pt"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save({"values": torch.arange(2000) + step}, path / name)
    (path / SHARD).parent.mkdir(parents=True)
    for name, content in (
        (SHARD, "0" * 500),
        (CONFIG, '{"world_size": 1}'),
        ("actor/weights", f"weights of {step}"),
    ):
        (path / name).write_text(content)
    seal(path)
    append_row(folder, step, {SCORE: score})
    return path


def best(folder: Path) -> tuple[int | None, str]:
    return best_step(folder), (folder / BEST_CHECKPOINT / "actor" / "weights").read_text()


def test_the_highest_score_is_kept_and_the_later_of_equals(tmp_path: Path) -> None:
    """It is linked, and outlives verl's own; what verl leaves of an old checkpoint does not replace it."""
    append_row(tmp_path, 0, {SCORE: 0.9})  # the model before training has no checkpoint
    keep_best(tmp_path, SCORE)
    assert best_step(tmp_path) is None
    kept = []
    for step, value in [(2, 0.1), (4, 0.3), (6, 0.2), (8, 0.3), (10, 0.0)]:
        save(tmp_path, step, value)
        keep_best(tmp_path, SCORE)
        kept.append(best_step(tmp_path))
        assert best(tmp_path) == (kept[-1], f"weights of {kept[-1]}")
    assert kept == [2, 4, 4, 8, 8]
    source = checkpoint_folder(tmp_path, 8)
    assert (tmp_path / BEST_CHECKPOINT / MODEL).samefile(source / MODEL)
    for path in (source, save(tmp_path, 12, 0.9)):
        shutil.rmtree(path / "actor")
    keep_best(tmp_path, SCORE)
    assert best(tmp_path) == (8, "weights of 8")


def test_without_links_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(tmp_path, 2, 0.5)
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(95, "Operation not supported")))
    keep_best(tmp_path, SCORE)
    assert best(tmp_path) == (2, "weights of 2")
    assert not (tmp_path / BEST_CHECKPOINT / MODEL).samefile(source / MODEL)


# -- Where a run continues ---------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def zero(path: Path) -> None:
    """Of the right length, without the content of its middle: as the journal of a file system leaves it."""
    content = path.read_bytes()
    path.write_bytes(content[:4000] + bytes(2000) + content[6000:])


@pytest.mark.parametrize(
    "damage, names",
    [
        (cut, ["verl_traces.pt", SHARD, SIZES]),
        (empty, [OPTIMISER, CONFIG, SIZES]),
        (zero, [MODEL, ORDER]),
        (Path.unlink, [SHARD]),
        (lambda path: [cut(path), (path.parents[1] / SIZES).unlink()], [MODEL]),  # of an earlier release
        (lambda path: [zero(path), (path.parents[1] / SIZES).unlink()], [MODEL]),
    ],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], names: list[str]
) -> None:
    for name in names:
        save(tmp_path, 2, 0.2)
        newest = save(tmp_path, 4, 0.4)
        assert last_readable(tmp_path) == 4
        assert capsys.readouterr().err == ""
        damage(newest / name)
        before = sorted(tmp_path.rglob("*"))
        assert last_readable(tmp_path) == 2
        assert sorted(tmp_path.rglob("*")) == before  # it only reads
        [said] = capsys.readouterr().err.splitlines()
        assert said.startswith(f"checkpoint {newest} is ignored, training resumes from step 2: ")
        assert Path(name).name in said
        shutil.rmtree(tmp_path / CHECKPOINTS)


def test_a_disk_that_cannot_be_read_costs_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be read again later."""
    save(tmp_path, 2, 0.2)
    newest = save(tmp_path, 4, 0.4)
    before, opened = sorted(tmp_path.rglob("*")), Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == newest / MODEL:
            raise OSError(5, "Input/output error")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with user_error(rf"{newest} cannot be read: .*Nothing was deleted: repair the disk"):
        last_readable(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_best_checkpoint_of_a_step_that_is_trained_again_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is linked to the damaged one. That of step 2 was the best before it, and is lost."""
    (new := tmp_path / "new").mkdir()
    assert resume(new, SCORE) == (None, [])
    append_row(tmp_path, 2, {SCORE: 0.3})
    save(tmp_path, 4, 0.4)
    damaged = save(tmp_path, 6, 0.6)
    keep_best(tmp_path, SCORE)
    assert best(tmp_path) == (6, "weights of 6")
    cut(damaged / MODEL)
    copy = tmp_path / CHECKPOINTS / "global_step_6_copy"
    copy.mkdir()  # by the user
    step, rows = resume(tmp_path, SCORE)
    assert (step, [number for number, _ in rows], best(tmp_path)) == (4, [2, 4], (4, "weights of 4"))
    assert sorted(path.name for path in (tmp_path / CHECKPOINTS).iterdir()) == ["global_step_4", copy.name]
    copy.rmdir()
    save(tmp_path, 8, 0.2)
    cut(save(tmp_path, 10, 0.9) / MODEL)  # a damaged checkpoint does not replace it
    keep_best(tmp_path, SCORE)
    assert best_step(tmp_path) == 4
    for path in (tmp_path / CHECKPOINTS).iterdir():
        empty(path / OPTIMISER)
    assert resume(tmp_path, SCORE) == (None, [])
    first, *_, last = capsys.readouterr().err.splitlines()
    assert "training resumes from step 4" in first and "training starts over" in last
    assert best(tmp_path) == (None, "weights of 4")  # as long as nothing replaces it
    assert list((tmp_path / CHECKPOINTS).iterdir()) == []


def test_an_old_checkpoint_that_cannot_be_removed_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over NFS, where a file that is still open stays as `.nfs*`. Folders that are not verl's stay."""
    copy = tmp_path / CHECKPOINTS / "global_step_2_copy"
    copy.mkdir(parents=True)
    paths = [save(tmp_path, step, 0.1) for step in (2, 4, 10)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", Mock(side_effect=OSError(39, "Directory not empty")))
        make_room(tmp_path, 2)
    make_room(tmp_path, None)
    assert paths[0].exists() and not (paths[0] / MODEL).exists()
    make_room(tmp_path, 2)
    assert [path.exists() for path in (copy, *paths)] == [True, False, False, True]


# -- Answers on their way to the run's files ---------------------------------------------------------------------------

KEPT = AnswersSpec(keep=True, problems=8, groups=2, megabytes=50)
RUN = compose(["core=verl", "model=tiny_qwen3", "training.t_stop=4", "validation.every=2"]).run
STEPS = (0, 2, 4)


def recorder(folder: Path) -> Mock:
    """A sink that writes files, and remembers its calls."""
    return Mock(wraps=FileSink(folder))


def answers_of(step: int) -> StepAnswers:
    """What a validation of three problems gives; other numbers at each step."""
    none = no_outcomes(4, ["a", "b"], ["a-1", "a-2", "b-1"], [0, 0, 1])
    counts = np.array([step % 4, 1, 4]), np.array([0, step % 3, 1]), np.array([step + 0.25, 2, 3])
    sample = Sample(
        kind="validation", step=step, benchmark="a", problem="a-1", draw=0, prompt="1 + 1 =", response=f"at {step}",
        truth="2", answer=None, right=False, length=3, cut_off=False, stop="end",
    )  # fmt: skip
    return StepAnswers(none.append(step, *counts), (sample,))


def hand_over(folder: Path, sink: Mock, settings: AnswersSpec | None = KEPT) -> HandOver:
    return HandOver(Resources(folder.parent, folder, answers=settings), sink)


def staging(folder: Path, resumed: int | None = None) -> Staging:
    return Staging(RUN, KEPT, folder, resumed)


def train(folder: Path, resumed: int | None = None) -> None:
    """An attempt: rows up to `resumed` are on file already; the trainer validates the others."""
    answers = hand_over(folder, recorder(folder))
    answers.begin(resumed)
    earlier = [step for step in STEPS if resumed is not None and step <= resumed]
    for step in earlier:
        answers.add((step, {}))
    trainer = staging(folder, resumed)
    for step in STEPS[len(earlier) :]:
        trainer.add(step, answers_of(step))
        answers.add((step, {}))
    answers.end()


@pytest.fixture
def unbroken(tmp_path: Path) -> dict[str, bytes]:
    """The files of a run that was not killed: every step is there once."""
    folder = tmp_path / "unbroken"
    folder.mkdir()
    train(folder)
    assert not (folder / STAGED).exists()
    files = files_of(folder)
    assert set(files) == {Path(OUTCOMES).name, *(Path(texts_name(step)).name for step in STEPS)}
    read = outcomes.read(files["outcomes.npz"], "outcomes")
    assert read.steps.tolist() == list(STEPS)
    assert read.right.tolist() == [[step % 4, 1, 4] for step in STEPS]
    assert read.length.tolist() == [[step + 0.25, 2, 3] for step in STEPS]
    return files


@pytest.mark.parametrize("resumed", [None, 0, 2, 4])
def test_whoever_is_killed_the_files_are_those_of_an_unbroken_run(
    tmp_path: Path, unbroken: dict[str, bytes], resumed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each operation on files; the trainer was up to two validations ahead, and the run continues from any of its
    checkpoints.
    """

    def stage(folder: Path) -> None:
        trainer = staging(folder)
        for step in STEPS:  # it does not wait for the process that records
            trainer.add(step, answers_of(step))

    def record_all(folder: Path) -> None:
        answers = hand_over(folder, recorder(folder))
        for step in STEPS:
            answers.add((step, {}))

    for folder, _ in killed_at_each(monkeypatch, tmp_path, record_all, stage):
        train(folder, resumed)
        assert files_of(folder) == unbroken, folder.name
    assert int(folder.name) > 2 * len(STEPS)


@pytest.mark.parametrize("settings", [KEPT, None, KEPT.model_copy(update={"keep": False})])
def test_a_step_that_was_not_written_to_its_end_or_is_not_kept(
    tmp_path: Path, settings: AnswersSpec | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer is killed at each operation on files: all files of a step are there, or none."""
    for folder, through in killed_at_each(
        monkeypatch, tmp_path, lambda folder: staging(folder).add(2, answers_of(2))
    ):
        answers = hand_over(folder, sink := recorder(folder), settings)
        answers.begin(2)
        answers.add((2, {}))
        answers.end()
        assert sink.file.call_count == 2 * (through and settings is KEPT)
        assert not (folder / STAGED).exists()
    assert int(folder.name) > 1


def test_files_for_which_the_disk_has_no_room_stay_where_the_trainer_has_put_them(tmp_path: Path) -> None:
    staging(tmp_path).add(2, answers_of(2))
    for is_written in (False, True):
        hand_over(tmp_path, Mock(**{"file.return_value": is_written})).add((2, {}))
        assert any((tmp_path / STAGED).iterdir()) is not is_written


@pytest.mark.parametrize("settings", [KEPT, None])
def test_tags_of_a_start_are_passed_on_once(tmp_path: Path, settings: AnswersSpec | None) -> None:
    """Whether or not the run keeps answers, and those of a later start again."""
    sink = recorder(tmp_path)
    moved = hand_over(tmp_path, sink, settings)
    for text in ('{"cppo.env.rollout": "a"}', '{"cppo.env.rollout": "b"}'):
        (tmp_path / TAGS_FILE).write_text(text)
        moved.add((1, {}))
        moved.add((2, {}))
    assert sink.tag.mock_calls == [call("cppo.env.rollout", value) for value in "ab"]
