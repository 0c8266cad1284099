"""What a release needs before it is built: one version."""

import re
import tomllib

import cppo_lab
from tests.conftest import ROOT


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    """A release has a section of its own in the changelog."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert cppo_lab.__version__ == version
    for name, pattern in (
        ("CITATION.cff", r"^version: \"?([^\"\s]+)"),
        ("CHANGELOG.md", r"^## \[(?:Unreleased\]: )?([0-9][^\]\s]*)"),
    ):
        assert re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)[1] == version, name
