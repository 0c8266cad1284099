"""What a release is checked for before it is built: one version, the packages that build it."""

import shutil
import tarfile
import zipfile
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


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(release, "find_spec", lambda name: None if name == "twine" else object())
    with pytest.raises(DevError, match="not installed: twine: make release-check"):
        release.build(tmp_path, tmp_path / "out")


def test_files_are_counted_and_folders_are_not(tmp_path: Path) -> None:
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    for path in (inner / "a.py", inner / "b.py", inner.parent / "c.yaml"):
        path.touch()
    with tarfile.open(tmp_path / "package-1.tar.gz", "w:gz") as sdist:
        sdist.add(inner.parent, "package")
    with zipfile.ZipFile(tmp_path / "package-1.whl", "w") as wheel:
        for path in inner.parent.rglob("*"):
            wheel.write(path, path.relative_to(tmp_path))
    assert [release.count(tmp_path / f"package-1.{kind}") for kind in ("tar.gz", "whl")] == [3, 3]
