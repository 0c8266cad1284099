"""Comparing two reports: equal but for the names that stores give to runs."""

import hashlib
import json
from pathlib import Path

import pytest

from dev.chaos.pages import differences, read_report

FILES = {
    "index.html": "<a href='{address}/#/runs/{id}'>{id}</a>",
    "runs.csv": "abc,{id}\n",
    "figure.svg": "<svg/>",
}


def report(folder: Path, mlflow_id: str, address: str, **changes: str) -> dict[str, bytes]:
    """A report of one run, read."""
    folder.mkdir()
    texts = {
        name: changes.get(name.partition(".")[0], text).format(address=address, id=mlflow_id)
        for name, text in FILES.items()
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    record = {"files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}}
    (folder / "report.json").write_text(json.dumps(record))
    (folder / ".cppo-report").write_text(mlflow_id)
    return read_report(folder, {mlflow_id: "abc"}, address)


def test_names_of_stores_do_not_count(tmp_path: Path) -> None:
    control = report(tmp_path / "control", "1" * 32, "http://127.0.0.1:1")
    assert set(control) == {*FILES, "report.json"}
    assert differences(control, report(tmp_path / "other", "2" * 32, "http://127.0.0.1:2")) == []


@pytest.mark.parametrize("name", ["index", "runs", "figure"])
def test_a_changed_byte_is_named(tmp_path: Path, name: str) -> None:
    control = report(tmp_path / "control", "1" * 32, "http://127.0.0.1:1")
    other = report(tmp_path / "other", "2" * 32, "http://127.0.0.1:2", **{name: "something else {id}"})
    found = differences(control, other)
    assert [line.partition(" ")[0].partition(".")[0] for line in found] == sorted([name, "report"])


def test_a_file_too_many_or_too_few(tmp_path: Path) -> None:
    control = report(tmp_path / "control", "1" * 32, "http://127.0.0.1:1")
    assert differences(control, {**control, "more.md": b""}) == ["the report has more.md besides"]
    assert differences({**control, "more.md": b""}, control) == ["the report lacks more.md"]


def test_a_record_of_other_files_is_another_record(tmp_path: Path) -> None:
    control = report(tmp_path / "control", "1" * 32, "http://127.0.0.1:1")
    folder = tmp_path / "control"
    (folder / "figure.svg").write_text("<svg></svg>")
    assert len(differences(control, read_report(folder, {"1" * 32: "abc"}, "http://127.0.0.1:1"))) == 1
