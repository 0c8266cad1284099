"""Comparing two studies: whatever is lost, doubled or changed is named, but for the names that stores give to runs."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from cppo_lab.spec import RunSpec
from dev.chaos.compare import (
    HISTORY,
    STORE,
    Comparison,
    Point,
    Recorded,
    Store,
    compare,
    differences,
    read_report,
    read_store,
)
from tests.jobs import job

POINTS: list[Point] = [("train/reward", step, repr(step / 8)) for step in range(5)]
NAMES = {"config": "config.json", "output": "output/1.log"}
FILES = {"config.json": "a", HISTORY: ""}


def recorded(
    stored: list[Point] = POINTS, in_file: list[Point] = POINTS, **artifacts: str | None
) -> Recorded:
    files = FILES | {NAMES[name]: digest for name, digest in artifacts.items()}
    kept = {name: digest for name, digest in files.items() if digest is not None}
    return Recorded({STORE: Counter(stored), HISTORY: Counter(in_file)}, kept)


LACKS = "lacks, or has more than once, 1 points in the store"


def store(*runs: Recorded, **statuses: int) -> Store:
    """A store whose second run is done so often."""
    return Store({"one": [recorded()], **({"two": [*runs]} if runs else {})}, {}, statuses)


@pytest.mark.parametrize(
    "disturbed, lost, said",
    [
        (store(recorded(output=""), FINISHED=2, KILLED=1), 0, None),
        (store(recorded(POINTS[1:])), 1, f"{LACKS}: train/reward at step 0"),
        (store(recorded([*POINTS, POINTS[2]])), 1, LACKS),
        (
            store(recorded([*POINTS[:4], ("train/reward", 4, "0.5000001")])),
            1,
            "has besides 1 points in the store",
        ),
        (
            store(recorded([*POINTS, ("train/reward", 5, "1.0")])),
            0,
            "run two has besides 1 points in the store",
        ),
        (store(), 5, "run two is done 0 times"),
        (store(recorded(), recorded()), 0, "run two is done 2 times"),
        (store(recorded(), RUNNING=1), 0, "1 MLflow runs are RUNNING still"),
        (Store({**store(recorded()).runs, "three": []}), 0, "run three is none of the control study's"),
        (store(recorded(in_file=POINTS[1:])), 0, "1 points in history.npz"),
        (store(recorded(config=None)), 0, "lacks the artifact config.json"),
        (store(recorded(config="b")), 0, "has another artifact config.json"),
    ],
)
def test_stores(disturbed: Store, lost: int, said: str | None) -> None:
    outcome = compare(store(recorded()), disturbed)
    assert (outcome.points, outcome.lost) == (10, lost)
    assert any(said in fault for fault in outcome.faults) if said else outcome.faults == ()


def test_a_store_is_read_whole(workspace: Path, tiny_spec: RunSpec) -> None:
    stores = []
    for name in "ab":
        uri = f"sqlite:///{workspace}/{name}.db"
        job(tiny_spec, workspace / name, uri).run()
        stores.append(read_store(uri))
    [[run]] = stores[0].runs.values()
    assert stores[0].statuses == {"FINISHED": 1}
    assert list(stores[0].ids.values()) == list(stores[0].runs)
    assert run.points[STORE] == run.points[HISTORY]
    kinds = {metric.partition("/")[0] for metric, _, _ in run.points[STORE]}
    assert kinds == {"train", "rule", "val", "mismatch"}
    assert FILES.keys() <= run.artifacts.keys()
    assert compare(*stores) == Comparison(run.points[STORE].total(), 0, ())


def report(folder: Path, mlflow_id: str, port: int, **changes: str) -> dict[str, bytes]:
    """A report of one run, read."""
    address = f"http://127.0.0.1:{port}"
    texts = {
        "index.html": f"<a href='{address}/#/runs/{mlflow_id}'>{mlflow_id}</a>",
        "runs.csv": f"abc,{mlflow_id}\n",
        "figure.svg": "<svg/>",
        **changes,
    }
    record = {"files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}}
    folder.mkdir(exist_ok=True)
    for name, text in {**texts, "report.json": json.dumps(record), ".cppo-report": mlflow_id}.items():
        (folder / name).write_text(text)
    return read_report(folder, {mlflow_id: "abc"}, address)


def test_reports(tmp_path: Path) -> None:
    control = report(tmp_path / "control", "1" * 32, 1)
    assert set(control) == {"index.html", "runs.csv", "figure.svg", "report.json"}
    assert differences(control, report(tmp_path / "other", "2" * 32, 2)) == []  # names of stores do not count
    assert differences(control, {**control, "more.md": b""}) == ["the report has more.md besides"]
    assert differences({**control, "more.md": b""}, control) == ["the report lacks more.md"]
    for name in ("index.html", "runs.csv", "figure.svg"):
        changed = differences(control, report(tmp_path / "other", "2" * 32, 2, **{name: "something else"}))
        assert [line.split()[0] for line in changed] == sorted([name, "report.json"])
    # A record of other files is another record.
    (tmp_path / "control" / "figure.svg").write_text("<svg></svg>")
    again = read_report(tmp_path / "control", {"1" * 32: "abc"}, "http://127.0.0.1:1")
    assert len(differences(control, again)) == 1
