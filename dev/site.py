"""The documentation as a site: `python -m dev.site`, or `make docs`. Needs no network.

The pages are the same Markdown files as in the tree, copied to build/site/source in the tree's layout, so that their
links work; the navigation is the README's table of documents. The API reference is generated from docstrings, the list
of metrics from schema.py. Every warning is an error: a broken link, anchor or picture, a docstring that cannot be
parsed.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from cppo_lab.schema import METRICS
from dev.errors import DevError, run

ROOT = Path(__file__).parents[1]
SOURCE, SITE = ROOT / "build" / "site" / "source", ROOT / "build" / "site" / "html"

# Heading -> the public names, as Sphinx's autodoc directives.
API = {
    "Results": (
        "autofunction:: cppo_lab.load",
        "autoclass:: cppo_lab.sweep.results.Results\n   :members:",
    ),
    "Rules": (
        "automodule:: cppo_lab.maths.rules\n   :members: get_rule",
        "autoclass:: cppo_lab.maths.tokens.Tokens\n   :members: packed",
        "autoclass:: cppo_lab.maths.tokens.RuleOutput",
    ),
    "Divergences and aggregation": (
        "automodule:: cppo_lab.maths.divergence\n   :members:",
        "autofunction:: cppo_lab.maths.rules.group_advantages",
        "autofunction:: cppo_lab.maths.rules.aggregate",
    ),
    "Records of rules, cores and launchers": (
        "autoclass:: cppo_lab.rules.Rule",
        "autoclass:: cppo_lab.rules.Row",
        "autoclass:: cppo_lab.rules.Stroke",
        "autoclass:: cppo_lab.core_records.CoreRecord",
        "autoclass:: cppo_lab.launch.launchers.LauncherRecord",
    ),
    "Conformance tests": ("automodule:: cppo_lab.testing",),
    "Errors": ("autoexception:: cppo_lab.errors.UserError",),
}
CONFIGURATION = """\
project = "CPPO Lab"
author = copyright = "CPPO Lab contributors"
root_doc = "README"
include_patterns = ["*.md", "docs/**", "api.rst"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "dev.docstrings"]
myst_heading_anchors = 6  # as GitHub names them
myst_enable_extensions = ["html_image"]
highlight_language = "none"
napoleon_custom_sections = [("Columns", "params_style")]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "CPPO Lab"
html_show_sphinx = False
"""


def navigation(root: Path = ROOT) -> dict[str, list[str]]:
    """Heading -> documents, by the README's table of them; documents that it does not list come last.

    Raises:
        DevError: the README has no such table.
    """
    _, _, table = (root / "README.md").read_text().partition("\n## Documents\n")
    rows = [line.split("|") for line in table.splitlines() if line.startswith("|")]
    if len(rows) < 3:
        raise DevError("README.md has no table under `## Documents`, of which the site's navigation is made")
    groups = {}
    for cells in rows[2:]:  # behind the head and its rule
        names = re.findall(r"\]\(([^()#:\s]+\.md)\)", cells[2])
        groups[cells[1].strip().capitalize()] = list(dict.fromkeys(names))
    listed = {"README.md", *(name for names in groups.values() for name in names)}
    further = sorted({path.relative_to(root).as_posix() for path in documents(root)} - listed)
    return groups | ({"Further": further} if further else {})


def documents(root: Path = ROOT) -> list[Path]:
    """Every Markdown document of the site."""
    return [*root.glob("*.md"), *(root / "docs").rglob("*.md")]


def stage(root: Path, source: Path) -> None:
    """Lay out the sources of the site in the folder `source`, which is recreated: the documents, links to all else, and
    what is made here.
    """
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(root / "docs", source / "docs")
    for path in root.iterdir():
        if path.suffix == ".md":
            shutil.copy(path, source)
        elif path.name not in ("docs", "build") and not path.name.startswith("."):
            (source / path.name).symlink_to(path)
    groups = navigation(root)
    groups["Reference"] = [*groups.get("Reference", ()), "api", "metrics"]
    readme = (root / "README.md").read_text()
    for heading, names in groups.items():
        listed = "\n".join(name.removesuffix(".md") for name in names)
        readme += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{listed}\n```\n"
    pages = {"README.md": readme, "api.rst": api(), "metrics.md": metrics(), "conf.py": CONFIGURATION}
    for name, text in pages.items():
        (source / name).write_text(text)


def api() -> str:
    """The page of public names."""
    parts = ["API\n==="]
    for heading, directives in API.items():
        parts += [f"{heading}\n{'-' * len(heading)}", *(f".. {directive}" for directive in directives)]
    return "\n\n".join(parts) + "\n"


def metrics() -> str:
    """The page of metrics with their units."""
    lines = ["# Metrics", "", "The names under which runs log (`cppo_lab/schema.py`).", ""]
    lines += ["| name | unit | meaning |", "| --- | --- | --- |"]
    for metric in METRICS:
        meaning = metric.meaning.replace("|", r"\|")
        lines.append(f"| `{metric.name}` | {metric.unit} | {meaning} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Build the site; 0 if nothing is wrong with it, not even by a warning of Sphinx."""
    stage(ROOT, SOURCE)
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--fresh-env", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(SOURCE), str(SITE)]
    status = subprocess.run(command, check=False, cwd=ROOT).returncode  # in ROOT `dev.docstrings` is found
    if status == 0:
        print(SITE / "README.html")
    return status


if __name__ == "__main__":
    run("dev.site", main, status=2)
