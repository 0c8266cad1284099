"""Runs of the exact core in batches: each recorded as if alone, whatever becomes of the others."""

import os
import shlex
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock, patch

import numpy as np
import pytest
import scipy.stats
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.cli.command import Exit
from cppo_lab.core_records import CHECKPOINT, Ended, Resources, TogetherRun
from cppo_lab.cores.exact import trainer
from cppo_lab.cores.exact.trainer import Learner, train
from cppo_lab.errors import Interrupted
from cppo_lab.launch.training import training_jobs
from cppo_lab.runs import attempt as attempts_module
from cppo_lab.runs.attempt import Attempt, groups
from cppo_lab.runs.folder import cancel, end_process, in_living_batch, read_status, run_lock, write_run_list
from cppo_lab.runs.spool import read_rows
from cppo_lab.spec import ExactRun, MiniRun
from cppo_lab.tracking.read import histories, stored_run
from tests.conftest import Command
from tests.cores.exact_specs import DPPO, exact_run
from tests.cores.test_mini import ListSink
from tests.jobs import run_of
from tests.launch.gate import Gate
from tests.launch.test_launch import started
from tests.recorded import ended, history, mlflow_client, mlflow_runs

SHORT = "core=exact validation.every=2 training.t_stop=6 rollout.max_response_length=16"
QUICKSTART = f"quickstart {SHORT}"
SWEEP, ONE = f"{QUICKSTART} variant=grpo,cppo seed=0,1,2", f"{QUICKSTART} variant=cppo seed=0,1,2"


def specs(seeds: int = 3) -> list[ExactRun]:
    """The runs of ONE, by seed."""
    words = f"{SHORT} model=exact_early rule=cppo"
    return [cast(ExactRun, run_of(f"{words} seed={seed}")) for seed in range(seeds)]


def recorded(run_id: str) -> list[tuple[int, dict[str, float]]]:
    """What the trainer logged, without the summaries that the recorder adds."""
    return numbers((row.step, row.metrics) for row in read_rows(Path("runs") / run_id))


def numbers(rows: Iterable[tuple[int, Mapping[str, float]]]) -> list[tuple[int, dict[str, float]]]:
    """`rows` without what depends on the machine, and the recorder's summaries."""
    others = ("perf/", "system/", schema.BEST, schema.FINAL_MEAN)
    return [(step, {k: v for k, v in row.items() if not k.startswith(others)}) for step, row in rows]


def assert_as_if_alone(spec: ExactRun) -> None:
    """The run has recorded what it logs if it is trained alone."""
    sink, folder = ListSink(), Path("alone", spec.run_id)
    folder.mkdir(parents=True)
    train(spec, sink, Resources(folder.parent, folder))
    assert recorded(spec.run_id) == numbers(sink.rows)


def attempt(spec: ExactRun | MiniRun, **others: Any) -> Attempt:
    return Attempt(spec, Path("runs"), **others)


def finished() -> list[Run]:
    return [run for run in mlflow_runs("exact") if run.info.status == "FINISHED"]


def test_runs_that_differ_in_the_seed_alone_are_a_batch() -> None:
    cppo_runs = [attempt(exact_run(seed=seed)) for seed in range(5)]
    dppo_runs = [attempt(exact_run(seed=seed, rule=DPPO)) for seed in range(2)]
    mini = [attempt(run_of(f"seed={seed}")) for seed in range(2)]
    mixed = [cppo_runs[0], mini[0], dppo_runs[0], *cppo_runs[1:], mini[1], dppo_runs[1]]
    jobs = training_jobs(mixed, "sqlite:///mlflow.db")
    assert [list(job.attempts) for job in jobs] == [[*cppo_runs, *dppo_runs], mini[:1], mini[1:]]
    assert [bool(job.batch) for job in jobs] == [True, False, False]
    assert groups(mixed) == [cppo_runs, mini[:1], dppo_runs, mini[1:]]
    assert len({job.name for job in jobs}) == 3
    # With several workers none is left without work.
    assert [len(job.attempts) for job in training_jobs(cppo_runs, "", workers=2)] == [3, 2]
    assert len(training_jobs([*cppo_runs, attempt(exact_run(seed=9), threads=2)], "")) == 2


