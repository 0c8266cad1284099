"""A checkpoint or warm start of any content is gone on with as it was written, or named and made anew."""

import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from cppo_lab.cores.base import CHECKPOINT, Resources
from cppo_lab.cores.checkpoint import load_checkpoint, make_checkpoint, save_checkpoint
from cppo_lab.cores.mini.trainer import Trainer, train
from cppo_lab.cores.mini.warm_start import warm_start_file
from cppo_lab.schema import DONE
from cppo_lab.spec import MiniRun
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY
from tests.cores.test_mini import ListSink
from tests.fuzz.mangling import damaged, fuzz, within

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
    torch.save(make_checkpoint(run_id, MAKER, list(history), dict(trainer)), file)
    return file.getvalue()


GOOD = content("a")


@fuzz(150)
@given(data=damaged(GOOD))
@example(data=GOOD[1:])
@example(data=GOOD[:-1])
@example(data=GOOD.replace(b"PK\x06\x07\0", b"PK\x06\x07\1"))  # a zip on several disks
@example(
    data=bytes(
        byte ^ (place == GOOD.index(torch.arange(6.0).numpy().tobytes())) for place, byte in enumerate(GOOD)
    )
)
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


def packed(members: Mapping[str, bytes], how: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_zip_that_unpacks_to_more_than_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / CHECKPOINT
    path.write_bytes(packed(members(GOOD) | {"archive/data/1": bytes(200 * 2**20)}, zipfile.ZIP_DEFLATED))
    assert load_checkpoint(path, "a", MAKER) is None
    assert "it is compressed" in capsys.readouterr().err


def test_foreign_pickles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, mark = tmp_path / CHECKPOINT, tmp_path / "mark"
    inside = {**members(GOOD), "archive/data.pkl": pickle.dumps(Bomb(mark))}
    for data in (pickle.dumps(Bomb(mark)), packed(inside, zipfile.ZIP_STORED)):
        path.write_bytes(data)
        assert load_checkpoint(path, "a", MAKER) is None
        assert f"{path} is ignored" in capsys.readouterr().err
        assert not mark.exists()
    torch.save({"run_id": "a", "format": 1, "maker": MAKER, "history": [], "trainer": Bomb(mark)}, path)
    assert load_checkpoint(path, "a", MAKER) is None
    assert not mark.exists()


@pytest.mark.parametrize(
    "history", [[], [(0,)], [(0, {"a": "b"})], [(1, {}), (0, {})], [(0, {}), (0, {})], [("0", {})], [[0, {}]]]
)
def test_histories_that_no_run_has(tmp_path: Path, history: Any) -> None:
    path = tmp_path / CHECKPOINT
    path.write_bytes(content("a", history=history))
    assert load_checkpoint(path, "a", MAKER) is None


@pytest.fixture(scope="module")
def spec() -> MiniRun:
    found = compose([*TINY, "rollout.staleness=1", "training.t_stop=2"]).run
    assert isinstance(found, MiniRun)
    return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def state(spec: MiniRun, shared: Path) -> dict[str, Any]:
    """Of a trainer behind two steps."""
    trainer = Trainer(spec, Resources(shared, shared, device="cpu"))
    trainer.step()
    trainer.step()
    return trainer.state()


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, value in (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    ):
        if path != ("diagnostics", "window"):  # shown, and not gone on with
            yield from places(value, (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = replaced(tree[path[0]], path[1:], value)
    return copy


WRONG = [
    None,
    "x",
    -1.5,
    [],
    {},
    {"x": 1},
    torch.zeros(2, 2),
    torch.zeros(3, dtype=torch.int64),
    [torch.zeros(1)],
]


@fuzz(15)
@given(data=st.data())
def test_states_of_other_trainers(
    spec: MiniRun, shared: Path, state: dict[str, Any], data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted(places(state), key=repr)))
    wrong = data.draw(st.sampled_from(WRONG))
    trainer = Trainer(spec, Resources(shared, shared, device="cpu"))
    before = trainer.model.state_dict()["embedding.weight"].clone()
    with within():
        try:
            trainer.load_state(replaced(state, path, wrong), 2)
        except ValueError:
            assert torch.equal(trainer.model.state_dict()["embedding.weight"], before)
            assert trainer.steps == 0
            return
        trainer.step()


def test_a_whole_state_is_taken(spec: MiniRun, shared: Path, state: dict[str, Any]) -> None:
    trainer = Trainer(spec, Resources(shared, shared, device="cpu"))
    with pytest.raises(ValueError, match="another model"):
        trainer.load_state(state, 3)
    trainer.load_state(state, 2)
    assert trainer.steps == 2


def test_training_starts_anew(
    spec: MiniRun, shared: Path, state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A state of a larger model under this run's id costs the steps, not the run."""
    save_checkpoint(
        tmp_path / CHECKPOINT,
        make_checkpoint(spec.run_id, MAKER, [(0, {}), (2, {})], {**state, "model": {"x": torch.zeros(3)}}),
    )
    sink = ListSink()
    outcome = train(spec, sink, Resources(shared, tmp_path, device="cpu"))
    assert (outcome.status, outcome.step) == (DONE, 2)
    assert [step for step, _ in sink.rows] == [0, 1, 2]
    assert "is ignored, training starts over: it contains another model" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", GOOD, pickle.dumps({"a": 1})])
def test_a_broken_warm_start_is_made_anew(
    spec: MiniRun, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    whole = Trainer(spec, Resources(shared, shared, device="cpu")).model.state_dict()
    path = warm_start_file(spec.model.for_seed(spec.seed), spec.data, tmp_path / "warm_starts")
    path.parent.mkdir()
    path.write_bytes(content)
    found = Trainer(spec, Resources(tmp_path, tmp_path, device="cpu")).model.state_dict()
    assert f"warm start {path} is ignored" in capsys.readouterr().err
    assert all(torch.equal(found[name], whole[name]) for name in whole)
    path.write_bytes(path.read_bytes())
    assert (
        warm_start_file(spec.model.for_seed(spec.seed), spec.data, shared / "warm_starts").read_bytes()
        == path.read_bytes()
    )
