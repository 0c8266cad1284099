"""At least 200 bad inputs through the real command: one line with the value and the remedy, and nothing written."""

import re
import shlex
from importlib import resources
from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.cli.command import Exit
from cppo_lab.errors import ALSO
from tests.conftest import write
from tests.fuzz.mangling import snapshot
from tests.hostile import command_lines, folders, overrides, reference_files, sweep_files
from tests.hostile.case import Case

KINDS = {
    "line": command_lines.CASES,
    "override": overrides.CASES,
    "sweep_file": sweep_files.CASES,
    "folder": folders.CASES,
    "reference": reference_files.CASES,
}
# How messages begin of stores that are not there, or cannot be read.
AWAY = re.compile(r"cppo: error: tracking (store .* cannot be (used|read)|database .* does not exist)")
TABLE = [(kind, case) for kind, cases in KINDS.items() for case in cases]
LONGEST = 2100  # characters of a message; a file of a megabyte is not said in full


def test_the_table_is_large_and_every_message_is_said() -> None:
    assert len(TABLE) >= 200
    assert all(len(case.says.strip()) > 10 for _, case in TABLE)


@pytest.mark.parametrize("kind, case", TABLE, ids=[f"{kind}-{case.says[:40]}" for kind, case in TABLE])
def test_a_bad_input_costs_one_line_and_writes_nothing(
    kind: str,
    case: Case,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    empty_store: bytes,
    nothing_trains: None,
) -> None:
    write(workspace, case.files)
    if case.store:
        (workspace / "mlflow.db").write_bytes(empty_store)
    if case.make is not None:
        case.make(workspace)
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    if kind == "reference":  # a folder is that of the package's reports
        files, placed = resources.files, {"cppo_lab.reports": workspace / reference_files.PLACE}
        monkeypatch.setattr(resources, "files", lambda name: placed.get(name) or files(name))
    before = snapshot(workspace)
    try:
        code = main(shlex.split(case.typed))
    except SystemExit as end:  # argparse
        code = end.code
    output = capsys.readouterr()
    assert snapshot(workspace) == before
    assert output.out == "" or "--json" in case.typed  # the mistake as an object
    line, _, usage = output.err.partition("\n")
    assert line.startswith("cppo: error: ")
    assert usage == "" or (
        usage.startswith("usage: cppo ") and "see `cppo" in line
    )  # of mistakes that argparse finds
    assert line.isprintable()
    assert len(line) <= LONGEST
    assert "Traceback" not in output.err
    assert case.missing(line) == "", line
    assert line.count(ALSO) == case.says.count(ALSO) or ALSO not in case.says
    assert code == (Exit.STORE_AWAY if AWAY.match(line) else Exit.USAGE)
