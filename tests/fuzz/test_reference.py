"""The paper's curves, damaged on the way, are named and never half imported."""

import gzip
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.tracking.reference import import_reference
from cppo_lab.tracking.reference_curves import reference_runs
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
        patch.setattr("cppo_lab.tracking.reference_curves.resources.files", lambda package: folder.parent)
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


ROWS = {
    "no column": "model,method\na,b\n",
    "too few columns": "model,method,t_stop\nqwen,cppo\n",
    "no number": "model,method,t_stop\nqwen,cppo,many\n",
    "a number of 5,000 digits": f"model,method,t_stop\nqwen,cppo,{'9' * 5000}\n",
    "a quote that never ends": 'model,method,t_stop\n"qwen,cppo,1\n' + "x" * 200_000,
    "a zero byte": "model,method,t_stop\nqwen,cppo,\0\n",
}


@pytest.mark.parametrize("text", ROWS.values(), ids=ROWS)
def test_rows(paper: Path, tmp_path: Path, text: str) -> None:
    """Nothing is written of a reference that cannot be read as a whole."""
    before = (paper / FILES[0]).read_bytes()
    try:
        (paper / FILES[0]).write_text(text)
        assert refused(reference_runs, "install the package again")
        uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
        assert refused(lambda: import_reference(uri), "install the package again")
        assert not (tmp_path / "mlflow.db").exists()
    finally:
        (paper / FILES[0]).write_bytes(before)
