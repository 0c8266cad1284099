"""Commit, and what differs from it: every difference has a fingerprint of its own."""

import re
import shutil
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


def made(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    git(root, "init", "-q")
    (root / "a.py").write_text("one\n")
    (root / "ü b.py").write_text("two\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", f"first of {root}")
    return root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return made(tmp_path)


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


@pytest.mark.parametrize(
    "variables",
    [
        {"GIT_DIR": ".git"},  # as git sets it for a hook
        {"GIT_DIR": ".git", "GIT_WORK_TREE": "."},
        {"GIT_INDEX_FILE": ".git/index"},
        {"GIT_WORK_TREE": "."},
        {"GIT_COMMON_DIR": ".git"},
        {"GIT_OBJECT_DIRECTORY": ".git/objects"},
        {"GIT_NAMESPACE": "a"},
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.worktree", "GIT_CONFIG_VALUE_0": "."},
        {"GIT_EXTERNAL_DIFF": "false", "GIT_DIFF_OPTS": "--unified=0"},
        {"GIT_TRACE": "2"},
    ],
    ids=lambda variables: " ".join(variables),
)
def test_variables_of_git_do_not_choose_the_repository(
    checkout: Path, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "a.py").write_text("changed\n")
    expected, commit = code_state(checkout), git(checkout, "rev-parse", "HEAD")
    other = made(checkout / "other")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(other / value) if value.startswith(".") else value)
    assert code_state(checkout) == expected
    assert (expected.commit, expected.dirty) == (commit, True)


def test_a_linked_worktree_and_a_shallow_clone(checkout: Path) -> None:
    git(checkout, "worktree", "add", "-q", str(checkout / "linked"))
    git(checkout / "linked", "commit", "-q", "--allow-empty", "-m", "second")
    git(checkout, "clone", "-q", "--depth=1", checkout.as_uri(), str(checkout / "shallow"))
    for root in (checkout / "linked", checkout / "shallow"):
        assert code_state(root) == CodeState(git(root, "rev-parse", "HEAD"))


def test_what_is_no_checkout(tmp_path: Path) -> None:
    assert code_state(tmp_path) == CodeState()
    assert code_state(tmp_path).version == cppo_lab.__version__


def _gone(*_: object, **__: object) -> None:
    raise FileNotFoundError(2, "No such file or directory", "git")


def _slow(*_: object, **__: object) -> None:
    raise subprocess.TimeoutExpired("git", 30)


def _foreign(*_: object, **__: object) -> None:
    said = "fatal: detected dubious ownership in repository at '/x'\nTo add an exception: ...\n"
    raise subprocess.CalledProcessError(128, "git", "", said)


@pytest.mark.parametrize(
    ("fails", "reason"),
    [(_gone, "No such file"), (_slow, "timed out"), (_foreign, "dubious ownership in repository at '/x'$")],
)
def test_a_version_that_git_could_not_read_says_so_and_equals_no_other(
    checkout: Path,
    fails: object,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module.subprocess, "run", fails)
    state = code_state(checkout)
    assert re.search(reason, state.unread)
    monkeypatch.setattr(module, "code_state", lambda: state)
    versions = [code_version(), code_version()]
    assert versions[0] != versions[1]
    for version in versions:
        assert re.fullmatch(rf"{re.escape(cppo_lab.__version__)}\+unread\.[0-9a-f]{{12}}", version)
    assert f"git cannot read the code version ({state.unread})" in capsys.readouterr().err


def test_a_broken_checkout_is_not_the_repository_around_it(checkout: Path) -> None:
    inner = made(checkout / "inner")
    shutil.rmtree(inner / ".git" / "objects")
    (inner / ".git" / "HEAD").unlink()
    assert code_state(inner).unread
    shutil.rmtree(inner / ".git")
    for content in ("gitdir: nowhere\n", ""):
        (inner / ".git").write_text(content)
        assert code_state(inner).unread
    (inner / ".git").unlink()
    (inner / ".git").mkdir()
    assert code_state(inner).unread
    git(inner, "init", "-q")  # no commit yet
    assert code_state(inner).unread
