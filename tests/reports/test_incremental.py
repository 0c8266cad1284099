"""What is made again when: nothing for the same inputs, and the same bytes wherever the runs are."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from io import FileIO
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from mlflow import MlflowClient
from mlflow.entities import Metric

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.errors import UserError
from cppo_lab.reports import drawings, sweep
from cppo_lab.reports.build import current_inputs, make_report
from cppo_lab.reports.folder import MARKER, read_marker
from cppo_lab.reports.sweep import ReportRequest
from tests.waiting import CEILING_SECONDS


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def _own_drawings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawings, "FOLDER", tmp_path / "drawings")
    monkeypatch.setattr(drawings, "_may_fork", lambda: False)  # so that what is drawn is counted here


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with every drawing."""
    found: list[str] = []
    monkeypatch.setattr(drawings, "_made", found)
    return found


def test_the_same_inputs_make_nothing_again(
    demo_request: ReportRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_report(demo_request).rebuilt
    before = contents(demo_request.out)
    with monkeypatch.context() as patched:
        patched.setattr(sweep, "read_sweep", None)  # no history is read either
        assert not make_report(demo_request).rebuilt
        assert not make_report(replace(demo_request, uri=f"{demo_request.uri}")).rebuilt
    assert contents(demo_request.out) == before
    assert make_report(demo_request, force=True).rebuilt
    assert contents(demo_request.out) == before


def runs_of(request: ReportRequest) -> list[str]:
    client = MlflowClient(request.uri)
    return [run.info.run_id for run in client.search_runs(["1"], order_by=["attributes.start_time ASC"])]


@pytest.mark.parametrize("what", ["point", "tag", "parameter", "request", "file", "lost file", "marker"])
def test_whatever_could_change_a_file_makes_the_report_again(demo_request: ReportRequest, what: str) -> None:
    make_report(demo_request)
    client, run = MlflowClient(demo_request.uri), runs_of(demo_request)[0]
    before = current_inputs(demo_request)
    request = demo_request
    if what == "point":
        client.log_metric(run, "train/reward", 0.5, 41, 40)  # of the last step, logged again
    elif what == "tag":
        client.set_tag(run, schema.TAG_REASON, "why")
    elif what == "parameter":
        client.log_param(run, "rule.delta", "0.1")
    elif what == "request":
        request = replace(demo_request, title="Another")
    elif what == "file":
        (demo_request.out / "runs.csv").write_text("mine")
    elif what == "lost file":
        (demo_request.out / "figure_curves.svg").unlink()
    else:
        (demo_request.out / MARKER).write_text("report demo; core=mini\n")
    assert make_report(request).rebuilt
    assert (current_inputs(request) == before) == (what not in ("point", "tag", "parameter", "request"))
    assert not make_report(request).rebuilt


def test_what_concerns_other_runs_changes_nothing(demo_request: ReportRequest) -> None:
    make_report(demo_request)
    client = MlflowClient(demo_request.uri)
    other = client.create_run("1", tags={schema.sweep_tag("other"): "x", schema.TAG_RUN_ID: "x"}).info.run_id
    client.log_metric(other, "train/reward", 0.5)
    client.set_tag(runs_of(demo_request)[0], schema.TAG_NOTE, "a word on this run")
    assert not make_report(demo_request).rebuilt


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", '{"files": {}}', "[" * 100_000, '{"files": {"../x": "1"}, "store": [], "report": "a"}',
        '{"files": [], "inputs": 1}', "\x00" * 10,
    ],
)  # fmt: skip
def test_a_marker_that_says_nothing_is_as_good_as_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / MARKER).write_text(text)
    assert read_marker(tmp_path) is None


