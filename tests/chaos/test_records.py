"""Comparing two stores: whatever is lost, doubled or changed is named and counted."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cppo_lab.spec import RunSpec
from dev.chaos.records import Comparison, Point, Recorded, Store, compare, read_store
from tests.jobs import job

POINTS: list[Point] = [("train/reward", step, repr(step / 8)) for step in range(5)]
RUN = Recorded("m1", Counter(POINTS), Counter(POINTS), {"config.json": "a", "history.npz": ""})
CONTROL = Store({"one": [RUN], "two": [RUN]}, {"FINISHED": 2})


def with_run(run: Recorded, *more: Recorded, **statuses: int) -> Store:
    """A store whose second run is another one."""
    return Store({"one": [RUN], "two": [run, *more]}, statuses)


def test_equal_stores() -> None:
    other = replace(RUN, mlflow_id="m2", artifacts={**RUN.artifacts, "output/1.log": ""})
    assert compare(CONTROL, with_run(other, FINISHED=2, KILLED=1)) == Comparison(10, 0, ())


@pytest.mark.parametrize(
    ("points", "lost", "said"),
    [
        (POINTS[1:], 1, "lacks, or has more than once, 1 points in the store: train/reward at step 0"),
        (
            [*POINTS, POINTS[2]],
            1,
            "lacks, or has more than once, 1 points in the store: train/reward at step 2",
        ),
        ([*POINTS[:4], ("train/reward", 4, "0.5000001")], 1, "has besides 1 points in the store"),
        ([*POINTS, ("train/reward", 5, "1.0")], 0, "has besides 1 points in the store"),
    ],
)
def test_points(points: list[Point], lost: int, said: str) -> None:
    outcome = compare(CONTROL, with_run(replace(RUN, points=Counter(points))))
    assert (outcome.points, outcome.lost) == (10, lost)
    assert any(said in fault and "two" in fault for fault in outcome.faults)


@pytest.mark.parametrize(
    ("store", "lost", "said"),
    [
        (Store({"one": [RUN]}), 5, "run two is done 0 times"),
        (with_run(RUN, RUN), 0, "run two is done 2 times"),
        (with_run(RUN, RUNNING=1), 0, "1 MLflow runs are RUNNING still"),
        (Store({**CONTROL.runs, "three": [RUN]}), 0, "run three is none of the control study's"),
        (with_run(replace(RUN, in_file=Counter(POINTS[1:]))), 0, "1 points in history.npz"),
        (with_run(replace(RUN, artifacts={"history.npz": ""})), 0, "lacks the artifact config.json"),
        (
            with_run(replace(RUN, artifacts={**RUN.artifacts, "config.json": "b"})),
            0,
            "has another artifact config",
        ),
    ],
)
def test_whatever_else_differs(store: Store, lost: int, said: str) -> None:
    outcome = compare(CONTROL, store)
    assert outcome.lost == lost
    assert any(said in fault for fault in outcome.faults)


def test_a_store_is_read_whole(workspace: Path, tiny_spec: RunSpec) -> None:
    uris = [f"sqlite:///{workspace}/{name}.db" for name in ("a", "b")]
    for uri in uris:
        job(tiny_spec, Path(uri.removeprefix("sqlite:///")).with_suffix(""), uri).run()
    first, second = (read_store(uri) for uri in uris)
    [[run]] = first.runs.values()
    assert first.statuses == {"FINISHED": 1}
    assert run.points == run.in_file
    assert {metric.partition("/")[0] for metric, _, _ in run.points} == {"train", "rule", "val", "mismatch"}
    assert {"config.json", "history.npz"} <= run.artifacts.keys()
    assert compare(first, second) == Comparison(run.points.total(), 0, ())
