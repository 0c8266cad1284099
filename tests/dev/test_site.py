"""The documentation as a site: its navigation, what is laid out for it, docstrings; a build fails for a broken link."""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from dev import site
from dev.docstrings import as_restructured_text
from dev.errors import DevError
from dev.site import navigation, stage
from tests.conftest import python

README = """\
# Title

## Documents

| audience | |
| --- | --- |
| users | [one](docs/one.md), [again](docs/one.md#part), [home](https://example.org/x.md) |
| contributors | [two](docs/two.md), [CONTRIBUTING.md](CONTRIBUTING.md), [licence](LICENSE) |

Licence: [LICENSE](LICENSE).
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of six documents, a picture and a licence."""
    root = tmp_path / "tree"
    (root / "docs" / "pictures").mkdir(parents=True)
    (root / "README.md").write_text(README)
    (root / "AGENTS.md").write_text("# For agents\n")
    (root / "CONTRIBUTING.md").write_text("# Contributing\n\n[two](docs/two.md#a-part)\n")
    (root / "CHANGELOG.md").write_text("# Changes\n")
    (root / "LICENSE").write_text("MIT\n")
    (root / "docs" / "one.md").write_text(
        "# One\n\n## Part\n\n![a picture](pictures/a.png)\n\n```\n[no link](nowhere.txt)\n```\n"
    )
    (root / "docs" / "two.md").write_text("# Two\n\n## A part\n\n[up](../README.md)\n")
    shutil.copy(site.ROOT / "docs" / "pictures" / "report.png", root / "docs" / "pictures" / "a.png")
    return root


def test_the_navigation_is_the_readme_s_table(tree: Path) -> None:
    assert navigation(tree) == {
        "Users": ["docs/one.md"],
        "Contributors": ["docs/two.md", "CONTRIBUTING.md"],
        "Further": ["AGENTS.md", "CHANGELOG.md"],
    }
    (tree / "README.md").write_text("# Title\n")
    with pytest.raises(DevError, match="no table under `## Documents`"):
        navigation(tree)


def test_every_document_of_this_tree_is_in_the_navigation_once(tmp_path: Path) -> None:
    stage(site.ROOT, tmp_path / "source")
    listed = (tmp_path / "source" / "README.md").read_text().partition("```{toctree}")[2].splitlines()
    named = [f"{line}.md" for line in listed if (tmp_path / "source" / f"{line}.md").is_file()]
    named.remove("metrics.md")
    assert sorted(named) == sorted(
        path.relative_to(site.ROOT).as_posix() for path in site.documents() if path.name != "README.md"
    )


def test_documents_and_what_they_link_to_are_laid_out_as_in_the_tree(tree: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    stage(tree, source)
    laid = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    documents = {"README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/one.md", "docs/two.md"}
    assert laid == documents | {"LICENSE", "docs/pictures/a.png", "api.rst", "metrics.md", "conf.py"}
    assert (source / "docs" / "two.md").read_bytes() == (tree / "docs" / "two.md").read_bytes()
    assert ":caption: Contributors\n\ndocs/two\nCONTRIBUTING\n" in (source / "README.md").read_text()


def test_metrics_have_a_line_each() -> None:
    text = site.metrics()
    assert "| `train/response_length` | tokens | mean response length of the rollout batch |" in text
    assert r"sum \|lp_train - lp_rollout\|" in text


@pytest.mark.parametrize(
    "docstring, expected",
    [
        ("The mean of `a * b`, *always*.", ["The mean of ``a * b``, \\*always\\*."]),
        (
            "delta: threshold.\nw_: a weight of\n    two lines.",
            ["* delta: threshold.", "* w\\_: a weight of", "  two lines."],
        ),
        (
            "Args:\n    **values: more\n        of them.",
            ["Args:", "    \\*\\*values: more", "        of them."],
        ),
        ("One line: no list.", ["One line: no list."]),
        ("`two\nlines`", ["``two lines``"]),
    ],
)
def test_docstrings_become_restructured_text(docstring: str, expected: list[str]) -> None:
    assert as_restructured_text(docstring.splitlines()) == [*expected, ""]


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
    reason="needs the extra docs: make docs",
)
def test_a_link_that_leads_nowhere_fails_the_build(tree: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"

    def built() -> subprocess.CompletedProcess[str]:
        stage(tree, source)
        (source / "api.rst").write_text("API\n===\n")  # the real one imports the whole product
        options = ("--fail-on-warning", "--keep-going", "-q", "-b", "html")
        return python("-m", "sphinx", *options, source, tmp_path / "html", cwd=site.ROOT, check=False)

    done = built()
    assert (done.returncode, done.stderr) == (0, "")
    assert 'href="docs/two.html#a-part"' in (tmp_path / "html" / "CONTRIBUTING.html").read_text()
    for text in ("[gone](docs/gone.md)", "[gone](docs/two.md#gone)", "![gone](docs/pictures/gone.png)"):
        (tree / "CONTRIBUTING.md").write_text(f"# Contributing\n\n{text}\n")
        done = built()
        assert done.returncode != 0, text
        assert "gone" in done.stderr