def test_an_inline_batch_leaves_what_single_runs_leave(cppo: Command) -> None:
    said = cppo(f"launch {SWEEP} launcher=inline").err
    assert "grpo/exact_early and 1 more (6 runs): started together" in said
    assert "(6 runs): 6 done  [6/6]" in said
    by_id = {run.data.tags[schema.TAG_RUN_ID]: run for run in finished()}
    assert len(by_id) == 6
    finals = []
    for spec in specs():
        assert_as_if_alone(spec)
        run, folder = by_id[spec.run_id], Path("runs") / spec.run_id
        of_run = {schema.TAG_SEED: str(spec.seed), schema.sweep_tag("quickstart"): "cppo"}
        assert of_run.items() <= run.data.tags.items()
        rows = {step: row["exact/error"] for step, row in recorded(spec.run_id) if step}
        assert history(run, "exact/error") == {step: rows[step] for step in (2, 4, 6)}
        client = mlflow_client()
        [(_, read)] = histories(client, [stored_run(run)], "exact/error".__eq__)  # of its file
        steps, values, _ = read["exact/error"]
        assert dict(zip(steps.tolist(), values.tolist(), strict=True)) == rows
        assert "diagnostics" in {file.path for file in client.list_artifacts(run.info.run_id)}
        status = read_status(folder)
        assert (status["status"], status["step"]) == ("done", 6)
        assert not (folder / CHECKPOINT).exists()
        finals.append(status["final_mean"])
    again = cppo(f"launch {SWEEP} launcher=inline")
    assert "0 to train" in again.err
    table = again.out.splitlines()
    assert table[0].split("  ")[0] == "variant" and len(table) == 9  # two variants, and no row for a run
    interval = scipy.stats.t.interval(0.95, 2, np.mean(finals), scipy.stats.sem(finals))
    low, high = 100 * np.clip(interval, 0, 1)
    shown = f"3 of 3 {100 * np.mean(finals):.1f} % [{low:.1f}, {high:.1f}]"
    assert " ".join(table[2].split()[2:9]) == shown
    assert table[5:7] == ["Report:", "  cppo report " + shlex.join([*SWEEP.split(), "launcher=inline"])]
    assert len(mlflow_runs("exact")) == 6


def test_a_killed_batch_goes_on_with_the_same_numbers(workspace: Path, cppo: Command) -> None:
    """Killed where two of three runs have a checkpoint: these go on in their records, the third begins again."""
    gate = Gate(workspace, validation=3)
    launcher = started(f"launch {ONE} launcher=local launcher.workers=1", gate=gate)
    [process] = gate.reached(launcher)
    os.kill(process, signal.SIGKILL)
    gate.remove()
    said, _ = launcher.communicate()
    assert "3 of 3 runs are not done (3 partial)" in said
    killed = mlflow_runs("exact")
    assert [run.info.status for run in killed] == ["KILLED"] * 3
    of_run = {run.data.tags[schema.TAG_RUN_ID]: run.info.run_id for run in killed}
    resumed = {of_run[path.parent.name] for path in Path("runs").glob(f"*/{CHECKPOINT}")}
    assert len(resumed) == 2
    cppo(f"launch {ONE} launcher=inline")
    assert resumed <= {run.info.run_id for run in finished()}
    assert [list(history(run, "exact/return")) for run in finished()] == [[2, 4, 6]] * 3
    for spec in specs():
        assert_as_if_alone(spec)


