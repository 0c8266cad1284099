"""A folder of runs in which anything is broken can still be looked at, and looking changes nothing in it."""

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cppo_lab.cli import main
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
from cppo_lab.spec import RunSpec
from tests.fuzz.conftest import fresh
from tests.fuzz.mangling import as_json, damaged, fuzz, refused, snapshot, within

FILES = (
    "status.json", "config.json", "config.yaml", "lock", "spool", "spool/0001.jsonl", "spool/0002.jsonl", "attempts",
    "attempts/0_log.out", "traceback.txt", "diagnostics", "cancelled", "spool/shipped.json", ".",
)  # fmt: skip
BESIDE = ("identity", "slurm.db", "queues", "queues/a-1-ff.list", "slurm", "slurm.lock")
STATUS = {
    "status": "failed", "step": 4, "score": 0.5, "reason": "r", "core": "mini", "rule": "cppo", "model": "m", "seed": 0,
    "t_stop": 4, "host": "h", "pid": 3, "job": "1_2", "gpus": 1, "started": 1.5, "updated": 3.5, "seconds": 9.5,
    "first_step": 1, "first_time": 2.5, "replaces": False, "record": "ab",
}  # fmt: skip

Sabotage = tuple[str, str, bytes]
LINKS = {"dangling": "nowhere", "device": "/dev/zero", "elsewhere": "/etc"}
KINDS = ("remove", "write", "cut", "folder", "fifo", "loop", *LINKS)
SABOTAGE = st.lists(
    st.tuples(
        st.sampled_from((*FILES, *(f"../{name}" for name in BESIDE))),
        st.sampled_from(KINDS),
        damaged(as_json(STATUS)),
    ),
    min_size=1,
    max_size=3,
)


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
    match kind:
        case "write":
            path.write_bytes(content)
        case "cut":
            path.write_bytes(before[: len(content)])
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path.name)
        case _ if kind in LINKS:
            path.symlink_to(LINKS[kind])


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
@given(todo=SABOTAGE)
@example(todo=[("status.json", "fifo", b""), ("../identity", "folder", b"")])
@example(todo=[("config.json", "fifo", b""), ("status.json", "remove", b"")])
@example(todo=[("spool/0002.jsonl", "fifo", b""), ("lock", "fifo", b""), ("../identity", "write", b"\xff")])
@example(todo=[("spool/0002.jsonl", "folder", b""), ("lock", "folder", b"")])
@example(todo=[("../queues", "folder", b""), ("../queues/a-1-ff.list", "fifo", b"")])
@example(todo=[("status.json", "device", b"")])
@example(todo=[("../slurm.db", "write", b"")])
@example(todo=[("../slurm.db", "write", b"\0")])
def test_looking(
    whole: Path, desk: Path, run: RunSpec, capsys: pytest.CaptureFixture[str], todo: list[Sabotage]
) -> None:
    runs = fresh(whole, desk)
    for act in todo:
        sabotage(runs / run.run_id, *act)
    before = snapshot(runs)
    for line in ("status", "status --json", f"logs {run.run_id}", "sync --dry-run"):
        asked(capsys, *line.split())
    assert snapshot(runs) == before


TEXTS = {"reason": "a\nb\x1b[2J", "rule": "\x1b[2J\ud800", "job": "\ud800", "model": "a\nb"}


def test_texts_of_a_status_have_one_line(
    whole: Path, desk: Path, run: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    (fresh(whole, desk) / run.run_id / "status.json").write_bytes(as_json({**STATUS, **TEXTS}))
    code, out = asked(capsys, "status", "--json")
    assert code == 0
    [shown] = json.loads(out, parse_constant=pytest.fail)["runs"]
    assert shown["run_id"] == run.run_id
    code, out = asked(capsys, "status")
    assert code == 0
    assert "\x1b" not in out
    assert len(out.splitlines()) == 4
    assert asked(capsys, "status", "--csv")[0] == 0


BROKEN = [b"", b'{"status": "runn', as_json({**STATUS, "status": "running"})]


@pytest.mark.parametrize("content", BROKEN)
def test_repair(
    whole: Path, desk: Path, run: RunSpec, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    """What a folder says wrongly of its run, its spool puts right."""
    folder = fresh(whole, desk) / run.run_id
    (folder / "status.json").write_bytes(content)
    assert asked(capsys, "status", "--repair")[0] == 0
    assert read_status(folder)["status"] == "failed"


@fuzz(60)
@given(content=damaged(as_json(STATUS)))
@example(content=b"[" * 20_000)
@example(content=b'{"a":' * 20_000)
def test_small_files(whole: Path, desk: Path, run: RunSpec, content: bytes) -> None:
    runs = fresh(whole, desk)
    folder = runs / run.run_id
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
