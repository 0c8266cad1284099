"""`cppo export metrics`: read back by other programs' readers; a folder appears as a whole, and is not overwritten."""

import csv
import json
import math
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

import cppo_lab
from cppo_lab.cli import main
from cppo_lab.export import metrics

SCORE = "val/mean/avg_at_16"


@pytest.fixture
def study(in_trained: Path) -> cppo_lab.Results:
    return cppo_lab.load("quickstart")


def export(out: Path, *words: str) -> int:
    return main(["export", "metrics", "quickstart", "--out", str(out), *words])


def test_parquet_has_the_frames(
    study: cppo_lab.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "tables"
    assert export(out) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}\n"
    assert "history.parquet" in said.err
    assert sorted(path.name for path in out.iterdir()) == [
        "about.json",
        "history.parquet",
        "outcomes.parquet",
        "runs.parquet",
    ]
    history = pq.read_table(out / "history.parquet").to_pydict()
    found = dict(
        zip(
            zip(*(history[name] for name in ("run_id", "metric", "step")), strict=True),
            history["value"],
            strict=True,
        )
    )
    expected = study.history()
    assert len(found) == len(expected)
    for row in expected.itertuples():
        assert found[row.run_id, row.metric, row.step] == row.value
    runs = pq.read_table(out / "runs.parquet").to_pydict()
    assert runs["run_id"] == study.runs["run_id"].tolist()
    assert runs["state"] == ["failed", "missing", "done", "missing", "done", "done"]
    assert runs["best"][1] is None or math.isnan(runs["best"][1])
    assert runs["seed"] == [0, 1, 0, 1, 0, 1]
    assert pq.read_table(out / "outcomes.parquet").num_rows == len(study.outcomes())
    about = json.loads((out / "about.json").read_text())
    assert (about["sweep"], about["rows"]["runs.parquet"]) == ("quickstart", 6)
    assert about["units"]["train/response_length"] == "tokens"
    assert about["units"][SCORE] == "fraction"


def test_csv_has_whole_numbers_and_every_digit(study: cppo_lab.Results, tmp_path: Path) -> None:
    assert export(tmp_path / "out", "--format", "csv", "--metrics", f"train/reward,{SCORE}") == 0
    with (tmp_path / "out" / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["metric"] for row in rows} == {"train/reward", SCORE}
    expected = study.history(["train/reward", SCORE])
    assert [(row["run_id"], int(row["step"]), float(row["value"])) for row in rows] == list(
        zip(expected["run_id"], expected["step"], expected["value"], strict=True)
    )


def test_nothing_is_overwritten_without_force(
    study: cppo_lab.Results,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    assert export(out, "--format", "csv") == 0
    capsys.readouterr()
    assert export(out, "--format", "parquet") == 2
    assert "not empty: name another folder" in (said := capsys.readouterr().err)
    assert "--force replaces" in said
    with monkeypatch.context() as patch:  # a full disk while it writes: what was there stays

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device", str(out))

        patch.setattr(pd.DataFrame, "to_parquet", full)
        assert export(out, "--format", "parquet", "--force") == 2
        assert "free space" in capsys.readouterr().err
    assert (out / "history.csv").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert export(out, "--format", "parquet", "--force") == 0
    assert (out / "history.parquet").is_file()
    assert not (out / "history.csv").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (out / "about.json").write_text("{}")  # no longer an export of ours
    capsys.readouterr()
    assert export(out, "--force") == 2
    assert "exists and is not empty" in capsys.readouterr().err


def test_json_says_what_was_written(
    study: cppo_lab.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(tmp_path / "out", "variant=cppo", "--json", "--metrics", SCORE) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(tmp_path / "out")
    assert found["overrides"] == ["variant=cppo"]
    assert found["states"] == {"done": 2}
    assert found["rows"]["history.parquet"] == 22


def test_the_paper_s_curves_need_no_store(tmp_path: Path, workspace: Path) -> None:
    words = [
        "export",
        "metrics",
        "kl_vs_tv",
        "--from",
        "paper",
        "--format",
        "csv",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(words) == 0
    assert not (workspace / "mlflow.db").exists()
    assert not (tmp_path / "out" / "outcomes.csv").exists()
    assert "paper-" in (tmp_path / "out" / "runs.csv").read_text()


def test_a_package_that_is_missing_is_named(
    in_trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "find_spec", lambda name: None)
    assert export(tmp_path / "out", "--format", "parquet") == 2
    assert "pip install 'cppo-lab[export]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_short_form_still_exports_a_run(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for words in (["export"], ["export", "model"]):
        assert main([*words, "1234", "--out", "x"]) == 2
        said.append(capsys.readouterr().err)
        assert main([*words, "--out", "x", "1234"]) == 2
        said.append(capsys.readouterr().err)
    assert len(set(said)) == 1
    assert "run '1234'" in said[0]
