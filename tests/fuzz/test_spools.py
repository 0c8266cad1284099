"""A spool of any content is read as far as it is whole, shipped as far as it is read, and never blocks a run."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hypothesis import example, given

from cppo_lab import schema
from cppo_lab.runs.recorder import Recorder, record_end
from cppo_lab.runs.spool import (
    SHIPPED,
    SPOOL_FOLDER,
    Artifact,
    Begin,
    End,
    Line,
    Shipped,
    StepEvent,
    encoded,
    newest_record,
    open_spool,
    read_lines,
    read_rows,
    save_shipped,
    unsent,
)
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.upload import upload
from tests.fuzz.mangling import SCALARS, as_json, damaged, fuzz, refused, within
from tests.recorded import history, mlflow_run
from tests.runs.test_spool import ALL, BEGIN, END, ROWS

NAME = "0001.jsonl"
WHOLE = b"".join(map(encoded, [*ALL[:-1], StepEvent(3, 1003, {"train/loss": math.nan}), END]))


def written(folder: Path, content: bytes) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / SPOOL_FOLDER).mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / SPOOL_FOLDER / NAME).write_bytes(content)
    return folder


@fuzz(250)
@given(content=damaged(WHOLE))
@example(content=b'{"kind": ' + b"[" * 50_000 + b"\n")
@example(content=b'{"step": 1e300, "time_ms": 0, "metrics": {}}\n')
@example(content=b'{"step": ' + b"9" * 400 + b', "time_ms": 0, "metrics": {}}\n')
@example(content=b'{"step": 0, "time_ms": 0, "metrics": {"a": 1' + b"0" * 400 + b"}}\n")
def test_bytes(desk: Path, content: bytes) -> None:
    folder = written(desk / "runs" / "0123456789ab", content)
    path = folder / SPOOL_FOLDER / NAME
    with within():
        found = list(read_lines(path))
        for _, end in found:  # nothing is read that is not a whole line of the file
            assert content[:end].endswith(b"\n")
        newest_record(folder)
        assert [row.step for row in read_rows(folder)] == sorted({row.step for row in read_rows(folder)})
        unsent(folder, "sqlite:///nowhere.db")
        ended = record_end(folder, schema.PARTIAL, "died")
        assert not ended or newest_record(folder).end.reason == "died"
    assert path.read_bytes() == content  # what another attempt wrote stays


PATHS = ("x" * 5000, "/etc/passwd", "../../../../../../etc/passwd", "", "ring")
BAD: list[list[Line]] = [
    *([BEGIN, Artifact(path), ROWS[0]] for path in PATHS),
    [replace(BEGIN, experiment=""), *ALL[1:]],
]


def test_shipping_beside_broken_ones(fresh: Callable[[], Path]) -> None:
    """What is broken is sent as far as it goes, or named; the whole run among them arrives."""
    whole, folders = fresh(), []
    for number, lines in enumerate(BAD):
        record = f"{number:032x}"
        lines = [replace(line, record=record) if isinstance(line, Begin | End) else line for line in lines]
        folders.append(written(whole.with_name(f"0123456789{number:02x}"), b"".join(map(encoded, lines))))
        (folders[-1] / "ring").symlink_to("ring")
    said = refused(lambda: upload([*folders[:2], whole, *folders[2:]], tracking_uri()))
    assert said.startswith(f"run {folders[-1].name} could not be uploaded") and " more: " not in said
    assert [folder for folder in (*folders, whole) if unsent(folder, tracking_uri())] == folders[-1:]
    assert history(mlflow_run(whole), "train/reward") == {step: step / 8 for step in range(5)}


def test_offsets_of_other_kinds(desk: Path) -> None:
    folder, uri = written(desk / "runs" / "0123456789ab", WHOLE), "sqlite:///nowhere.db"
    save_shipped(folder, uri, Shipped({NAME: 20}, {}))
    path = folder / SPOOL_FOLDER / SHIPPED
    [key] = json.loads(path.read_text())
    for value in (value for value in SCALARS if not isinstance(value, str)):
        path.write_bytes(as_json({key: {"offsets": {NAME: value}, "records": {}}}))
        with within():
            assert unsent(folder, uri), value


def test_an_attempt_goes_on_behind_a_broken_one(fresh: Callable[[], Path], run: RunSpec) -> None:
    """Its file is its own: what is broken in an earlier one takes nothing of it away."""
    folder = fresh()
    (folder / SPOOL_FOLDER / "0002.jsonl").write_bytes(b"\xff\0garbage\n" * 3)
    recorder = Recorder(run, {}, folder)
    recorder.begin(2)
    recorder.log(3, {"train/reward": 0.75})
    recorder.finish(schema.Outcome(schema.DONE, 4))
    assert [row.step for row in read_rows(folder)] == [0, 1, 2, 3]
    record = newest_record(folder)
    assert record.end.status == schema.DONE
    assert open_spool(folder).path.name == "0004.jsonl"
