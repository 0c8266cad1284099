"""Whole searches, from the command line to MLflow; the curves are made up, but in the last tests."""

import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from optuna.trial import FrozenTrial, TrialState

from cppo_lab import schema
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.cli import main
from cppo_lab.core_records import CHECKPOINT
from cppo_lab.errors import UserError
from cppo_lab.search import worker
from cppo_lab.search.study import numbered
from cppo_lab.search.worker import TRIES, TrainingFailed
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.read import attempts_at
from tests.conftest import user_error
from tests.jobs import job
from tests.recorded import history, mlflow_client, mlflow_runs
from tests.search.made_search import (
    Score,
    constant,
    optunas,
    search_values,
    training,
    waiting_behind,
    write_search,
)
from tests.search.terminals import ForkedRuns
from tests.servers.forked import Gate
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("workspace")
TUNE = ["tune", "./tune.yaml", "launcher=inline"]
FOLDER = Path("runs/searches/tune-mini_base")


def made_up(monkeypatch: pytest.MonkeyPatch, score: Score = constant) -> list[RunSpec]:
    """Let `score` stand for training; what was trained comes back."""
    trained: list[RunSpec] = []
    monkeypatch.setattr("cppo_lab.search.worker.train", training(score, trained))
    return trained


def tune(*words: str, code: int = 0, **changes: Any) -> list[FrozenTrial]:
    """`cppo tune` of a search with these `changes`, and the trials of its study."""
    seeds = changes.pop("seeds", [0])
    write_search({**search_values(**changes), "seeds": seeds})
    assert main([*TUNE, *words]) == code
    return numbered(optunas(words[-1]) if "--study" in words else optunas())


def recorded() -> tuple[list[Run], list[Run], list[Run]]:
    """The MLflow runs of searches, of trials, and of training."""
    searches = [run for run in mlflow_runs(tag=schema.TAG_SEARCH) if schema.TAG_TRIAL not in run.data.tags]
    return searches, mlflow_runs(tag=schema.TAG_TRIAL), mlflow_runs()


def content() -> dict[str, Any]:
    return dict(json.loads((FOLDER / "search.json").read_text()))


def test_a_search_is_recorded_and_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = made_up(monkeypatch)
    ended = tune()
    assert [trial.state for trial in ended] == [TrialState.COMPLETE] * 4
    best = max(ended, key=lambda trial: trial.value or 0)
    (out, err), file = capsys.readouterr(), content()
    assert f"{best.number}      {best.value:.4f}" in out
    assert "The report: cppo report ./tune.yaml" in out and err.count("started") == 4
    assert (file["format"], file["study"], file["best"]) == (1, "tune-mini_base", [best.number])

    [search], records, _ = recorded()
    assert search.data.tags[schema.TAG_SEARCH] == "tune-mini_base"
    assert (search.info.status, search.data.tags[schema.TAG_STATUS]) == ("FINISHED", "done")
    assert "4 of 4 trials done" in search.data.tags["mlflow.note.content"]
    for trial, spec, record, written in zip(ended, trained, records, file["trials"], strict=True):
        w_min = spec.rule.w_min
        assert (trial.params["rule.w_min"], trial.value) == pytest.approx((w_min, w_min * (1 + 3 + 5) / 30))
        assert spec.seed == 0 and trial.user_attrs["run_ids"] == [spec.run_id]
        tags = {
            schema.TAG_TRIAL: str(trial.number),
            schema.TAG_PARENT: search.info.run_id,
            schema.TAG_TRIAL_RUNS: spec.run_id,
        }
        assert tags.items() <= record.data.tags.items()
        assert (record.info.run_id, record.info.status) == (trial.user_attrs["mlflow_id"], "FINISHED")
        assert record.data.params.keys() == {"rule.delta_b", "rule.w_min"}
        assert record.data.metrics["search/final_score"] == trial.value
        assert all(map(schema.is_known_metric, record.data.metrics))
        assert history(record, "search/score") == trial.intermediate_values == dict(written["curve"])
        assert written["values"] == [trial.value]

    for words, count in (([], 4), (["--trials", "9"], 9)):  # nothing is left; then more are
        tune(*words)
        assert len(trained) == count
    assert [trial["number"] for trial in content()["trials"]] == list(range(9))
    assert len(recorded()[0]) == 1
    capsys.readouterr()
    assert main(["plan", "./tune.yaml"]) == 0
    assert "4 trials (4 done)" in capsys.readouterr().out
    tune("training.t_stop=8", code=2)
    assert "training.t_stop was 4, is 8" in capsys.readouterr().err


