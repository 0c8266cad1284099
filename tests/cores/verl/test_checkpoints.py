"""The best checkpoint is the record's best after a kill at any moment, and costs no space while verl keeps it too."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cppo_lab.cores.base import CHECKPOINTS
from cppo_lab.cores.verl import checkpoints
from cppo_lab.cores.verl.checkpoints import (
    best_step,
    drop_others,
    forget_later,
    keep_best,
    last_readable,
    seal,
)
from cppo_lab.errors import UserError

SCORE = "val/mean/avg_at_16"


def save(folder: Path, step: int) -> Path:
    """As verl saves: weights below `actor`, the rest beside it."""
    path = checkpoints.checkpoint_folder(folder, step)
    (path / "actor").mkdir(parents=True)
    (path / "actor" / "weights.pt").write_text(f"weights of {step}")
    (path / "data.pt").write_text(f"order at {step}")
    return path


def score(folder: Path, step: int, value: float) -> None:
    checkpoints.append_row(folder, step, {SCORE: value})


def best(folder: Path) -> str:
    return (folder / checkpoints.BEST / "actor" / "weights.pt").read_text()


def test_the_highest_score_is_kept_and_the_later_of_equals(tmp_path: Path) -> None:
    score(tmp_path, 0, 0.9)  # the model before training has no checkpoint
    keep_best(tmp_path, SCORE)
    assert best_step(tmp_path) is None
    kept = []
    for step, value in [(2, 0.1), (4, 0.3), (6, 0.2), (8, 0.3), (10, 0.0)]:
        save(tmp_path, step)
        score(tmp_path, step, value)
        keep_best(tmp_path, SCORE)
        kept.append(best_step(tmp_path))
        assert best(tmp_path) == f"weights of {kept[-1]}"
    assert kept == [2, 4, 4, 8, 8]
    assert (tmp_path / checkpoints.BEST / "data.pt").read_text() == "order at 8"


def test_it_is_linked_and_outlives_verls_own(tmp_path: Path) -> None:
    source = save(tmp_path, 2)
    score(tmp_path, 2, 0.5)
    keep_best(tmp_path, SCORE)
    weights = tmp_path / checkpoints.BEST / "actor" / "weights.pt"
    assert weights.samefile(source / "actor" / "weights.pt")
    shutil.rmtree(source / "actor")  # as verl does to old ones
    keep_best(tmp_path, SCORE)
    assert best(tmp_path) == "weights of 2"


def test_without_links_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(95, "Operation not supported")

    source = save(tmp_path, 2)
    score(tmp_path, 2, 0.5)
    monkeypatch.setattr(os, "link", refuse)
    keep_best(tmp_path, SCORE)
    assert best(tmp_path) == "weights of 2"
    assert not (tmp_path / checkpoints.BEST / "actor" / "weights.pt").samefile(
        source / "actor" / "weights.pt"
    )


def test_what_verl_leaves_of_an_old_checkpoint_does_not_replace_it(tmp_path: Path) -> None:
    save(tmp_path, 2)
    score(tmp_path, 2, 0.5)
    keep_best(tmp_path, SCORE)
    shutil.rmtree(save(tmp_path, 4) / "actor")
    score(tmp_path, 4, 0.6)
    keep_best(tmp_path, SCORE)
    assert (best_step(tmp_path), best(tmp_path)) == (2, "weights of 2")


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


def test_a_kill_at_any_moment_is_mended_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each of its operations on files in turn."""
    for survived in itertools.count():
        folder = tmp_path / str(survived)
        for step in (2, 4):
            save(folder, step)
            score(folder, step, step / 10)
            if step == 2:
                keep_best(folder, SCORE)
        with monkeypatch.context() as patch:
            left = iter(range(survived))
            for owner, name in OPERATIONS:
                patch.setattr(owner, name, dying(getattr(owner, name), left))
            try:
                keep_best(folder, SCORE)
                killed = False
            except Killed:
                killed = True
        keep_best(folder, SCORE)  # as the next attempt begins
        assert (best_step(folder), best(folder)) == (4, "weights of 4")
        if not killed:
            break
    assert survived >= 8  # folders, links, the number, the removal of the old one, the change of names


OPERATIONS: list[tuple[Any, str]] = [
    (os, "mkdir"), (os, "link"), (Path, "write_text"), (os, "unlink"), (os, "rmdir"), (Path, "replace"),
]  # fmt: skip


