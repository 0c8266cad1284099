"""A folder of runs in which anything is broken can still be looked at, and looking changes nothing in it.

The record of submitted jobs, damaged, is used as it was written, or named.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cppo_lab.cli import main
from cppo_lab.launch.slurm import LEDGER
from cppo_lab.launch.slurm.queue import Ledger, view
from cppo_lab.runs.folder import (
    announce,
    clear_status,
    is_cancelled,
    is_locked,
    queued,
    read_config,
    read_status,
)
from cppo_lab.runs.spool import unsent
from tests.fuzz.mangling import as_json, damaged, fuzz, refused, snapshot, within

FILES = """
status.json config.json config.yaml lock spool spool/0001.jsonl spool/0002.jsonl attempts attempts/0_log.out
traceback.txt diagnostics cancelled spool/shipped.json .
../identity ../slurm.db ../queues ../queues/a-1-ff.list ../slurm ../slurm.lock
"""
STATUS = json.loads("""{
"status": "failed", "step": 4, "score": 0.5, "reason": "r", "core": "mini", "rule": "cppo", "model": "m", "seed": 0,
"t_stop": 4, "host": "h", "pid": 3, "job": "1_2", "gpus": 1, "started": 1.5, "updated": 3.5, "seconds": 9.5,
"first_step": 1, "first_time": 2.5, "replaces": false, "record": "ab"
}""")

Sabotage = tuple[str, str, bytes]
LINKS = {"dangling": "nowhere", "device": "/dev/zero", "elsewhere": "/etc", "loop": ""}
KINDS = ("remove", "write", "cut", "folder", "fifo", *LINKS)
PLACES = st.sampled_from(FILES.split())
SABOTAGE = st.tuples(PLACES, st.sampled_from(KINDS), damaged(as_json(STATUS)))


def sabotage(folder: Path, name: str, kind: str, content: bytes) -> None:
    """Put something else in the place of a file or folder, if that place is still there."""
    path = folder / name if name != "." else folder
    if not path.parent.is_dir() or path.parent.is_symlink():
        return
    before = path.read_bytes() if path.is_file() else b""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()
    if kind in ("write", "cut"):
        path.write_bytes(content if kind == "write" else before[: len(content)])
    elif kind in ("folder", "fifo"):
        {"folder": os.mkdir, "fifo": os.mkfifo}[kind](path)
    elif kind in LINKS:
        path.symlink_to(LINKS[kind] or path.name)


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and standard output of a command; what it says on standard error is one line on each thing."""
    with within():
        code = main(words)
    out, err = capsys.readouterr()
    assert code in (0, 1, 2), (words, err)
    assert "Traceback" not in err
    if code == 2:
        assert err.startswith("cppo: error: "), err
        assert err.count("\n") == 1, err
    return code, out


@fuzz(40)
@given(todo=st.lists(SABOTAGE, min_size=1, max_size=3))
@example(todo=[("status.json", "fifo", b""), ("../identity", "folder", b"")])
@example(todo=[("config.json", "fifo", b""), ("status.json", "remove", b"")])
@example(todo=[("spool/0002.jsonl", "fifo", b""), ("lock", "fifo", b""), ("../identity", "write", b"\xff")])
@example(todo=[("spool/0002.jsonl", "folder", b""), ("lock", "folder", b"")])
@example(todo=[("../queues", "folder", b""), ("../queues/a-1-ff.list", "fifo", b"")])
@example(todo=[("status.json", "device", b"")])
@example(todo=[("../slurm.db", "write", b"")])
@example(todo=[("../slurm.db", "write", b"\0")])
def test_looking(fresh: Callable[[], Path], capsys: pytest.CaptureFixture[str], todo: list[Sabotage]) -> None:
    folder = fresh()
    for act in todo:
        sabotage(folder, *act)
    before = snapshot(folder.parent)
    for line in ("status", "status --json", f"logs {folder.name}", "sync --dry-run"):
        asked(capsys, *line.split())
    assert snapshot(folder.parent) == before


TEXTS = {"reason": "a\nb\x1b[2J", "rule": "\x1b[2J\ud800", "job": "\ud800", "model": "a\nb"}


def test_texts_of_a_status_have_one_line(
    fresh: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := fresh()).joinpath("status.json").write_bytes(as_json({**STATUS, **TEXTS}))
    codes, texts = zip(*(asked(capsys, "status", *more) for more in (["--json"], [], ["--csv"])), strict=True)
    assert codes == (0, 0, 0)
    [shown] = json.loads(texts[0], parse_constant=pytest.fail)["runs"]
    assert shown["run_id"] == folder.name
    assert "\x1b" not in texts[1] and len(texts[1].splitlines()) == 4


BROKEN = [b"", b'{"status": "runn', as_json({**STATUS, "status": "running"})]


@pytest.mark.parametrize("content", BROKEN)
def test_repair(fresh: Callable[[], Path], capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    """What a folder says wrongly of its run, its spool puts right."""
    folder = fresh()
    (folder / "status.json").write_bytes(content)
    assert asked(capsys, "status", "--repair")[0] == 0
    assert read_status(folder)["status"] == "failed"


@fuzz(60)
@given(content=damaged(as_json(STATUS)))
@example(content=b"[" * 20_000)
@example(content=b'{"a":' * 20_000)
def test_small_files(fresh: Callable[[], Path], content: bytes) -> None:
    folder = fresh()
    runs = folder.parent
    for name in ("status.json", "config.json", "cancelled", "lock", "spool/shipped.json", "../identity"):
        (folder / name).write_bytes(content)
    (runs / "queues").mkdir()
    (runs / "queues" / "host-1-ff.list").write_bytes(content)
    with within():
        assert isinstance(read_status(folder), dict)
        read_config(folder / "config.json")
        assert unsent(folder, "sqlite:///nowhere.db")
        assert not is_locked(folder)
        assert queued(runs) == frozenset()
        refused(lambda: is_cancelled(folder))
        clear_status(folder)
        announce(folder, {"rule": "cppo"})


RUNS = [f"{number:012x}" for number in range(30)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with Ledger(tmp_path_factory.mktemp("original")) as ledger:
        for start in range(0, 30, 10):
            ledger.submitted(ledger.claim(RUNS[start : start + 10]), 100 + start)
        ledger.end(ledger.open_tasks(), "COMPLETED")
        return ledger.path.read_bytes()


def everything(runs: Path) -> None:
    """All that launchers and those who look ask of it."""
    view(runs)
    with Ledger(runs) as ledger:
        assert all(task.name and task.token for task in ledger.newest_tasks().values())
        ledger.open_tasks()
        ledger.unanswered()
        ledger.tasks_of(RUNS[3])
        token = ledger.claim(["f" * 12])
        assert ledger.folder_of(token).parent.parent == runs
        ledger.submitted(token, 7)
        ledger.end(ledger.open_tasks(token), "FAILED")


@fuzz(60)
@given(data=st.data())
def test_bytes_of_a_ledger(
    tmp_path_factory: pytest.TempPathFactory, original: bytes, data: st.DataObject
) -> None:
    runs = tmp_path_factory.getbasetemp() / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir()
    (runs / LEDGER).write_bytes(data.draw(damaged(original)))
    refused(lambda: everything(runs), str(runs / LEDGER))


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/proc/self/mem")])
def test_a_ledger_that_is_no_plain_file(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / LEDGER)
    assert refused(lambda: Ledger(tmp_path), str(tmp_path / LEDGER))
