"""`cppo export metrics`: read back by other programs' readers; a folder appears as a whole, and is not overwritten."""

import csv
import json
import re
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pyarrow.parquet as pq
import pytest

import cppo_lab
from tests.conftest import Command

SCORE = "val/mean/avg_at_16"


@pytest.fixture
def export(cppo: Command, in_trained: Path) -> Command:
    """`cppo export metrics quickstart` into a folder, where the runs are."""
    return lambda out, words="", **code: cppo(f"export metrics quickstart --out {out} {words}", **code)


def test_parquet_has_the_frames(export: Command, tmp_path: Path) -> None:
    out, study = tmp_path / "new" / "tables", cppo_lab.load("quickstart")
    printed = export(out)
    assert printed.out == f"{out}\n" and "history.parquet" in printed.err
    frames = {"runs": study.runs, "history": study.history(), "outcomes": study.outcomes()}
    assert {path.name for path in out.iterdir()} == {"about.json", *(f"{name}.parquet" for name in frames)}
    for name, frame in frames.items():
        table = pq.read_table(out / f"{name}.parquet").to_pydict()
        assert [*table] == [*frame.columns]
        for column in frame:
            stored, expected = pd.Series(table[column]), frame[column]
            assert stored.isna().tolist() == expected.isna().tolist()
            assert stored.dropna().tolist() == expected.dropna().tolist()
    about = json.loads((out / "about.json").read_text())
    assert (about["sweep"], about["rows"]["runs.parquet"]) == ("quickstart", 6)
    assert (about["units"]["train/response_length"], about["units"][SCORE]) == ("tokens", "fraction")


def test_csv_has_whole_numbers_and_every_digit_and_json_says_what_was_written(
    export: Command, tmp_path: Path
) -> None:
    out, names, study = tmp_path / "out", ["train/reward", SCORE], cppo_lab.load("quickstart")
    written = export(out, f"variant=cppo --json --format csv --metrics {','.join(names)}").answer
    with (out / "history.csv").open(newline="") as file:
        rows = [(row["run_id"], int(row["step"]), float(row["value"])) for row in csv.DictReader(file)]
    expected = study.history(names, runs=study.runs[study.runs["variant"] == "cppo"])
    columns = (expected[name] for name in ("run_id", "step", "value"))
    assert sorted(rows) == sorted(zip(*columns, strict=True))
    assert (written["folder"], written["overrides"]) == (str(out), ["variant=cppo"])
    assert (written["states"], written["rows"]["history.csv"]) == ({"done": 2}, len(rows))


def test_nothing_is_overwritten_without_force(
    export: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export(out, "--format csv")
    assert re.search("not empty: name another folder.*--force replaces", export(out, code=2).err)
    with monkeypatch.context() as patch:  # a full disk while it writes: what was there stays
        full = OSError(28, "No space left on device", str(out))
        patch.setattr("pandas.DataFrame.to_parquet", Mock(side_effect=full))
        assert "free space" in export(out, "--force", code=2).err
    assert (out / "history.csv").is_file()
    export(out, "--force")
    assert (out / "history.parquet").is_file() and not (out / "history.csv").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (out / "about.json").write_text("{}")  # no longer an export of ours
    assert "exists and is not empty" in export(out, "--force", code=2).err


def test_the_paper_s_curves_need_no_store(cppo: Command) -> None:
    cppo("export metrics kl_vs_tv --from paper --format csv --out out")
    assert {path.name for path in Path("out").iterdir()} == {"about.json", "history.csv", "runs.csv"}
    assert "paper-" in Path("out/runs.csv").read_text()
    assert not Path("mlflow.db").exists()


def test_a_package_that_is_missing_is_named(
    export: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.cli.exporting.find_spec", lambda name: None)
    monkeypatch.setattr("cppo_lab.cli.exporting.install_extra", lambda extra: f"how {extra} is installed")
    said = export(tmp_path / "out", code=2).err
    assert "'pyarrow' is not installed: how export is installed, or take --format csv" in said
    assert not (tmp_path / "out").exists()