def dying(real: Callable[..., Any], left: Iterator[int]) -> Callable[..., Any]:
    """`real` until `left` is used up."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is None:
            raise Killed
        return real(*args, **kwargs)

    return call


def test_others_are_dropped(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        save(tmp_path, step)
        score(tmp_path, step, step / 10)
    keep_best(tmp_path, SCORE)
    drop_others(tmp_path, 4)
    assert [path.name for path in (tmp_path / CHECKPOINTS).iterdir()] == ["global_step_4"]
    # The best one stands, whatever is written where its links came from.
    (save(tmp_path, 6) / "actor" / "weights.pt").write_text("retrained")
    assert best(tmp_path) == "weights of 6"
    drop_others(tmp_path, None)
    assert list((tmp_path / CHECKPOINTS).iterdir()) == []
    drop_others(tmp_path / "nothing here", None)


MODEL, OPTIMISER = "actor/model_world_size_1_rank_0.pt", "actor/optim_world_size_1_rank_0.pt"
EXTRA, ORDER, SHARD = (
    "actor/extra_state_world_size_1_rank_0.pt",
    "data.pt",
    "actor/model/dist_ckpt/__0_0.distcp",
)
CONFIG = "actor/fsdp_config.json"


def save_whole(folder: Path, step: int, *, sealed: bool = True) -> Path:
    """As verl saves, with a file of each kind, and the row of the step."""
    path = checkpoints.checkpoint_folder(folder, step)
    for name in (MODEL, OPTIMISER, EXTRA, ORDER, "verl_traces.pt"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save({"values": torch.arange(2000) + step}, path / name)
    (path / SHARD).parent.mkdir(parents=True)
    (path / SHARD).write_bytes(bytes(500))
    (path / CONFIG).write_text('{"world_size": 1}')
    if sealed:
        seal(path)
    score(folder, step, step / 10)
    return path


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def zero(path: Path) -> None:
    """Of the right length, without the content of its middle: as the journal of a file system leaves it."""
    content = path.read_bytes()
    path.write_bytes(content[:4000] + bytes(2000) + content[6000:])


DAMAGES = [
    *[
        (cut, name)
        for name in (MODEL, OPTIMISER, EXTRA, ORDER, "verl_traces.pt", SHARD, CONFIG, "sizes.json")
    ],
    *[(empty, name) for name in (MODEL, OPTIMISER, EXTRA, ORDER, SHARD, CONFIG, "sizes.json")],
    *[(zero, name) for name in (MODEL, OPTIMISER, EXTRA, ORDER)],
    *[(Path.unlink, name) for name in (MODEL, OPTIMISER, EXTRA, ORDER, SHARD, CONFIG)],
]


def names_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("damage", "name"), DAMAGES, ids=[f"{damage.__name__} {name}" for damage, name in DAMAGES]
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], name: str
) -> None:
    save_whole(tmp_path, 2)
    newest = save_whole(tmp_path, 4)
    assert last_readable(tmp_path) == 4
    assert capsys.readouterr().err == ""
    damage(newest / name)
    before = names_of(tmp_path)
    assert last_readable(tmp_path) == 2
    assert names_of(tmp_path) == before  # it only reads
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"checkpoint {newest} is ignored, training resumes from step 2: ")
    assert Path(name).name in said


@pytest.mark.parametrize("damage", [cut, empty, zero])
def test_a_damaged_checkpoint_of_an_earlier_release(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """They have no list of sizes."""
    save_whole(tmp_path, 2, sealed=False)
    newest = save_whole(tmp_path, 4, sealed=False)
    assert last_readable(tmp_path) == 4
    damage(newest / MODEL)
    assert last_readable(tmp_path) == 2


def test_rows_without_a_checkpoint_and_checkpoints_without_a_row_do_not_count(tmp_path: Path) -> None:
    save_whole(tmp_path, 2)
    score(tmp_path, 3, 0.5)
    seal(save(tmp_path, 4))
    assert last_readable(tmp_path) == 2


def test_without_any_that_can_be_read_training_starts_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert last_readable(tmp_path) is None
    for step in (2, 4):
        cut(save_whole(tmp_path, step) / MODEL)
    assert last_readable(tmp_path) is None
    first, second = capsys.readouterr().err.splitlines()
    assert "training resumes from step 2" in first and "training starts over" in second


def test_a_disk_that_cannot_be_read_costs_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be read again later."""
    save_whole(tmp_path, 2)
    newest = save_whole(tmp_path, 4)
    before, opened = names_of(tmp_path), Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == newest / MODEL:
            raise OSError(5, "Input/output error")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=rf"{newest} cannot be read: .*Nothing was deleted: repair the disk"):
        last_readable(tmp_path)
    assert names_of(tmp_path) == before


def test_the_best_checkpoint_of_a_step_that_is_trained_again_is_replaced(tmp_path: Path) -> None:
    """It is linked to the damaged one. That of step 2 was the best before it, and is lost."""
    score(tmp_path, 2, 0.3)
    save_whole(tmp_path, 4)  # 0.4
    save(tmp_path, 6)
    score(tmp_path, 6, 0.6)
    keep_best(tmp_path, SCORE)
    assert best_step(tmp_path) == 6
    checkpoints.cut_after(tmp_path, 4)
    forget_later(tmp_path, 4)
    assert best_step(tmp_path) is None
    assert best(tmp_path) == "weights of 6"  # as long as nothing replaces it
    keep_best(tmp_path, SCORE)
    assert best_step(tmp_path) == 4
    save(tmp_path, 8)
    score(tmp_path, 8, 0.2)
    keep_best(tmp_path, SCORE)
    assert best_step(tmp_path) == 4
    forget_later(tmp_path, 4)
    assert best_step(tmp_path) == 4
    forget_later(tmp_path, None)
    assert best_step(tmp_path) is None


def test_a_damaged_checkpoint_does_not_replace_the_best(tmp_path: Path) -> None:
    save_whole(tmp_path, 2)
    keep_best(tmp_path, SCORE)
    cut(save_whole(tmp_path, 4) / MODEL)
    keep_best(tmp_path, SCORE)
    assert best_step(tmp_path) == 2