def add_seed(request: ReportRequest, variant: str, seed: int) -> ReportRequest:
    """One more run in the store, and in the declaration."""
    client = MlflowClient(request.uri)
    tags = {
        **{schema.TAG_RUN_ID: f"{variant}-{seed}", schema.TAG_RULE: variant, schema.TAG_MODEL: "mini_base"},
        **{schema.TAG_CORE: "mini", schema.TAG_SEED: str(seed), schema.TAG_T_STOP: "40"},
        **{schema.TAG_STATUS: schema.DONE, schema.sweep_tag("demo"): variant},
    }
    run = client.create_run("1", tags=tags).info.run_id
    points = [
        Metric(schema.validation_metric(name, 8), 0.4 + step / 1000, step, step)
        for name in ("chain24", "chain25", "chain26")
        for step in (0, 10, 20, 30, 40)
    ]
    client.log_batch(run, metrics=points)
    client.set_terminated(run)
    more = ExpectedRun(f"{variant}-{seed}", "mini_base", variant, seed)
    return replace(request, expected=(*request.expected, more))


def test_a_new_seed_draws_only_what_it_is_in(demo_request: ReportRequest, made: list[str]) -> None:
    make_report(demo_request)
    drawn = len(made)
    assert drawn > 3
    made.clear()
    wider = add_seed(demo_request, "cppo", 2)
    before = contents(demo_request.out)
    assert make_report(wider).rebuilt
    after = contents(demo_request.out)
    assert before["runs.csv"] != after["runs.csv"]
    assert before["figure_curves.svg"] != after["figure_curves.svg"]
    # It logged no diagnostics: the panels of the page are the same, while the files name the runs behind them.
    assert 0 < len(made) < drawn
    made.clear()
    make_report(replace(wider, question="Another question?"))
    assert made == []


def test_force_draws_everything_again(demo_request: ReportRequest, made: list[str]) -> None:
    make_report(demo_request)
    first = sorted(made)
    made.clear()
    make_report(demo_request, force=True)
    assert sorted(made) == first


def test_a_broken_drawing_is_drawn_again(
    demo_request: ReportRequest, tmp_path: Path, made: list[str]
) -> None:
    make_report(demo_request)
    before = contents(demo_request.out)
    kept = sorted((tmp_path / "drawings").rglob("*.svg"))
    kept[0].write_bytes(kept[0].read_bytes()[:-5])
    kept[1].write_bytes(b"")
    made.clear()
    shutil.rmtree(demo_request.out)
    make_report(demo_request)
    assert len(made) == 2
    assert contents(demo_request.out) == before


def copies(empty_store: Path, source: str, folder: Path, order: Sequence[int]) -> str:
    """A store with the runs of another, under other ids, made in this order at other times."""
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    old, new = MlflowClient(source), MlflowClient(uri)
    new.create_experiment("another")  # so that the numbers of experiments differ too
    number = new.create_experiment(schema.experiment_name("mini"))
    found = old.search_runs(["1"], order_by=["attributes.start_time ASC"])
    for position, index in enumerate(order):
        run = found[index]
        tags = {name: value for name, value in run.data.tags.items() if name.startswith("cppo.")}
        made = new.create_run(number, start_time=10_000 + position, tags=tags).info.run_id
        for name in sorted(run.data.metrics, reverse=bool(position % 2)):
            history = old.get_metric_history(run.info.run_id, name)
            if position % 2:
                history = history[::-1]
            new.log_batch(made, metrics=[Metric(name, one.value, one.timestamp, one.step) for one in history])
        new.set_terminated(made)
    return uri


def without_ids(request: ReportRequest) -> Iterator[tuple[str, bytes]]:
    """The files with MLflow's ids of runs as the ids of the configurations, experiments as N. The marker is
    about the store.
    """
    ids = {run.info.run_id: run.data.tags[schema.TAG_RUN_ID] for run in found_runs(request)}
    for name, data in contents(request.out).items():
        if name == MARKER:
            continue
        for old, new in ids.items():
            data = data.replace(old.encode(), new.encode())
        yield name, re.sub(rb"#/experiments/\d+/", b"#/experiments/N/", data)


def found_runs(request: ReportRequest) -> list:  # type: ignore[type-arg]
    client = MlflowClient(request.uri)
    experiment = client.get_experiment_by_name(request.experiment)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


