"""A folder of runs that everybody may write to is refused: its jobs would run whatever somebody puts there."""

from pathlib import Path

import pytest

from cppo_lab.files import ANYBODY, require_folder
from tests.conftest import user_error


@pytest.mark.parametrize(
    "parent, runs, refused",
    [
        (0o755, 0o755, ""),
        (0o775, 0o2775, ""),  # shared with a group
        (0o1777, 0o755, ""),  # below /tmp
        (0o1777, None, ""),
        (0o755, 0o777, "runs"),
        (0o755, 0o1777, "runs"),
        (0o777, None, "parent"),
    ],
)
def test_who_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: int, runs: int | None, refused: str
) -> None:
    monkeypatch.delenv(ANYBODY, raising=False)
    folder = tmp_path / "parent" / "runs"
    folder.parent.mkdir()
    if runs is not None:
        folder.mkdir()
        folder.chmod(runs)
    folder.parent.chmod(parent)
    if not refused:
        require_folder(folder)
        return
    with user_error(rf"{refused} is writable for every user.*chmod o-w"):
        require_folder(folder)
    monkeypatch.setenv(ANYBODY, "1")
    require_folder(folder)
