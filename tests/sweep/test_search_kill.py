"""A search of 24 trials with two workers that are killed on the way: no trial is lost, and none is run twice."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from mlflow.entities import Run, ViewType
from optuna.trial import FrozenTrial, TrialState

from cppo_lab import schema
from cppo_lab.cores.base import CHECKPOINT
from cppo_lab.lock import is_held
from cppo_lab.store import tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.spool import read_rows
from tests.sweep.made_search import search_values, write_search
from tests.waiting import until

TRIALS = 24
PATIENCE = 600  # seconds; a machine that others use as well takes its time
STUDY = "tune-mini_base"


class Terminals:
    """Where people type `cppo tune`; what is still going when the test ends is ended."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def tune(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """A worker in a process group of its own."""
        with Path("terminals.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "cppo_lab.cli", "tune", "./tune.yaml", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A shell that starts the tests in the background has them ignore SIGINT; children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        self.started.append(process)
        return process

    def close(self) -> None:
        """End everything: in order, so that jobs of the local launcher go too, then by force."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def terminals(workspace: Path) -> Iterator[Terminals]:
    opened = Terminals()
    yield opened
    opened.close()


def trials() -> list[FrozenTrial]:
    try:
        return optuna.load_study(study_name=STUDY, storage="sqlite:///optuna.db").get_trials()
    except KeyError:
        return []


def finished() -> int:
    return sum(trial.state.is_finished() for trial in trials())


