"""Whole searches, from the command line to MLflow; the curves are made up, but in the last tests."""

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Engine, event

from cppo_lab import schema
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.cli import main
from cppo_lab.cores.base import CHECKPOINT
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import CANCELLED
from cppo_lab.runs.spool import read_rows
from cppo_lab.search import worker
from cppo_lab.search.study import numbered
from cppo_lab.search.worker import TRIES, TrainingFailed
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.read import attempts_at
from cppo_lab.tracking.search_record import Point, TrialRecord
from tests.jobs import job
from tests.search.made_search import search_values, write_search
from tests.search.terminals import ForkedRuns
from tests.servers.forked import Gate
from tests.tracking.test_client import is_locked
from tests.waiting import until

TUNE = ["tune", "./tune.yaml", "launcher=inline"]
FOLDER = Path("runs/searches/tune-mini_base")
Score = Callable[[RunSpec, int], float]


def constant(spec: RunSpec, step: int) -> float:
    """A run whose score rises with the position weight, step by step."""
    assert spec.rule.w_min is not None
    return spec.rule.w_min * (1 + step) / 10


def made_up(monkeypatch: pytest.MonkeyPatch, score: Score) -> list[RunSpec]:
    """Let `score` stand for training; what was trained comes back."""
    trained: list[RunSpec] = []

    def train(run: worker.Run, see: worker.See) -> list[Point]:
        spec, points = run.attempt.spec, []
        trained.append(spec)
        for step in range(0, spec.training.t_stop + 1, spec.validation.every):
            points.append(Point(step, score(spec, step), 1_700_000_000_000 + step))
            see(points, True)
        return points

    monkeypatch.setattr("cppo_lab.search.worker.train", train)
    return trained


def trials(study: str = "tune-mini_base", storage: str = "sqlite:///optuna.db") -> list[FrozenTrial]:
    return numbered(optuna.load_study(study_name=study, storage=storage).get_trials())


def recorded() -> tuple[list[Run], list[Run], list[Run]]:
    """The MLflow runs of searches, of trials, and of training."""
    client = open_client(tracking_uri())
    experiment = client.get_experiment_by_name("cppo-mini")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    trial = [run for run in runs if schema.TAG_TRIAL in run.data.tags]
    search = [run for run in runs if schema.TAG_SEARCH in run.data.tags and run not in trial]
    return search, trial, [run for run in runs if schema.TAG_RUN_ID in run.data.tags]


def content() -> dict[str, Any]:
    return dict(json.loads((FOLDER / "search.json").read_text()))