@pytest.mark.parametrize("order", [(3, 1, 0, 2), (2, 3, 1, 0)])
def test_equal_runs_give_equal_bytes_in_whatever_order_they_came(
    demo_request: ReportRequest, empty_store: Path, tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Only MLflow's own ids differ, in the list of runs and the page; not even they do in the other files."""
    make_report(demo_request)
    uri = copies(empty_store, demo_request.uri, tmp_path / "other", order)
    other = replace(demo_request, uri=uri, out=tmp_path / "other" / "report")
    make_report(other, force=True)  # drawn again: kept drawings would be equal by themselves
    first, second = contents(demo_request.out), contents(other.out)
    differing = {name for name in first if first[name] != second.get(name)} - {MARKER}
    assert differing <= {"runs.csv", "index.html", "report.json"}  # the last has the page's fingerprint
    records = [json.loads(files["report.json"]) for files in (first, second)]
    for record in records:
        record["files"] = {name: digest for name, digest in record["files"].items() if name not in differing}
    assert records[0] == records[1]
    sides = [
        {name: data for name, data in without_ids(one) if name != "report.json"}
        for one in (demo_request, other)
    ]
    assert sides[0] == sides[1]


def test_a_refused_report_stays_refused(demo_request: ReportRequest) -> None:
    """A report that is up to date is no answer to another question."""
    make_report(demo_request)
    more = replace(demo_request, expected=(*demo_request.expected, ExpectedRun("x", "mini_base", "cppo", 9)))
    with pytest.raises(UserError, match="missing"):
        make_report(more)
    assert not make_report(demo_request).rebuilt


def test_two_processes_draw_what_one_draws(
    demo_request: ReportRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_report(demo_request, force=True)
    alone = contents(demo_request.out)
    monkeypatch.setattr(drawings, "_may_fork", lambda: True)
    make_report(demo_request, force=True)
    assert contents(demo_request.out) == alone


def drawings_of(folder: Path) -> list[partial[dict[str, bytes]]]:
    """Calls that make five drawings, each of which leaves a file that names the process."""

    def draw(number: int) -> dict[str, bytes]:
        (folder / f"{number}.{os.getpid()}.drawn").touch()
        return {"svg": str(number).encode()}

    return [partial(drawings.kept_drawings, ("figure", n), ("svg",), partial(draw, n)) for n in range(5)]


def test_each_drawing_is_made_once_by_one_of_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawings, "_may_fork", lambda: True)
    monkeypatch.setattr(drawings, "LEAST_PATIENCE", CEILING_SECONDS)
    calls = drawings_of(tmp_path)
    calls[1]()  # is cached already
    drawings.draw_ahead(calls)
    assert [call()["svg"] for call in calls] == [b"0", b"1", b"2", b"3", b"4"]
    drawn = sorted(path.name.split(".")[0] for path in tmp_path.glob("*.drawn"))
    assert drawn == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("helper", [signal.pause, partial(os._exit, 1)])
def test_a_helper_that_fails_costs_its_own_drawing_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: Callable[[], None]
) -> None:
    def take_one(calls: object, queue: FileIO) -> None:
        queue.read(2)
        helper()

    monkeypatch.setattr(drawings, "_may_fork", lambda: True)
    monkeypatch.setattr(drawings, "_help", take_one)
    monkeypatch.setattr(drawings, "LEAST_PATIENCE", 0.0)
    calls = drawings_of(tmp_path)
    drawings.draw_ahead(calls)
    assert len(list(tmp_path.glob("*.drawn"))) >= 4
    assert [call()["svg"] for call in calls] == [b"0", b"1", b"2", b"3", b"4"]


def test_without_a_place_for_drawings_they_are_made(
    demo_request: ReportRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(drawings, "FOLDER", tmp_path / "file" / "drawings")
    assert make_report(demo_request).rebuilt


def test_a_figure_that_cannot_be_told_from_others_is_always_drawn(made: list[str]) -> None:
    count = []

    def draw(figure: Figure) -> None:
        count.append(figure)

    for _ in range(2):
        assert drawings.kept_drawings(draw, ("svg",), lambda: {"svg": b"x"}) == {"svg": b"x"}
    assert made == []
