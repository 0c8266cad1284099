"""A checkpoint or warm start of any content is gone on with as it was written, or named and made anew."""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given

from cppo_lab.core_records import CHECKPOINT, Resources
from cppo_lab.cores.checkpoint import FORMAT, load_checkpoint
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.cores.mini.warm_start import warm_start_file
from cppo_lab.spec import MiniRun
from tests.conftest import TINY
from tests.fuzz.mangling import damaged, fuzz, members, within, zipped
from tests.jobs import run_of

MAKER = f"torch {torch.__version__} on cpu"
SMALL: dict[str, Any] = {"model": torch.arange(6.0), "names": ["a", "b"], "steps": 3}


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def content(
    run_id: str, trainer: Mapping[str, Any] = SMALL, history: Any = ((0, {"train/reward": 0.5}),)
) -> bytes:
    file = io.BytesIO()
    parts = {"history": list(history), "trainer": dict(trainer)}
    torch.save({"format": FORMAT, "run_id": run_id, "maker": MAKER, **parts}, file)
    return file.getvalue()


GOOD = content("a")


@fuzz(150)
@given(data=damaged(GOOD))
@example(data=GOOD[1:])
@example(data=GOOD[:-1])
@example(data=GOOD.replace(b"PK\x06\x07\0", b"PK\x06\x07\1"))  # a zip on several disks
def test_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / CHECKPOINT
    path.write_bytes(data)
    with within():
        found = load_checkpoint(path, "a", MAKER)
    if found is not None:  # what was broken is not in it
        assert torch.equal(found["trainer"]["model"], SMALL["model"])
        assert found["trainer"]["names"] == SMALL["names"]
        assert found["history"] == [(0, {"train/reward": 0.5})]


def test_a_flipped_bit_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever a number could change, the file is not used."""
    path, start = tmp_path / CHECKPOINT, GOOD.index(torch.arange(6.0).numpy().tobytes())
    for place in range(start, start + 24):
        path.write_bytes(GOOD[:place] + bytes([GOOD[place] ^ 1]) + GOOD[place + 1 :])
        assert load_checkpoint(path, "a", MAKER) is None
        assert "does not match its checksum" in capsys.readouterr().err


def test_foreign_pickles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, mark = tmp_path / CHECKPOINT, tmp_path / "mark"
    inside = {**members(GOOD), "archive/data.pkl": pickle.dumps(Bomb(mark))}
    for data in (pickle.dumps(Bomb(mark)), zipped(inside)):
        path.write_bytes(data)
        assert load_checkpoint(path, "a", MAKER) is None
        assert f"{path} is ignored" in capsys.readouterr().err
        assert not mark.exists()
    torch.save({"run_id": "a", "format": 1, "maker": MAKER, "history": [], "trainer": Bomb(mark)}, path)
    assert load_checkpoint(path, "a", MAKER) is None
    assert not mark.exists()


@pytest.fixture(scope="module")
def spec() -> MiniRun:
    return run_of("rollout.staleness=1 training.t_stop=2", TINY)


@pytest.mark.parametrize("content", [b"", GOOD, pickle.dumps({"a": 1})])
def test_a_broken_warm_start_is_made_anew(
    spec: MiniRun, shared_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    whole = Trainer(spec, Resources(shared_path, shared_path, device="cpu")).model.state_dict()
    path = warm_start_file(spec.model.for_seed(spec.seed), spec.data, tmp_path / "warm_starts")
    path.parent.mkdir()
    path.write_bytes(content)
    found = Trainer(spec, Resources(tmp_path, tmp_path, device="cpu")).model.state_dict()
    assert f"warm start {path} is ignored" in capsys.readouterr().err
    assert all(torch.equal(found[name], whole[name]) for name in whole)
    assert path.read_bytes() == (shared_path / "warm_starts" / path.name).read_bytes()
