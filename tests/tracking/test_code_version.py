"""Commit, and what differs from it: every difference has a fingerprint of its own."""

import subprocess
from pathlib import Path

import pytest

import cppo_lab
from cppo_lab.tracking import code_version as module
from cppo_lab.tracking.code_version import CodeState, code_state, code_version


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(root), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("one\n")
    (tmp_path / "ü b.py").write_text("two\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_clean_checkout(checkout: Path) -> None:
    (checkout / "untracked").write_text("")
    state = code_state(checkout)
    assert state == CodeState(git(checkout, "rev-parse", "HEAD"), "")
    assert not state.dirty
    assert state.version == f"{cppo_lab.__version__}+{state.commit[:12]}"


def test_two_dirty_states_are_told_apart(checkout: Path) -> None:
    def change(text: str) -> str:
        (checkout / "a.py").write_text(text)
        state = code_state(checkout)
        assert state.dirty
        assert state.version.endswith(".dirty")
        return state.changes

    two, three = change("two\n"), change("three\n")
    assert len({two, three, change("two\nthree\n")}) == 3
    assert change("two\n") == two
    git(checkout, "add", "a.py")  # staged or not, it is the same code
    assert code_state(checkout).changes == two
    git(checkout, "config", "diff.mnemonicPrefix", "true")
    assert code_state(checkout).changes == two
    (checkout / "ü b.py").unlink()
    assert code_state(checkout).changes not in ("", two)
    git(checkout, "reset", "-q", "--hard")
    (checkout / "a.py").touch()
    assert not code_state(checkout).dirty


def test_what_is_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_state(tmp_path) == CodeState()
    assert code_state(tmp_path).version == cppo_lab.__version__
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert code_state(tmp_path) == CodeState()

    def slow(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("git", 30)

    monkeypatch.setattr(module.subprocess, "run", slow)
    assert code_version() == cppo_lab.__version__
