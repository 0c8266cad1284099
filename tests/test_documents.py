"""The documents: links lead to files, commands are such as `cppo` understands, the README is short."""

import ast
import csv
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from cppo_lab.cli.command import parse
from cppo_lab.rules import BUILT_IN
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from tests.conftest import ROOT
from tests.jobs import planned
from tests.mutations import ROOMS

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r'\]\(([^()\s]+)\)|src="([^"]+)"')
_BLOCK = re.compile(r"^ *```(?:bash)?\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
# In backticks in docs/architecture.md, and in no checkout: the names and files that a reader chooses.
PLACEHOLDERS = {"rule/NAME.yaml"}
_INLINE = re.compile(r"`(cppo [a-z-]+(?: [^`]+)?)`")  # not names of runs, such as `cppo w_min=0.6`


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def commands(text: str) -> list[list[str]]:
    """The arguments of each `cppo` command in a text, without comments, pipes and redirections."""
    lines = [
        line.strip() for block in _BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()
    ]
    found = [part.strip() for line in [*lines, *_INLINE.findall(text)] for part in line.split("&&")]
    found = [re.split(r" [|>] ", part)[0] for part in found]
    return [shlex.split(part, comments=True)[1:] for part in found if part.startswith("cppo ")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for match in _LINK.finditer(path.read_text()):
        target = match[1] or match[2]
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.is_file(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_are_understood(path: Path) -> None:
    for name, *words in commands(path.read_text()):
        try:
            parse([name, *(words or ["--help"])])  # a bare name is no whole command
        except SystemExit as end:
            assert end.code == 0, f"{path.name}: cppo {shlex.join([name, *words])}"


def test_commands_are_found() -> None:
    found = [words for path in DOCUMENTS for words in commands(path.read_text())]
    assert len(found) > 200 and {words[0] for words in found} >= {"plan", "show", "sync", "ui"}


def test_the_documents_are_short() -> None:
    """The README; all pages with the evidence, but not the changes; the bars of tables are no words."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
    texts = [path.read_text() for path in DOCUMENTS if path.name != "CHANGELOG.md"]
    assert sum(len(text.splitlines()) for text in texts) <= 2800
    assert sum(word != "|" for text in texts for word in text.split()) <= 32000


def test_the_readmes_sweep_shares_a_run_with_the_quickstart(tmp_path: Path) -> None:
    """The README says that the quickstart's `cppo` is not retrained for it."""
    [block] = re.findall(r"```yaml\n(# mine\.yaml\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "mine.yaml").write_text(block)
    mine = make_plan(load_sweep(str(tmp_path / "mine.yaml")), [])
    quickstart = planned("quickstart variant=cppo")
    assert {run.run_id for run in quickstart.runs} <= {run.run_id for run in mine.runs}


def test_every_rule_is_documented() -> None:
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs/rules.md").read_text()))
    assert {rule.name for rule in BUILT_IN} <= documented


def test_the_code_in_the_rules_document_runs() -> None:
    """Padded and packed, as a reader would type it: the two give equal objectives."""
    names: dict[str, Any] = {}
    objectives = []
    text = (ROOT / "docs/rules.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)  # noqa: S102 - our own document
        objectives.append(names["out"].objective.detach().flatten())
    padded, packed = objectives
    torch.testing.assert_close(padded, packed)
    assert names["logp"].grad.abs().sum() > 0


def missing_paths(text: str) -> set[str]:
    """Paths in backticks that do not exist below the root, cppo_lab/, or a room named before on the same line."""
    missing = set()
    for line in text.splitlines():
        folders = [ROOT, ROOT / "cppo_lab"]
        for path in re.findall(r"`([^`\s]+)`", line):
            found = [folder / path for folder in folders if (folder / path).exists()]
            folders += [one if one.is_dir() else one.parent for one in found[:1]]
            if not found and path.endswith((".py", ".yaml", ".md", "/")):
                missing.add(path)
    return missing


def test_the_paths_of_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert missing_paths(text) == PLACEHOLDERS


PRODUCT = [path for room in ("cppo_lab", "analysis", "reports") for path in (ROOT / room).rglob("*.py")]


def gone_names(text: str, homes: dict[str, set[str]]) -> list[str]:
    """Names in backticks, `module.Name`, whose `Name` stands at the top of other modules only, not of that one; `homes`
    are those. What the text calls by the module's name itself, such as a variable, is no module.
    """
    named = [match.rpartition(".") for match in re.findall(r"`([a-z_]+\.\w+)`", text)]
    code = {"cppo_lab", "torch", *re.findall(r"\w+", re.sub(r"`[^`]+`", "", text))}
    return [
        f"{module}.{name}" for module, _, name in named if name in homes and module not in homes[name] | code
    ]


def test_names_in_docstrings_and_comments_exist() -> None:
    homes: dict[str, set[str]] = {}
    for path in PRODUCT:
        for node in ast.parse(path.read_text()).body:
            targets = getattr(node, "targets", [node.target] if isinstance(node, ast.AnnAssign) else [])
            names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            names += [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
            for name in names:
                homes.setdefault(name, set()).add(path.stem)
    assert [name for path in PRODUCT for name in gone_names(path.read_text(), homes)] == []
    homes = {"Exit": {"answer"}, "metrics": {"export"}}
    said = "`exit_codes.Exit`, `answer.Exit`, `data.metrics` of data"
    assert gone_names(said, homes) == ["exit_codes.Exit"]


def test_every_injected_fault_fits_the_code_and_is_in_the_table() -> None:
    """`make mutations` takes minutes, and a fault whose line has changed ends it."""
    faults = [fault for faults in ROOMS.values() for fault in faults]
    for fault in faults:
        assert (ROOT / fault.file).read_text().count(fault.old) == 1, fault.what
        assert (ROOT / fault.test.partition("::")[0]).exists(), fault.what
    with (ROOT / "docs" / "evidence" / "mutations.csv").open() as file:
        assert [row["fault"] for row in csv.DictReader(file)] == [fault.what for fault in faults]
    text = (ROOT / "docs" / "tests.md").read_text()
    assert f"{len(faults)} of {len(faults)} are caught" in text
