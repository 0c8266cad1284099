"""Searches whose workers are killed: no trial is lost or run twice."""

import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from cppo_lab import schema
from cppo_lab.core_records import CHECKPOINT
from cppo_lab.runs.folder import holder, is_locked
from cppo_lab.runs.spool import files
from cppo_lab.search.study import numbered
from tests.recorded import history, mlflow_client, mlflow_runs
from tests.search.made_search import optunas, search_values, waiting_behind, write_search
from tests.search.terminals import LOG, Terminals, searching
from tests.servers.forked import Forked, Gate
from tests.waiting import until

INLINE = "launcher=inline"


@pytest.fixture
def search(workspace: Path) -> Iterator[Terminals]:
    with searching() as opened:
        yield opened


def wait_behind(step: int, count: int, worker: Forked) -> set[Path]:
    """The runs that wait behind a step, once there are so many."""

    def waiting() -> set[Path] | None:
        assert worker.alive(), LOG.read_text()
        folders = waiting_behind(step)
        return folders if len(folders) == count else None

    return until(f"{count} runs wait behind step {step}", waiting)


def assert_whole(search: Terminals, trains: bool) -> None:
    """Nothing is left, and every trial is there once: in the study and in MLflow, with its point, curve and value."""
    assert search.tune(INLINE, trains=trains).end() == 0, LOG.read_text()
    trials = numbered(optunas())
    assert [(trial.number, trial.state) for trial in trials] == [(n, TrialState.COMPLETE) for n in range(4)]
    assert len({str(trial.params) for trial in trials}) == 4  # no point was drawn twice
    records = {run.info.run_id: run for run in mlflow_runs(tag=schema.TAG_TRIAL)}
    trained = mlflow_runs()
    assert {run.info.status for run in [*records.values(), *trained]} == {"FINISHED"}
    assert len(records) == 4 and len(mlflow_runs(tag=schema.TAG_SEARCH)) == 5  # with the search's run
    run_ids = Counter(run_id for trial in trials for run_id in trial.user_attrs["run_ids"])
    assert Counter(run.data.tags[schema.TAG_RUN_ID] for run in trained) == (run_ids if trains else {})
    for trial in trials:
        record = records[trial.user_attrs["mlflow_id"]]
        assert record.data.tags[schema.TAG_TRIAL] == str(trial.number)
        assert record.data.metrics["search/final_score"] == trial.value
        assert history(record, "search/score") == trial.intermediate_values


def test_workers_are_killed_at_any_statement(search: Terminals) -> None:
    """To the study or to MLflow, each one later than the one before, which it follows. The curves are made up."""
    write_search(search_values())
    mlflow_client()  # its tables alone take hundreds
    for statement in itertools.count(20, 70):
        if (ended := search.tune(INLINE, kill=statement, trains=False).end()) == 0:
            break
        assert ended == -signal.SIGKILL, LOG.read_text()
    assert statement > 400
    assert_whole(search, trains=False)


def test_workers_are_killed_while_they_train(workspace: Path, search: Terminals) -> None:
    """One alone: its run lives on, and who takes the trial up waits for that. One with its run, which is continued."""
    write_search(search_values())
    gate, other = (Gate(workspace / name) for name in ("one", "other"))
    gate.let(3)
    other.let(3)
    first = search.tune(INLINE, gate=gate)
    [broken] = wait_behind(3, 1, first)
    second = search.tune(INLINE, gate=other)
    [orphaned] = wait_behind(3, 2, second) - {broken}

    second.kill()
    third = search.tune(INLINE)

    def is_repeated() -> bool:
        begun = [trial for trial in optunas() if trial.state is not TrialState.WAITING]
        return sum(orphaned.name in trial.user_attrs.get("run_ids", []) for trial in begun) == 2

    until("another worker has the trial", is_repeated)
    assert is_locked(orphaned) and third.alive()
    other.open()
    until("its run has come to its end", lambda: not is_locked(orphaned))

    held = holder(broken)
    first.kill()
    os.kill(held[1], signal.SIGKILL)
    until("the run is nobody's", lambda: not is_locked(broken))
    assert (broken / CHECKPOINT).exists()
    for worker in (third, search.tune(INLINE)):  # one of them may leave while the other still trains
        worker.end()
    assert_whole(search, trains=True)
    assert len(files(orphaned)) == 1  # nobody has trained it a second time
    assert len(files(broken)) == 2
