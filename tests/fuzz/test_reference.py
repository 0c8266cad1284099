"""The paper's curves, damaged on the way, are named and never half imported."""

import gzip
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.tracking.reference import reference_runs
from tests.fuzz.mangling import damaged, fuzz, refused

PAPER = Path(str(resources.files("cppo_lab.reports"))) / "paper"
FILES = ("table_full.csv", "validation_curves.csv", "warmup_diagnostics.csv", "ablation_curves.csv")
PACKED = "training_diagnostics.csv.gz"


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the files, read in their place; the diagnostics cut to a few rows."""
    folder = tmp_path_factory.mktemp("reports") / "paper"
    folder.mkdir()
    for name in FILES:
        shutil.copy(PAPER / name, folder)
    rows = gzip.decompress((PAPER / PACKED).read_bytes()).splitlines(keepends=True)
    (folder / PACKED).write_bytes(gzip.compress(b"".join(rows[:200])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cppo_lab.tracking.reference.resources.files", lambda package: folder.parent)
        yield folder


@fuzz(40)
@given(data=st.data(), name=st.sampled_from((*FILES, PACKED)))
def test_bytes(paper: Path, data: st.DataObject, name: str) -> None:
    before = (paper / name).read_bytes()
    try:
        (paper / name).write_bytes(data.draw(damaged(before)))
        refused(reference_runs, "reports/paper/")
    finally:
        (paper / name).write_bytes(before)
