"""The import of the paper's curves: what it writes, that it writes it once, and that it survives being killed."""

import operator
from dataclasses import replace
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.tracking.client import StoreClient
from cppo_lab.tracking.page import SweepText
from cppo_lab.tracking.read import histories, stored_run
from cppo_lab.tracking.reference import ReferenceRun, import_reference, nest_reference, reference_runs
from tests.conftest import Command, user_error

run_id = operator.attrgetter("info.run_id")


def stored(uri: str) -> dict[str, Run]:
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name(schema.PAPER).experiment_id])
    by_id = {run.data.tags[schema.TAG_RUN_ID]: run for run in runs if schema.TAG_RUN_ID in run.data.tags}
    assert len(by_id) == sum(schema.TAG_SWEEP_PARENT not in run.data.tags for run in runs)
    return by_id


def test_every_curve_is_one_run_in_the_schemas_names() -> None:
    """Their points and sweeps are checked as figures (test_paper_figures.py) and tables (test_audit.py)."""
    runs = {run.run_id: run for run in reference_runs()}
    assert len(runs) == 28 + 9  # shared ones are not doubled
    assert runs["paper-Qwen3-1.7B-cppo_soft"].rule == "cppo_soft"
    assert runs["paper-Qwen3-1.7B-Base-cppo_db0.03_w0.8"].rule == "cppo"
    assert all(schema.is_known_metric(name) for run in runs.values() for name in run.points)
    mean = runs["paper-Qwen3-8B-Base-cppo"].points["val/mean/avg_at_16"][420]
    assert mean == pytest.approx((0.345833 + 0.3 + 0.2875) / 3)
    assert "rule/delta_b_mean" not in runs["paper-Qwen3-8B-Base-dppo"].points


def test_the_store_says_what_the_runs_are_and_a_second_import_adds_nothing(reference_uri: str) -> None:
    runs = stored(reference_uri)
    assert len(runs) == 37
    run = runs["paper-Qwen3-30B-A3B-Base-cispo"]
    assert run.info.status == "FINISHED"
    tags = {
        schema.TAG_STATUS: schema.DONE,
        schema.TAG_CORE: schema.PAPER,
        schema.TAG_SEED: "unknown",
        schema.TAG_T_STOP: "560",
        schema.sweep_tag("main"): "cispo",
        "mlflow.runName": "cispo on Qwen3-30B-A3B-Base (paper)",
    }
    assert run.data.tags.items() >= tags.items()
    note = MlflowClient(reference_uri).get_experiment_by_name(schema.PAPER).tags[schema.TAG_NOTE]
    assert "not trained here" in note and "arxiv.org/abs/2606.10968" in note
    lines: list[str] = []
    assert import_reference(reference_uri, lines.append) == 0
    assert lines == ["reference: 0 runs added, 37 were there already"]
    assert {*map(run_id, stored(reference_uri).values())} == {*map(run_id, runs.values())}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs, each in three batches: points, points, status."""
    curve = {"val/mean/avg_at_16": {step: step / 10_000 for step in range(15)}}
    runs = [
        ReferenceRun(f"paper-m-{name}", "m", name, 100, {"main": name}, curve)
        for name in ("grpo", "dppo", "cppo")
    ]
    monkeypatch.setattr("cppo_lab.tracking.reference.reference_runs", lambda: runs)
    monkeypatch.setattr("cppo_lab.tracking.reference.BATCH", 10)


@pytest.mark.parametrize("calls_before_the_kill", [3, 4, 5, 6])
def test_a_killed_import_is_finished_by_the_next(
    monkeypatch: pytest.MonkeyPatch, uri: str, calls_before_the_kill: int, small: None
) -> None:
    """In the second run at each of its batches, and at the first of the third."""
    real, calls = MlflowClient.log_batch, iter(range(100))

    def killed(client: MlflowClient, *args: object, **more: object) -> None:
        if next(calls) == calls_before_the_kill:
            raise KeyboardInterrupt
        real(client, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr("mlflow.MlflowClient.log_batch", killed)
        with pytest.raises(KeyboardInterrupt):
            import_reference(uri)
    whole, left = calls_before_the_kill // 3, stored(uri)
    assert len(left) == whole + 1
    assert sum(run.data.tags[schema.TAG_STATUS] == schema.RUNNING for run in left.values()) == 1
    assert import_reference(uri) == 3 - whole
    runs = stored(uri)
    assert {*runs} == {"paper-m-grpo", "paper-m-dppo", "paper-m-cppo"}
    for run in runs.values():
        assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
        assert len(MlflowClient(uri).get_metric_history(run_id(run), "val/mean/avg_at_16")) == 15
    everything, client = [*map(stored_run, runs.values())], StoreClient(uri)
    point_by_point = str([*histories(client, [replace(run, artifact_uri="") for run in everything])])
    monkeypatch.setattr(client, "points", None)  # a report reads the file of each
    assert str([*histories(client, everything)]) == point_by_point
    assert run_id(runs["paper-m-grpo"]) == run_id(left["paper-m-grpo"])


def test_the_papers_runs_are_nested_as_ours_are_and_those_of_others_are_left_alone(
    uri: str, small: None
) -> None:
    import_reference(uri)
    client = MlflowClient(uri)
    number = client.get_experiment_by_name(schema.PAPER).experiment_id
    other = run_id(client.create_run(number, tags={schema.TAG_SWEEP_PARENT: ""}))
    for _ in range(2):  # again, it changes nothing
        nest_reference(uri, {"main": SweepText("main", "Main results", "Which?")})
        assert import_reference(uri) == 0
    runs = client.search_runs([number])
    (parent,) = [run for run in runs if run.data.tags.get(schema.TAG_SWEEP_PARENT) == "main"]
    children = stored(uri).values()
    assert {run.data.tags[schema.TAG_PARENT] for run in children} == {run_id(parent)}
    assert "runs: 3 (3 done)" in parent.data.tags[schema.TAG_NOTE]
    assert {*map(run_id, runs)} == {other, *map(run_id, (parent, *children))}
    client.delete_experiment(number)
    with user_error("was deleted"):
        import_reference(uri)


def test_a_store_that_goes_away_in_the_middle(cppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cppo_lab.tracking.reference._write", Mock(side_effect=MlflowException("gone")))
    assert "mlflow.db cannot be used: gone: check" in cppo("reference import", code=3).err