def test_seeds_are_averaged_and_their_curves_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, lambda spec, step: 0.1 * spec.seed + 0.01 * step)
    [trial] = tune(trials=1, seeds=[1, 3])
    assert trial.value == pytest.approx(0.2 + 0.02)
    assert trial.intermediate_values == pytest.approx({0: 0.1, 2: 0.12, 4: 0.14, 6: 0.22, 8: 0.24})
    assert len(trial.user_attrs["run_ids"]) == 2


def test_a_bad_trial_is_pruned_where_its_running_score_is_below_the_median(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Optuna sets the best score so far against the median of the others at that step."""
    trained = made_up(monkeypatch, lambda spec, step: 0.5 if len(trained) > 6 else 0.5 + step / 100)
    *complete, pruned = tune(pruner={"name": "median", "startup": 3, "warmup_steps": 1}, seeds=[0, 1])
    assert [trial.state for trial in complete] == [TrialState.COMPLETE] * 3
    assert (pruned.state, pruned.intermediate_values) == (TrialState.PRUNED, {0: 0.5, 2: 0.5})
    assert len(trained) == 7  # its second seed never began
    assert pruned.user_attrs["reason"] == "pruned by the search at step 2"
    assert "trial 3: pruned: pruned by the search at step" in capsys.readouterr().err
    record, written = recorded()[1][3], content()["trials"][3]
    assert record.info.status == "FINISHED" and written["values"] is None
    assert written["state"] == record.data.tags[schema.TAG_STATUS] == "pruned"


def test_an_interrupted_trial_is_taken_up_in_its_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(spec: RunSpec, step: int) -> float:
        if step == 4:
            signal.raise_signal(signal.SIGINT)
        return constant(spec, step)

    made_up(monkeypatch, interrupted)
    begun, waiting = tune(trials=2, code=130)
    assert "run the same command to continue" in capsys.readouterr().err
    assert begun.state is waiting.state is TrialState.WAITING
    assert begun.params and begun.intermediate_values and not waiting.params
    [before] = recorded()[1]
    assert before.info.status == "KILLED"
    assert main(["plan", "./tune.yaml"]) == 0
    assert "2 trials (2 left)" in capsys.readouterr().out

    made_up(monkeypatch)
    first, second = tune(trials=2)
    assert (first.number, second.number, first.params) == (0, 1, begun.params)
    assert [run.info.run_id for run in recorded()[1]] == [before.info.run_id, second.user_attrs["mlflow_id"]]
    assert before.info.run_id == begun.user_attrs["mlflow_id"] == first.user_attrs["mlflow_id"]
    assert sorted(history(before, "search/score")) == [0, 2, 4]


def test_several_objectives_give_a_pareto_front(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up(monkeypatch, lambda spec, step: {0: 0.5, 2: 0.9, 4: 0.9 - (spec.rule.w_min or 0)}[step])
    changes = {"objectives": ["best_score", "stability"], "sampler": {"name": "nsga2", "startup": 4}}
    write_search(search_values(trials=6, **changes))
    assert main([*TUNE, "--storage", "studies.journal"]) == 0
    values = [trial["values"] for trial in content()["trials"]]
    assert len(values) == 6
    assert content()["best"] == [
        number
        for number, (a, b) in enumerate(values)
        if not any(c >= a and d >= b and [c, d] != [a, b] for c, d in values)
    ]
    assert "Pareto front:" in capsys.readouterr().out
    assert Path("studies.journal").is_file() and not Path("optuna.db").exists()


@pytest.fixture
def gate(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Where runs wait, which are forked; as long as no step is named, they go to their end."""
    gate = Gate(workspace / "gate")
    monkeypatch.setattr("cppo_lab.launch.launchers.multiprocessing", ForkedRuns(gate))
    return gate


def test_a_trial_whose_run_is_cancelled_fails_at_once(gate: Gate) -> None:
    gate.let(2)

    def cancel() -> int:
        [folder] = until("the run waits behind its second step", lambda: waiting_behind(2))
        return main(["cancel", "--run", folder.name])

    with ThreadPoolExecutor() as pool:
        cancelled = pool.submit(cancel)
        [trial] = tune(trials=1)
    assert cancelled.result() == 0
    assert (trial.state, trial.user_attrs["reason"]) == (TrialState.FAIL, "its run was cancelled")


def test_a_real_run_is_trained_once_and_serves_every_search(gate: Gate) -> None:
    [first] = tune(trials=1)
    [second] = tune("--study", "other", trials=1)  # draws the same point
    assert first.params == second.params and first.values == second.values
    assert first.intermediate_values == second.intermediate_values
    searches, records, [run] = recorded()
    assert (len(searches), len(records)) == (2, 2)
    assert run.data.tags[schema.TAG_PARENT] == first.user_attrs["mlflow_id"]
    assert run.data.tags[schema.sweep_tag("tune")] == "trial 0"

    # Nothing that reads training runs takes a search or a trial for one.
    [run_id] = first.user_attrs["run_ids"]
    assert list(read_sweep(tracking_uri(), "cppo-mini", "tune", run_ids=[run_id]).runs["run_id"]) == [run_id]
    with user_error("has no run of sweep"):
        read_sweep(tracking_uri(), "cppo-mini", "tune-mini_base")
    [attempt] = attempts_at(mlflow_client(), "cppo-mini", run_id)
    assert attempt.mlflow_id == run.info.run_id


def test_an_error_in_training_fails_the_trial_with_its_reason(
    capsys: pytest.CaptureFixture[str], gate: Gate
) -> None:
    Path("runs").mkdir()
    Path("runs/warm_starts").write_text("")  # a file where a folder must be
    [trial] = tune(trials=1)
    reason = trial.user_attrs["reason"]
    assert trial.state is TrialState.FAIL and re.search("FileExistsError|NotADirectoryError", reason)
    printed, [written] = capsys.readouterr().out, content()["trials"]
    assert "1 trials (1 FAILED)" in printed and f"trial 0 FAILED: {reason}" in printed
    _, [record], [run] = recorded()
    assert written["state"] == "failed" and record.info.status == run.info.status == "FAILED"
    assert written["reason"] == record.data.tags[schema.TAG_REASON] == reason


def test_a_pruned_run_ends_in_order_and_can_be_continued(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    long = ["training.t_stop=8", "training.collapse_share=0"]
    changes = {"trials": 1, "pruner": {"name": "median"}}
    gate.let(5)  # where it waits until it is pruned
    with monkeypatch.context() as patch:
        patch.setattr(
            "optuna.trial.Trial.should_prune", lambda self: self.study.trials[self.number].last_step > 3
        )
        [trial] = tune(*long, **changes)
    assert (trial.state, trial.last_step) == (TrialState.PRUNED, 4)
    _, [record], [run] = recorded()
    reason = "pruned by the search at step 4"
    assert run.info.status != "FINISHED"
    assert record.data.tags[schema.TAG_REASON] == run.data.tags[schema.TAG_REASON] == reason
    assert (workspace / "runs" / run.data.tags[schema.TAG_RUN_ID] / CHECKPOINT).exists()
    gate.open()
    [again] = tune(*long, "--study", "again", **changes)
    assert again.state is TrialState.COMPLETE
    assert [run.info.status for run in recorded()[2]] == ["FINISHED"]


def test_hyperband_prunes(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch)
    ended = tune(trials=12, pruner={"name": "hyperband"})
    assert len(ended) == 12
    assert {trial.state for trial in ended} == {TrialState.COMPLETE, TrialState.PRUNED}


def test_why_a_worker_has_stopped_is_in_the_tuners_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stops(fault: Exception, *_: object) -> None:
        with (FOLDER / worker.STOPPED).open("a") as file:
            file.write("A worker of another `cppo tune`\n")
        raise fault

    for fault, said in (
        (UserError("the store is away"), "the store is away"),
        (OSError("pw at http://u:pw@h"), "OSError: pw at http://u:***@h"),
    ):
        monkeypatch.setattr("cppo_lab.search.worker.train", partial(stops, fault))
        tune(code=1)
        others = "a worker has stopped: A worker of another `cppo tune`"
        lines = f"\n{others}\na worker has stopped: {said}\nrun the same command"
        assert lines in capsys.readouterr().out
    made_up(monkeypatch)
    tune()
    assert "a worker has stopped" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "end, error, said",
    [
        # As on a full disk: the trial goes back, and does not count.
        (None, UserError, "run {} is trained, but the tracking store does not have it"),
        ("signal 9", TrainingFailed, f"its process ended {TRIES} times before its last step: signal 9"),
    ],
)
def test_a_run_that_comes_to_no_end_is_tried_again(
    tmp_path: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch, end: str | None, error: type[Exception],
    said: str,
) -> None:  # fmt: skip
    attempt = job(tiny_spec, tmp_path / "runs", "sqlite:///mlflow.db", created=1000.0).attempts[0]
    attempt.folder.mkdir(parents=True)
    monkeypatch.setattr("cppo_lab.search.worker._train_here", train := Mock(return_value=end))
    monkeypatch.setattr("cppo_lab.search.worker.Run.finished", lambda run: None)
    with pytest.raises(error, match=said.format(tiny_spec.run_id)) as caught:
        worker.train(worker.Run(attempt, MlflowClient(), "", {}), lambda points, may_end: None)
    assert "\n" not in str(caught.value)
    assert train.call_count == TRIES + (end is None)