def wait_until_training(worker: "subprocess.Popen[bytes]", at_least: int, runs: Path) -> tuple[int, Path]:
    """Wait until so many trials are done and a child of `worker` is training; its trial and the run's folder.

    It is not between its first step and its first checkpoint: killed there, it would begin anew, in a second record.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert worker.poll() is None, Path("terminals.log").read_text()
        if finished() >= at_least:
            for trial in trials():
                for run_id in trial.user_attrs.get("run_ids", []):
                    status = runs / run_id / "status.json"
                    if trial.state is TrialState.RUNNING and is_held(runs / run_id) and status.exists():
                        with contextlib.suppress(KeyError, ProcessLookupError):  # it begins or ends
                            pid = json.loads(status.read_text())["pid"]
                            goes_on = (runs / run_id / CHECKPOINT).exists() or not read_rows(runs / run_id)
                            if goes_on and os.getpgid(pid) == os.getpgid(worker.pid):
                                return trial.number, runs / run_id
        time.sleep(0.1)
    raise AssertionError(Path("terminals.log").read_text())


def mlflow_runs() -> list[Run]:
    client = open_client(tracking_uri())
    experiment = client.get_experiment_by_name("cppo-mini")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL, max_results=1000))


@pytest.mark.slow
def test_24_trials_with_two_workers_that_are_killed(workspace: Path, terminals: Terminals) -> None:
    write_search(search_values(trials=TRIALS, pruner={"name": "median", "startup": 5, "warmup_steps": 2}))
    runs = workspace / "runs"
    steady = terminals.tune("launcher=inline")
    victim = terminals.tune("launcher=inline")
    # Killed alone: the run that it was training lives on, and whoever takes the trial up waits for it.
    orphaned, _ = wait_until_training(victim, 6, runs)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    victim = terminals.tune("launcher=inline")
    # Killed with the run: that goes on from its checkpoint, or from the start if it had none yet.
    broken, folder = wait_until_training(victim, 12, runs)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    deadline = time.monotonic() + 10
    while is_held(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    victim = terminals.tune("launcher=local", "launcher.workers=1")
    for worker in (steady, victim):
        worker.wait(timeout=PATIENCE)
    assert terminals.tune().wait(timeout=PATIENCE) == 0, Path("terminals.log").read_text()  # nothing is left

    found = trials()
    assert [trial.number for trial in found] == list(range(TRIALS))
    states = Counter(trial.state for trial in found)
    assert states[TrialState.COMPLETE] + states[TrialState.PRUNED] == TRIALS
    assert len({json.dumps(trial.params) for trial in found}) == TRIALS  # no point was drawn twice
    assert {orphaned, broken} <= {trial.number for trial in found}

    recorded = mlflow_runs()
    by_id = {run.info.run_id: run for run in recorded}
    parents = [
        run
        for run in recorded
        if schema.TAG_SEARCH in run.data.tags and schema.TAG_TRIAL not in run.data.tags
    ]
    assert [(run.info.status, run.data.tags[schema.TAG_STATUS]) for run in parents] == [("FINISHED", "done")]
    numbers = Counter(
        run.data.tags[schema.TAG_TRIAL] for run in recorded if schema.TAG_TRIAL in run.data.tags
    )
    assert numbers == {str(number): 1 for number in range(TRIALS)}
    trained = Counter(
        run.data.tags[schema.TAG_RUN_ID] for run in recorded if schema.TAG_RUN_ID in run.data.tags
    )
    assert trained == {run_id: 1 for trial in found for run_id in trial.user_attrs["run_ids"]}
    assert len(recorded) == 1 + 2 * TRIALS

    client = open_client(tracking_uri())
    for trial in found:
        [run_id] = trial.user_attrs["run_ids"]
        [training] = [run for run in recorded if run.data.tags.get(schema.TAG_RUN_ID) == run_id]
        record = by_id[trial.user_attrs["mlflow_id"]]
        assert training.data.tags[schema.TAG_PARENT] == record.info.run_id
        assert training.data.tags[schema.sweep_tag("tune")] == f"trial {trial.number}"
        assert record.data.tags[schema.TAG_PARENT] == parents[0].info.run_id
        points = client.get_metric_history(training.info.run_id, "val/mean/avg_at_16")
        assert len({point.step for point in points}) == len(points)
        curve = {point.step: point.value for point in points}
        if trial.state is TrialState.COMPLETE:
            assert training.info.status == "FINISHED"
            assert record.data.tags[schema.TAG_STATUS] == "done"
            missing = (4 - max(curve)) // 2  # of a run that collapsed
            scores = [curve[step] for step in sorted(curve)] + [curve[max(curve)]] * missing
            assert trial.value == pytest.approx(sum(scores[-3:]) / 3, abs=1e-12)
            assert record.data.metrics["search/final_score"] == trial.value
            assert trial.intermediate_values == curve
        else:
            assert record.data.tags[schema.TAG_STATUS] == "pruned"
            if training.info.status != "FINISHED":  # it may have come to its end first
                assert training.data.tags[schema.TAG_REASON].startswith("pruned by the search at step ")

    content = json.loads((runs / "searches" / STUDY / "search.json").read_text())
    assert [trial["number"] for trial in content["trials"]] == list(range(TRIALS))
    assert {trial["state"] for trial in content["trials"]} <= {"complete", "pruned"}
    values = {trial.number: trial.value for trial in found if trial.state is TrialState.COMPLETE}
    assert content["best"] == [max(values, key=lambda number: (values[number], -number))]
    [artifact] = client.list_artifacts(parents[0].info.run_id)
    assert artifact.path == "search.json"


@pytest.mark.slow
def test_an_interrupted_search_ends_its_runs_and_goes_on(workspace: Path, terminals: Terminals) -> None:
    """Two workers of the local launcher, each in a process of its own."""
    write_search(search_values(trials=2))
    local = ["launcher=local", "launcher.workers=2", "training.collapse_share=0"]
    runs = workspace / "runs"

    def written(pattern: str) -> bool:
        assert search.poll() is None, Path("terminals.log").read_text()
        return len(list(runs.glob(pattern))) == 2

    search = terminals.tune(*local, "training.t_stop=4000", "--study", "long")
    until("both can be continued", lambda: written(f"*/{CHECKPOINT}"), PATIENCE)
    assert len(training_now(runs)) == 2
    search.send_signal(signal.SIGINT)
    assert search.wait(timeout=PATIENCE) == 130
    until("they end in order", lambda: not training_now(runs), PATIENCE)
    assert "the same command continues" in Path("terminals.log").read_text()
    found = optuna.load_study(study_name="long", storage="sqlite:///optuna.db").get_trials()
    assert [trial.state for trial in found] == [TrialState.RUNNING] * 2
    until(
        "the trials' records are ended",
        lambda: {run.info.status for run in mlflow_runs() if schema.TAG_TRIAL in run.data.tags} == {"KILLED"},
        PATIENCE,
    )
    # The same trials go on, with their own points and records.
    search = terminals.tune(*local, "training.t_stop=4000", "--study", "long")
    until("both go on", lambda: written("*/spool/0002.jsonl") and len(training_now(runs)) == 2, PATIENCE)
    again = optuna.load_study(study_name="long", storage="sqlite:///optuna.db").get_trials()
    assert [trial.params for trial in again] == [trial.params for trial in found]
    search.send_signal(signal.SIGTERM)
    assert search.wait(timeout=PATIENCE) == 130
    until("they end", lambda: not training_now(runs), PATIENCE)
    assert len([run for run in mlflow_runs() if schema.TAG_RUN_ID in run.data.tags]) == 2


def training_now(runs: Path) -> list[int]:
    """The processes that are training a run and have taken a step."""
    statuses = [path for path in runs.glob("*/status.json") if is_held(path.parent)]
    found = [json.loads(path.read_text()) for path in statuses]
    return [one["pid"] for one in found if "pid" in one]  # an attempt that begins has none yet
