"""What a release is checked for before it is built: one version, the packages that build it."""

import shutil
from pathlib import Path

import pytest

import cppo_lab
from dev import release
from dev.errors import DevError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of this tree that have its version."""
    for name in ("pyproject.toml", *release.PLACES):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(release.ROOT / name, tmp_path / name)
    return tmp_path


def test_another_version_is_named_with_its_file(tree: Path) -> None:
    version = release.version(tree)
    assert version == release.version() == cppo_lab.__version__
    for name in release.PLACES:
        text = (tree / name).read_text()
        for wrong, said in (
            (text.replace(version, "9.9.9"), f"version 9.9.9, pyproject.toml {version}"),
            ("", "no v"),
        ):
            (tree / name).write_text(wrong)
            with pytest.raises(DevError, match=f"{name} has {said}"):
                release.version(tree)
        (tree / name).write_text(text)
    # A release has a section of its own in the changelog.
    path = tree / "CHANGELOG.md"
    path.write_text(path.read_text().replace(f"## [Unreleased]: {version}", f"## [{version}] - 2026-12-01"))
    assert release.version(tree) == version
