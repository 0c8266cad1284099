"""How far a store has got is stored behind what it has taken, never before; with a store that only takes points."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.runs.spool import (
    SPOOL_FOLDER,
    Begin,
    End,
    Shipped,
    ShippedRecord,
    Spool,
    StepEvent,
    load_shipped,
    open_spool,
    save_shipped,
    unsent,
)
from cppo_lab.tracking import upload
from cppo_lab.tracking.upload import ship

URI = "http://store"
BEGIN = Begin("a" * 32, "cppo-mini", "a run", 999, {}, {})
NAMES = [f"train/{name}" for name in ("reward", "loss", "entropy", "kl", "length", "norm", "rate")]


class Taker:
    """The store: keeps points, and is away after so many requests. Whatever else it is asked for fails."""

    def __init__(self, requests: int = 10**9) -> None:
        self.left, self.requests, self.taken = requests, 0, list[tuple[str, int]]()

    def log_batch(self, mlflow_id: str, metrics: list[Metric], **_: object) -> None:
        if self.requests == self.left:
            raise MlflowException("the server is away")
        assert mlflow_id == "known"
        assert len(metrics) <= upload.BATCH
        self.requests += 1
        self.taken += [(point.key, point.step) for point in metrics]

    def get_run(self, mlflow_id: str) -> Any:
        return SimpleNamespace(
            info=SimpleNamespace(run_id=mlflow_id, experiment_id="1"), data=SimpleNamespace(tags={})
        )

    def search_runs(self, *_: Any, **__: Any) -> list[Any]:
        return []


def row(step: int, metrics: int = len(NAMES)) -> StepEvent:
    return StepEvent(step, 1_000 + step, dict.fromkeys(NAMES[:metrics], step / 8))


def points(*rows: StepEvent) -> list[tuple[str, int]]:
    return [(name, event.step) for event in rows for name in event.metrics]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """Of a run whose beginning the store has."""
    made = open_spool(tmp_path)
    made.add(BEGIN)
    offsets = {made.path.name: made.path.stat().st_size}
    save_shipped(tmp_path, URI, Shipped(offsets, {BEGIN.record: ShippedRecord("known")}))
    return made


def sent(folder: Path, client: Taker, *unwritten: Any) -> int:
    return ship(folder, URI, client, unwritten)  # type: ignore[arg-type]


@pytest.mark.parametrize("metrics", [1, 2, 7])
def test_whatever_request_fails_every_point_arrives(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch, metrics: int
) -> None:
    """Points of one line in several requests, and of several lines in one: whole lines are not sent again."""
    monkeypatch.setattr(upload, "BATCH", 3)
    rows = [row(step, metrics) for step in range(8)]
    for event in rows:
        spool.add(event)
    before = load_shipped(tmp_path, URI)
    for survived in range(100):
        save_shipped(tmp_path, URI, before)
        failing, again = Taker(survived), Taker()
        try:
            number = sent(tmp_path, failing)
        except MlflowException:
            sent(tmp_path, again)
            assert {*failing.taken, *again.taken} == {*points(*rows)}, survived
            assert metrics > upload.BATCH or not {*failing.taken} & {*again.taken}
            continue
        assert (number, failing.taken) == (len(points(*rows)), points(*rows))
        assert sent(tmp_path, again) == 0
        break
    assert survived == failing.requests >= 8 * metrics / 3


def test_no_line_is_sent_before_the_disk_has_it(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store would have a step that a machine which goes down has lost, and trains again."""
    spool.add(row(0))
    real = os.fsync

    def while_it_lasts(file: int) -> None:
        real(file)
        monkeypatch.undo()
        spool.add(row(1))  # the run goes on meanwhile

    monkeypatch.setattr(upload.os, "fsync", while_it_lasts)
    store = Taker()
    for rows in ([row(0)], [row(0), row(1)]):
        assert sent(tmp_path, store) == len(NAMES)
        assert store.taken == points(*rows)


def test_a_step_that_no_file_has_is_sent_only_of_a_run_that_has_finished(
    tmp_path: Path, spool: Spool
) -> None:
    """Whoever goes on with the run trains it again."""
    spool.add(row(0))
    store = Taker()
    assert sent(tmp_path, store, row(1)) == len(NAMES)
    for status, rows in {schema.PARTIAL: [row(0)], schema.DONE: [row(0), row(1)]}.items():
        assert store.taken == points(row(0))
        with pytest.raises(AttributeError, match="set_terminated"):  # the end itself is sent
            sent(tmp_path, store, row(1), End(BEGIN.record, status, 1, 2_000))
        assert store.taken == points(*rows)


@pytest.mark.parametrize(
    "record, left",
    [
        (ShippedRecord("known"), False),
        (ShippedRecord("known", pending=["config.json"]), True),
        (ShippedRecord("known", ended=True), True),  # its history is a file to come
        (ShippedRecord("", pending=["config.json"]), False),  # nothing that the store has a run for
    ],
)
def test_files_that_the_store_has_not_got_are_unsent_though_every_line_is_sent(
    tmp_path: Path, spool: Spool, record: ShippedRecord, left: bool
) -> None:
    offsets = load_shipped(tmp_path, URI).offsets
    save_shipped(tmp_path, URI, Shipped(offsets, {BEGIN.record: record}))
    assert unsent(tmp_path, URI) == left
    spool.add(row(0))
    assert unsent(tmp_path, URI)


@pytest.mark.parametrize("more", [{}, {"ended": True, "deleted": False, "doubtful": True}])
def test_what_another_version_has_noted_is_read(tmp_path: Path, spool: Spool, more: dict[str, bool]) -> None:
    """Without the fields that it did not have, and with those that are gone."""
    path = tmp_path / SPOOL_FOLDER / "shipped.json"
    values = json.loads(path.read_text())
    [stored] = values.values()
    stored["records"][BEGIN.record] = {"mlflow_id": "known", "pending": ["a"], **more}
    path.write_text(json.dumps(values))
    noted = load_shipped(tmp_path, URI)
    assert noted.records == {BEGIN.record: ShippedRecord("known", ["a"], more.get("ended", False))}
    assert noted.offsets == stored["offsets"]
