"""Searches whose workers are killed and interrupted, each at a point that has a name: no trial is lost or run twice."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from cppo_lab import schema
from cppo_lab.cores.base import CHECKPOINT
from cppo_lab.runs.folder import holder, is_held
from cppo_lab.runs.spool import files, read_rows
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client
from tests.search.made_search import search_values, write_search
from tests.search.points import POINTS
from tests.search.terminals import LOG, Terminals, searching
from tests.search.whole_search import STUDY, assert_search_is_whole, mlflow_runs, training_now, trials
from tests.servers.forked import Forked, Gate, KillAt
from tests.waiting import until

INLINE = "launcher=inline"


@pytest.fixture
def search(workspace: Path) -> Iterator[Terminals]:
    with searching() as opened:
        yield opened


def wait_at(step: int, count: int, runs: Path, worker: Forked) -> set[Path]:
    """The runs that have recorded a step and wait behind it, once there are so many."""

    def waiting() -> set[Path] | None:
        assert worker.alive(), LOG.read_text()
        found = {path.parent for path in runs.glob("*/lock") if is_held(path.parent)}
        found = {folder for folder in found if (rows := read_rows(folder)) and rows[-1].step == step}
        return found if len(found) == count else None

    return until(f"{count} runs wait behind step {step}", waiting)


def test_a_worker_is_killed_at_every_point_of_a_trial(workspace: Path, search: Terminals) -> None:
    """Once at each; the next one takes the trial up. The curves are made up."""
    write_search(search_values())
    for point in POINTS:
        kill = KillAt("tests.search.points:POINTS", point, workspace / "point")
        ended = search.tune(INLINE, kill=kill, trains=False).end()
        assert (ended, kill.reached()) == (-signal.SIGKILL, point), LOG.read_text()
        # Of the first trial; only behind its end another one may have begun.
        assert {trial.number for trial in trials() if trial.state is TrialState.RUNNING} <= {0}
    assert search.tune(INLINE, trains=False).end() == 0, LOG.read_text()

    found = trials()
    assert [(trial.number, trial.state) for trial in found] == [(n, TrialState.COMPLETE) for n in range(4)]
    assert len({str(trial.params) for trial in found}) == 4  # no point was drawn twice
    recorded = mlflow_runs()
    assert {run.info.status for run in recorded} == {"FINISHED"}
    numbers = Counter(run.data.tags.get(schema.TAG_TRIAL) for run in recorded)
    assert numbers == {None: 1, "0": 1, "1": 1, "2": 1, "3": 1}  # the search's own, and one for each trial
    by_id = {run.info.run_id: run for run in recorded}
    for trial in found:
        record = by_id[trial.user_attrs["mlflow_id"]]
        assert record.data.tags[schema.TAG_TRIAL] == str(trial.number)
        assert record.data.metrics["search/final_score"] == trial.value
        points = open_client(tracking_uri()).get_metric_history(record.info.run_id, "search/score")
        assert sorted((point.step, point.value) for point in points) == sorted(
            trial.intermediate_values.items()
        )


def test_workers_are_killed_while_they_train(workspace: Path, search: Terminals) -> None:
    """One alone: its run lives on, and who takes the trial up waits for that. One with its run, which is continued."""
    write_search(search_values())
    runs, one, other = workspace / "runs", Gate(workspace / "one"), Gate(workspace / "other")
    one.let(3)
    other.let(3)
    first = search.tune(INLINE, gate=one)
    [broken] = wait_at(3, 1, runs, first)
    second = search.tune(INLINE, gate=other)
    [orphaned] = wait_at(3, 2, runs, second) - {broken}
    [adopted] = [trial.number for trial in trials() if orphaned.name in trial.user_attrs.get("run_ids", [])]

    second.kill()
    third = search.tune(INLINE)
    until("another worker has the trial", lambda: attempts(adopted) == 2)
    assert is_held(orphaned) and third.alive()
    other.open()
    until("its run has come to its end", lambda: not is_held(orphaned))

    held = holder(broken)
    assert held is not None
    first.kill()
    os.kill(held[1], signal.SIGKILL)
    until("the run is nobody's", lambda: not is_held(broken))
    assert (broken / CHECKPOINT).exists()
    fourth = search.tune(INLINE)
    for one in (third, fourth):  # one of them may leave while the other still trains
        one.end()
    assert search.tune(INLINE).end() == 0, LOG.read_text()  # nothing is left

    found = assert_search_is_whole(runs, 4)
    assert {trial.state for trial in found} == {TrialState.COMPLETE}
    assert len(files(orphaned)) == 1  # nobody has trained it a second time
    assert len(files(broken)) == 2


@pytest.mark.slow
def test_an_interrupted_search_ends_its_runs_and_goes_on(workspace: Path, search: Terminals) -> None:
    """By Ctrl-C two workers of the local launcher, in separate processes; then, by SIGTERM, two commands."""
    write_search(search_values(trials=2))
    # More steps than a run can take while the test looks.
    long = ["training.collapse_share=0", "training.t_stop=1000000", "--study", "long"]
    runs = workspace / "runs"

    going = search.tune("launcher=local", "launcher.workers=2", *long)

    def both_can_be_continued() -> bool:
        assert going.alive(), LOG.read_text()
        return len(list(runs.glob(f"*/{CHECKPOINT}"))) == 2

    until("both can be continued", both_can_be_continued)
    assert len(training_now(runs)) == 2
    going.send(signal.SIGINT)
    assert going.end() == 130
    until("they end in order", lambda: not training_now(runs))
    assert "run the same command to continue" in LOG.read_text()
    found = trials("long")
    assert [trial.state for trial in found] == [TrialState.WAITING] * 2  # given back, with their points
    until("the trials' records are ended", lambda: statuses_of_trials() == {"KILLED"})

    # The same trials go on, with their own points and records.
    reached = {path.parent: read_rows(path.parent)[-1].step for path in runs.glob(f"*/{CHECKPOINT}")}
    again = [search.tune(INLINE, *long) for _ in range(2)]
    until(
        "both go on",
        lambda: (
            len(training_now(runs)) == 2
            and all(
                len(files(folder)) == 2 and read_rows(folder)[-1].step > step
                for folder, step in reached.items()
            )
        ),
    )
    assert [trial.params for trial in trials("long")] == [trial.params for trial in found]
    for one in again:
        one.send(signal.SIGTERM)
    assert [one.end() for one in again] == [130, 130]
    until("they end", lambda: not training_now(runs))
    assert statuses_of_trials() == {"KILLED"}, LOG.read_text()
    assert len([run for run in mlflow_runs() if schema.TAG_RUN_ID in run.data.tags]) == 2


def attempts(number: int) -> int:
    """How often the trial has been begun, by Optuna's count."""
    studies = optuna.load_study(study_name=STUDY, storage="sqlite:///optuna.db").get_trials()
    begun = [trial for trial in studies if trial.state is not TrialState.WAITING]
    return sum(trial.system_attrs.get("failed_trial", trial.number) == number for trial in begun)


def statuses_of_trials() -> set[str]:
    return {run.info.status for run in mlflow_runs() if schema.TAG_TRIAL in run.data.tags}