def test_a_search_is_recorded_and_goes_on_where_it_was(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = made_up(monkeypatch, constant)
    write_search(search_values())
    assert main(TUNE) == 0
    found = trials()
    assert [trial.state for trial in found] == [TrialState.COMPLETE] * 4
    for trial, spec in zip(found, trained, strict=True):
        w_min = round(trial.params["rule.w_min"], 9)
        assert (spec.rule.w_min, spec.seed) == (w_min, 0)
        assert trial.value == pytest.approx(w_min * (1 + 3 + 5) / 30)
        assert trial.user_attrs["run_ids"] == [spec.run_id]

    [search], of_trials, _ = recorded()
    assert search.data.tags[schema.TAG_SEARCH] == "tune-mini_base"
    assert (search.info.status, search.data.tags[schema.TAG_STATUS]) == ("FINISHED", "done")
    assert "4 of 4 trials done" in search.data.tags["mlflow.note.content"]
    assert [run.data.tags[schema.TAG_TRIAL] for run in of_trials] == ["0", "1", "2", "3"]
    for trial, run in zip(found, of_trials, strict=True):
        tags = run.data.tags
        assert (run.info.run_id, run.info.status) == (trial.user_attrs["mlflow_id"], "FINISHED")
        assert tags[schema.TAG_PARENT] == search.info.run_id
        assert tags[schema.TAG_TRIAL_RUNS] == trial.user_attrs["run_ids"][0]
        assert run.data.params.keys() == {"rule.delta_b", "rule.w_min"}
        assert run.data.metrics["search/final_score"] == trial.value
        points = open_client(tracking_uri()).get_metric_history(run.info.run_id, "search/score")
        assert {point.step: point.value for point in points} == trial.intermediate_values
    assert all(schema.is_known_metric(name) for run in of_trials for name in run.data.metrics)

    best = max(found, key=lambda trial: trial.value or 0)
    out = capsys.readouterr()
    assert f"{best.number}      {best.value:.4f}" in out.out
    assert "The report: cppo report ./tune.yaml" in out.out
    assert out.err.count("started") == 4
    file = content()
    assert (file["format"], file["study"], file["best"]) == (1, "tune-mini_base", [best.number])
    assert file["trials"][0]["values"] == [found[0].value]
    assert file["trials"][0]["curve"] == [
        [step, value] for step, value in found[0].intermediate_values.items()
    ]

    assert main(TUNE) == 0
    assert len(trained) == 4  # nothing is left
    assert main([*TUNE, "--trials", "9"]) == 0
    assert len(trained) == 9
    file = content()
    assert [trial["number"] for trial in file["trials"]] == list(range(9))
    assert len(recorded()[0]) == 1

    assert main(["plan", "./tune.yaml"]) == 0
    assert "4 trials (4 done)" in capsys.readouterr().out
    assert main([*TUNE, "training.t_stop=8"]) == 2
    assert "training.t_stop was 4, is 8" in capsys.readouterr().err


def test_seeds_are_averaged_and_their_curves_follow_each_other(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch, lambda spec, step: 0.1 * spec.seed + 0.01 * step)
    write_search({**search_values(trials=1), "seeds": [1, 3]})
    assert main(TUNE) == 0
    [trial] = trials()
    assert trial.value == pytest.approx(0.2 + 0.02)
    assert trial.intermediate_values == pytest.approx({0: 0.1, 2: 0.12, 4: 0.14, 6: 0.22, 8: 0.24})
    assert len(trial.user_attrs["run_ids"]) == 2


def test_a_bad_trial_is_pruned_where_its_running_score_is_below_the_median(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Optuna sets the best score so far against the median of the others at that step."""
    seen: list[str] = []

    def score(spec: RunSpec, step: int) -> float:
        seen.append(spec.run_id)
        return 0.5 if len(set(seen)) > 6 else 0.5 + step / 100

    trained = made_up(monkeypatch, score)
    pruner = {"name": "median", "startup": 3, "warmup_steps": 1}
    write_search({**search_values(pruner=pruner), "seeds": [0, 1]})
    assert main(TUNE) == 0
    found = trials()
    assert [trial.state.name for trial in found] == ["COMPLETE"] * 3 + ["PRUNED"]
    assert found[3].intermediate_values == {0: 0.5, 2: 0.5}
    assert len(trained) == 7  # its second seed never began
    assert found[3].user_attrs["reason"] == "pruned by the search at step 2"
    assert "trial 3: pruned: pruned by the search at step" in capsys.readouterr().err
    _, of_trials, _ = recorded()
    assert (of_trials[3].info.status, of_trials[3].data.tags[schema.TAG_STATUS]) == ("FINISHED", "pruned")
    file = content()["trials"][3]
    assert (file["state"], file["values"]) == ("pruned", None)


def test_a_failed_trial_counts_and_is_said(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = made_up(monkeypatch, constant)

    def score(spec: RunSpec, step: int) -> float:
        if len(calls) == 2:
            raise TrainingFailed("RuntimeError: no memory left")
        return constant(spec, step)

    calls = made_up(monkeypatch, score)
    write_search(search_values())
    assert main(TUNE) == 0
    assert [trial.state.name for trial in trials()] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    out = capsys.readouterr().out
    assert "4 trials (3 done, 1 FAILED)" in out
    assert "trial 1 FAILED: RuntimeError: no memory left" in out
    _, of_trials, _ = recorded()
    assert [run.info.status for run in of_trials] == ["FINISHED", "FAILED", "FINISHED", "FINISHED"]
    assert of_trials[1].data.tags[schema.TAG_REASON] == "RuntimeError: no memory left"
    assert content()["trials"][1]["reason"] == "RuntimeError: no memory left"


def test_an_interrupted_trial_is_taken_up_in_its_own_record(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_search(search_values(trials=2))

    def interrupted(spec: RunSpec, step: int) -> float:
        if step == 4:
            raise KeyboardInterrupt
        return constant(spec, step)

    made_up(monkeypatch, interrupted)
    assert main(TUNE) == 130
    assert "run the same command to continue" in capsys.readouterr().err
    [begun, waiting] = trials()
    assert (begun.state, waiting.state) == (TrialState.WAITING, TrialState.WAITING)
    assert begun.params and begun.intermediate_values and not waiting.params
    assert [run.info.status for run in recorded()[1]] == ["KILLED"]
    assert main(["plan", "./tune.yaml"]) == 0
    assert "2 trials (2 left)" in capsys.readouterr().out

    made_up(monkeypatch, constant)
    assert main(TUNE) == 0
    found = trials()
    assert [trial.number for trial in found] == [0, 1]
    assert found[0].params == begun.params
    _, of_trials, _ = recorded()
    assert [run.info.run_id for run in of_trials] == [trial.user_attrs["mlflow_id"] for trial in found]
    assert of_trials[0].info.run_id == begun.user_attrs["mlflow_id"]
    points = open_client(tracking_uri()).get_metric_history(of_trials[0].info.run_id, "search/score")
    assert sorted(point.step for point in points) == [0, 2, 4]


def test_several_objectives_give_a_pareto_front(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def score(spec: RunSpec, step: int) -> float:
        return {0: 0.5, 2: 0.9, 4: 0.9 - (spec.rule.w_min or 0)}[step]

    made_up(monkeypatch, score)
    sampler = {"name": "nsga2", "startup": 4}
    write_search(search_values(trials=10, objectives=["best_score", "stability"], sampler=sampler))
    assert main([*TUNE, "--storage", "studies.journal"]) == 0
    file = content()
    values = {trial["number"]: trial["values"] for trial in file["trials"]}
    front = [
        n
        for n, (a, b) in values.items()
        if not any(c >= a and d >= b and (c, d) != (a, b) for c, d in values.values())
    ]
    assert file["best"] == front
    assert len(values) == 10
    assert "Pareto front:" in capsys.readouterr().out
    assert Path("studies.journal").is_file()
    assert not Path("optuna.db").exists()


@pytest.fixture
def gate(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Where runs wait, which are forked; as long as no step is named, they go to their end."""
    found = Gate(workspace / "gate")
    monkeypatch.setattr(worker, "multiprocessing", ForkedRuns(found))
    return found


def test_a_trial_whose_run_is_cancelled_fails_at_once(workspace: Path, gate: Gate) -> None:
    write_search(search_values(trials=1))
    gate.let(2)
    cancelled: list[int] = []

    def cancel() -> None:
        [folder] = until("the run waits behind its second step", waiting)
        cancelled.append(main(["cancel", "--run", folder.name]))

    def waiting() -> list[Path]:
        folders = [path.parent for path in Path("runs").glob("*/lock")]
        return [folder for folder in folders if (rows := read_rows(folder)) and rows[-1].step == 2]

    canceller = threading.Thread(target=cancel)
    canceller.start()
    assert main(TUNE) == 0
    canceller.join()
    assert cancelled == [0]
    [trial] = trials()
    assert (trial.state, trial.user_attrs["reason"]) == (TrialState.FAIL, "its run was cancelled")


def test_a_real_run_is_trained_once_and_serves_every_search(workspace: Path, gate: Gate) -> None:
    write_search(search_values(trials=1))
    assert main(TUNE) == 0
    assert main([*TUNE, "--study", "other"]) == 0  # draws the same point
    [one], [two] = trials(), trials("other")
    assert (one.params, one.value, one.intermediate_values) == (
        two.params,
        two.value,
        two.intermediate_values,
    )
    searches, of_trials, [training_run] = recorded()
    assert (len(searches), len(of_trials)) == (2, 2)
    assert training_run.data.tags[schema.TAG_PARENT] == one.user_attrs["mlflow_id"]  # the first one's
    assert training_run.data.tags[schema.sweep_tag("tune")] == "trial 0"

    # Nothing that reads training runs takes a search or a trial for one.
    [run_id] = one.user_attrs["run_ids"]
    data = read_sweep(tracking_uri(), "cppo-mini", "tune", run_ids=[run_id])
    assert list(data.runs["run_id"]) == [run_id]
    with pytest.raises(UserError, match="has no run of sweep"):
        read_sweep(tracking_uri(), "cppo-mini", "tune-mini_base")
    [attempt] = attempts_at(open_client(tracking_uri()), "cppo-mini", run_id)
    assert attempt.mlflow_id == training_run.info.run_id


def test_an_error_in_training_fails_the_trial_with_its_reason(
    workspace: Path, capsys: pytest.CaptureFixture[str], gate: Gate
) -> None:
    Path("runs").mkdir()
    Path("runs/warm_starts").write_text("")  # a file where a folder must be
    write_search(search_values(trials=1))
    assert main(TUNE) == 0
    [trial] = trials()
    assert trial.state is TrialState.FAIL
    assert (
        "FileExistsError" in trial.user_attrs["reason"] or "NotADirectoryError" in trial.user_attrs["reason"]
    )
    _, [record], [run] = recorded()
    assert (record.info.status, run.info.status) == ("FAILED", "FAILED")
    assert trial.user_attrs["reason"] in capsys.readouterr().out


def test_a_pruned_run_ends_in_order_and_can_be_continued(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    values = search_values(trials=1, pruner={"name": "median"})
    write_search(values)
    long = [*TUNE, "training.t_stop=8", "training.collapse_share=0"]
    gate.let(5)  # where it waits until it is pruned
    with monkeypatch.context() as patch:
        patch.setattr(
            "optuna.trial.Trial.should_prune", lambda self: self.study.trials[self.number].last_step > 3
        )
        assert main(long) == 0
    [trial] = trials()
    assert (trial.state, trial.last_step) == (TrialState.PRUNED, 4)
    _, [record], [run] = recorded()
    reason = "pruned by the search at step 4"
    assert (run.info.status != "FINISHED", run.data.tags[schema.TAG_REASON]) == (True, reason)
    assert record.data.tags[schema.TAG_REASON] == reason
    assert (workspace / "runs" / run.data.tags[schema.TAG_RUN_ID] / CHECKPOINT).exists()
    gate.open()
    assert main([*long, "--study", "again"]) == 0
    assert trials("again")[0].state is TrialState.COMPLETE
    assert [run.info.status for run in recorded()[2]] == ["FINISHED"]


@pytest.mark.parametrize(
    ("sampler", "pruner"),
    [("tpe", "hyperband"), ("random", "hyperband"), ("nsga2", "median"), ("random", "none")],
)
def test_every_sampler_goes_with_every_pruner(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, sampler: str, pruner: str
) -> None:
    made_up(monkeypatch, constant)
    write_search(search_values(trials=12, sampler={"name": sampler, "startup": 4}, pruner={"name": pruner}))
    assert main(TUNE) == 0
    found = trials()
    assert len(found) == 12
    ended = {trial.state for trial in found}
    assert TrialState.COMPLETE in ended
    assert ended <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert (TrialState.PRUNED in ended) == (pruner != "none")


def test_ctrl_c_while_a_trial_is_recorded_leaves_the_store_free_for_its_end(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch, constant)
    write_search(search_values())
    sent, locked, pause = list[str](), list[bool](), TrialRecord.pause

    def behind(connection: object, cursor: object, text: str, *_: object) -> None:
        if text.startswith("INSERT INTO params"):
            sent.append(text)
            if len(sent) == 1:
                signal.raise_signal(signal.SIGINT)

    def seen(record: TrialRecord) -> None:
        locked.append(is_locked(Path("mlflow.db")))
        pause(record)

    monkeypatch.setattr(TrialRecord, "pause", seen)
    event.listen(Engine, "after_cursor_execute", behind)
    try:
        assert main(TUNE) == 130
    finally:
        event.remove(Engine, "after_cursor_execute", behind)
    assert locked and not any(locked)
    assert main(TUNE) == 0
    assert [trial.state for trial in trials()] == [TrialState.COMPLETE] * 4


@pytest.mark.parametrize(
    ("cancelled", "tries", "reason"),
    [
        (False, TRIES, f"its process ended {TRIES} times before its last step: signal 9"),
        (True, 1, "its run was cancelled"),
    ],
)
def test_a_run_whose_process_dies_is_tried_again_unless_it_is_cancelled(
    tmp_path: Path,
    tiny_spec: RunSpec,
    monkeypatch: pytest.MonkeyPatch,
    cancelled: bool,
    tries: int,
    reason: str,
) -> None:
    attempt = job(tiny_spec, tmp_path / "runs", "sqlite:///mlflow.db", created=1000.0).attempts[0]
    attempt.folder.mkdir(parents=True)
    if cancelled:
        (attempt.folder / CANCELLED).write_text("2000.0")
    tried: list[worker.Run] = []

    def die(run: worker.Run, see: object) -> str:
        tried.append(run)
        return "signal 9"

    monkeypatch.setattr(worker, "_train_here", die)
    monkeypatch.setattr(worker.Run, "finished", lambda run: None)
    with pytest.raises(TrainingFailed, match=reason):
        worker.train(worker.Run(attempt, MlflowClient(), "", {}), lambda points, may_end: None)
    assert len(tried) == tries