def test_what_becomes_of_one_run_is_its_own(cppo: Command) -> None:
    """One of four fails, one is cancelled as it trains, one is trained by another process; the last is done."""
    sweep = f"{ONE},3 launcher=inline"
    folders = [Path("runs") / spec.run_id for spec in specs(4)]
    update = Learner.update

    def disturbed(self: Learner, *arguments: Any) -> dict[str, float]:
        if self.spec.seed == 0:
            cancel(folders[1])
            raise RuntimeError("out of luck")
        return update(self, *arguments)

    def states() -> list[str]:
        return [read_status(folder).get("status", "") for folder in folders]

    with patch("cppo_lab.cores.exact.trainer.Learner.update", disturbed), run_lock(folders[2]):
        cppo(f"launch {sweep}", code=Exit.RUNS_FAILED)
    assert states() == ["failed", "partial", "", "done"]
    for folder, reason in zip(folders, ("out of luck", "cancelled"), strict=False):
        assert reason in read_status(folder)["reason"]
    assert "out of luck" in (folders[0] / "traceback.txt").read_text()
    said = cppo(f"launch {sweep}", code=Exit.RUNS_FAILED).err
    assert "1 run failed with an error and is not retrained: see `cppo status" in said and "--failed`" in said
    assert states() == ["failed", "done", "done", "done"]
    cppo(f"retry {sweep} --failed")
    assert states() == ["done"] * 4
    for spec in specs(4):
        assert_as_if_alone(spec)


def test_a_run_in_a_living_batch_is_cancelled_without_a_signal(cppo: Command) -> None:
    """The signal would end the others; this process is the batch here, and would not survive one. Its logs are those
    of the batch."""
    runs = Path("runs")
    run, batch = runs / "0123456789ab", runs / "batch-0123456789abcdef"
    write_run_list(batch, [run.name])
    with run_lock(run):
        assert not in_living_batch(runs, run.name)  # trained alone since
        with run_lock(batch):
            assert in_living_batch(runs, run.name)
            assert not in_living_batch(runs, "ba9876543210")
            assert end_process(run) == ""
    assert not in_living_batch(runs, run.name)
    (batch / "attempts").mkdir()
    (batch / "attempts" / "1_0_log.out").write_text("what the batch has printed\n")
    assert cppo("logs", run.name).out == "what the batch has printed\n"


def test_a_run_of_a_batch_whose_core_gives_no_outcome_has_failed(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor may it forget one, which would be resumed for ever."""

    def together(runs: Sequence[TogetherRun[ExactRun]], ended: Ended) -> None:
        ended(1, None)

    monkeypatch.setattr(
        attempts_module,
        "load_part",
        lambda core, part: together if part == "train_together" else Mock(return_value=()),
    )
    cppo(f"launch {ONE} launcher=inline --keep-going", code=4)
    for spec in specs():
        status = read_status(Path("runs") / spec.run_id)
        assert status["status"] == schema.FAILED and "core 'exact' ends its run with None" in status["reason"]


def test_of_a_batch_what_was_cancelled_is_left_out(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cppo_lab.runs.attempt._train_group", train_group := Mock())
    cancelled, free = map(attempt, specs(2))
    cancel(cancelled.folder, "no more")
    attempts_module.train([cancelled, free], Mock(), alone=False)
    assert train_group.call_args.args[0] == [free]
    assert f"run {cancelled.run_id} was cancelled before it began" in capsys.readouterr().out


def test_other_machines_serve_each_start_until_they_get_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Mock(side_effect=[None, Interrupted(signal.SIGTERM)])
    monkeypatch.setattr("cppo_lab.runs.attempt.prepare_process", Mock())
    monkeypatch.setattr("cppo_lab.runs.attempt.load_part", lambda *_: serve)
    attempts_module.lend_machine("verl", [Mock()] * 3, None)
    assert serve.call_count == 2
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN  # only the training machine handles the warning


def test_a_signal_ends_all_runs_of_a_batch_in_order(cppo: Command) -> None:
    step_together = trainer.step_together

    def interrupting(*arguments: Any) -> Any:
        if arguments[1] == 3:
            signal.raise_signal(signal.SIGTERM)
        return step_together(*arguments)

    with patch("cppo_lab.cores.exact.trainer.step_together", interrupting):
        cppo(f"launch {ONE} launcher=inline", code=130)
    assert {ended(run)[::2] for run in mlflow_runs("exact")} == {("KILLED", "2")}
    cppo(f"launch {ONE} launcher=inline")
    assert len(finished()) == len(mlflow_runs("exact")) == 3
