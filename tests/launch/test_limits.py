"""Runs that a launch does not begin: the first have failed alike, or they do not fit into its limits. With
`--stop-hopeless` a run with early signs of a collapse is stopped, left, and resumed when asked.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from cppo_lab.launch.slurm.job import SlurmTask
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import read_status, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import DONE, FAILED, MEAN, Outcome, validation_metric
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.cost import Limits, past_costs
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import FINISHED, TINY_LINE, Command
from tests.jobs import planned
from tests.recorded import ended, mlflow_runs
from tests.waiting import until

SWEEP = f"quickstart {TINY_LINE} variant=cppo seed=0,1,2,3,4 model.warm_start.steps=2"
INLINE = f"{SWEEP} launcher=inline"
Train = Callable[[RunSpec, Recorder, object], Outcome]


def ids() -> list[str]:
    """Of the five runs, in the order of the plan."""
    return [run.run_id for run in planned(SWEEP.split()).runs]


def states() -> list[str]:
    """Of the five runs; empty if it has not begun."""
    return [read_status(Path("runs", run_id)).get("status", "") for run_id in ids()]


def fails(text: Callable[[int], str]) -> Callable[[str], Train]:
    """A core whose run fails with the text for its seed; without a text it is done."""

    def train(spec: RunSpec, recorder: Recorder, resources: object) -> Outcome:
        recorder.begin(None)
        if message := text(spec.seed):
            raise RuntimeError(message)
        return FINISHED

    return lambda core: train


def test_three_equal_failures_hold_the_rest_and_a_launch_goes_on(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with patch("cppo_lab.runs.attempt.load_core", fails(lambda seed: f"no room for {seed + 2.5} GiB\nmore")):
        said = cppo(f"launch {INLINE}", code=4).err
    why = "the first 3 runs of the launch failed alike: RuntimeError: no room for 2.5 GiB"
    assert said.count(f"the rest is held: {why}\n") == 1
    assert f"cppo: 2 runs not started ({', '.join(ids()[3:])}): {why}: mend it, then" in said
    assert "5 runs are not done (3 failed, 2 missing): cppo retry quickstart" in said
    assert "launch with --keep-going" in said and "run the same command to continue" not in said
    assert states() == ["failed"] * 3 + [""] * 2
    assert cppo(f"status {SWEEP} --json").states[3:] == [("missing", why)] * 2
    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", fails(lambda seed: ""))
    assert "held" not in cppo(f"launch {INLINE}", code=4).err  # the failed ones are left
    assert states() == ["failed"] * 3 + ["done"] * 2
    cppo(f"retry {INLINE} --failed")
    assert cppo(f"retry {INLINE} --failed").out == "no run of quickstart has failed\n"


def test_a_retry_names_commands_that_work_while_other_runs_are_not_done(
    cppo: Command, no_training: None
) -> None:
    cppo(f"launch {INLINE.replace(',1,2,3,4', '')}")
    said = cppo(f"retry {INLINE} --run {ids()[0]} --finished").out
    assert f"  cppo report {INLINE} --partial\n" in said
    said = cppo(f"retry {INLINE} --failed").out
    assert said == (
        f"no run of quickstart has failed; `cppo launch {INLINE}` trains those that are not done\n"
    )


@patch("cppo_lab.runs.attempt.load_core", fails(lambda seed: "broken"))
def test_a_retry_that_fails_again_holds_the_rest_of_it(cppo: Command) -> None:
    cppo(f"launch {INLINE} --keep-going", code=4)
    assert states() == ["failed"] * 5
    answer = cppo(f"retry {INLINE} --failed --json", code=4).answer
    assert list(answer["not_started"]) == ids()[3:]


def test_a_job_in_a_queue_looks_before_it_begins(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Slurm's job, when its launcher is long gone; a run that has begun in this launch goes on when it is requeued."""
    runs = planned(SWEEP.split()).runs
    attempts_at = [Attempt(run.spec, workspace / "runs", canaries=tuple(ids()[:3])) for run in runs]
    late = attempts_at[0].created + 1.0

    def says(place: int, status: str, **values: object) -> None:
        attempts_at[place].folder.mkdir(parents=True, exist_ok=True)
        write_status(attempts_at[place].folder, {"status": status, **values})

    for place in range(3):
        says(place, FAILED, reason="OSError: gone", updated=late)
    says(3, "", step=None)
    SlurmTask(TrainingJob((attempts_at[3],), tracking_uri()), 0)()
    assert f"run {runs[3].run_id} is held: the first 3 runs" in capsys.readouterr().out
    assert states()[3] == "" and "OSError: gone" in read_status(attempts_at[3].folder)["reason"]
    says(4, "partial", updated=late)
    assert attempts_at[3].withheld_because() and not attempts_at[4].withheld_because()
    says(2, FAILED, reason="OSError: gone", updated=late - 9.0)  # before it
    assert not attempts_at[3].withheld_because()

    def held(*reasons: str) -> bool:
        """If the first runs have failed with these, or are done."""
        for place, reason in enumerate(reasons):
            says(place, FAILED if reason else DONE, reason=reason, updated=late)
        return bool(attempts_at[3].withheld_because())

    assert held(*(f"/runs/{run_id}/x is gone" for run_id in ids()[:3]))  # alike but for the run's id
    assert not held("this", "that", "this") and not held("this", "this", "")


def test_what_does_not_fit_is_not_started_in_the_order_of_the_plan(workspace: Path) -> None:
    runs = planned(["main", "core=verl", "model=qwen3_1_7b_base", "variant=cppo,dppo", "seed=0,1"]).runs
    [each] = {cost.gpu_hours for cost in past_costs(runs).values() if cost}
    ids = [run.run_id for run in runs]

    def left(at_once: int = 1, ended: Sequence[str] = (), **most: float) -> int:
        """How many of the four are not started, which are the last, if the first have `ended` so."""
        states = dict.fromkeys(ids, "missing") | dict(zip(ids, ended, strict=False))
        todo = [run for run in runs if states[run.run_id] == "missing"]
        beyond = list(Limits(**most).beyond(runs, todo, states, at_once))
        assert beyond == ids[4 - len(beyond) :]
        return len(beyond)

    assert [left(), *(left(gpu_hours=times * each) for times in (4.01, 2.5, 0.0))] == [0, 0, 2, 4]
    folder = workspace / "runs" / ids[0]
    folder.mkdir(parents=True)
    write_status(
        folder, {"status": "done", "gpus": 8, "seconds": 3600 * each / 8 * 2}
    )  # it took twice as long
    assert left(gpu_hours=2.5 * each, ended=["done"]) == 3
    assert left(gpu_hours=4.5 * each, ended=["done", "running"]) == 1
    assert left(gpu_hours=3.5 * each) == 3  # it is to be replaced: twice is used, and once comes on top
    # 1.7e9 parameters: float32 weights stay, and two checkpoints of 12 bytes while it trains (spec/job.py).
    parameters = runs[0].spec.model.parameters
    weights, training = 4 * parameters, 2 * 12 * parameters
    assert left(disk=3 * weights + training + 0.1) == 2  # what is to be replaced stays meanwhile
    assert left(disk=2 * weights + training + 0.1, ended=["done"]) == 2
    write_status(folder, {"status": "partial"})
    assert left(disk=2 * weights + training + 0.1) == 2
    assert left(disk=2 * weights + 2 * training - 0.1, at_once=2) == 3
    assert left(disk=4 * weights + 2 * training + 0.1, at_once=2) == 0


def test_a_launch_names_what_does_not_fit(cppo: Command) -> None:
    line = "launch main core=verl model=qwen3_1_7b_base variant=cppo seed=0,1 --dry-run"
    said = cppo(f"{line} --max-gpu-hours 1")
    assert "would train 0 of 2 runs" in said.out
    assert "cppo: 2 runs not started (" in said.err and "): --max-gpu-hours 1: with run " in said.err
    assert cppo(f"{line} --max-disk 1 --json").answer["to_train"] == []
    assert "would train 2 of 2" in cppo(f"{line} --max-disk 1000000 --max-gpu-hours 1000000").out


HOPELESS = f"quickstart {TINY_LINE} variant=cppo seed=0,1 training.t_stop=1000 launcher=inline"
SCORE = validation_metric(MEAN, 16)
LAST_STEP = 40


def warned() -> bool:
    """Replaced where nobody stops the run."""
    return False


@pytest.fixture
def falling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of seed 1 falls to a fiftieth of its best, and waits there; it recovers, also when it is resumed."""

    def train(spec: RunSpec, recorder: Recorder, resources: object) -> Outcome:
        began = recorder.step or 0
        recorder.begin(began or None)
        recorder.log(0, {SCORE: 0.5})
        if spec.seed and not began:
            recorder.log(5, {SCORE: 0.01})
            until("it is stopped, or its signs are reported", warned)
        recorder.log(LAST_STEP, {SCORE: 0.6})
        return Outcome(DONE, LAST_STEP)

    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", lambda name: train)


def test_a_hopeless_run_is_stopped_by_the_rule_left_and_resumed(cppo: Command, falling: None) -> None:
    said = cppo(f"launch {HOPELESS} --stop-hopeless", code=1).err
    signs = "early signs of a collapse: score 1.0 % is below "
    assert said.count(signs) == 2  # when it is seen, and at the end
    assert "1 of 2 runs are not done (1 stopped)" in said
    [done, (state, reason)] = cppo(f"status {HOPELESS} --json").states
    assert (done, state) == (("done", ""), "stopped")
    assert reason.startswith(signs) and "(early warning 1) at step 5; stopped at step 5" in reason
    assert ("KILLED", "stopped", "5", reason) in map(ended, mlflow_runs())

    assert "0 to train" in cppo(f"launch {HOPELESS} --stop-hopeless", code=1).err  # it is left
    cppo(f"launch {HOPELESS}")
    assert cppo(f"status {HOPELESS} --json").states == [("done", "")] * 2
    assert len(mlflow_runs()) == 2


def test_without_the_option_its_signs_are_only_reported(
    cppo: Command, falling: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def warned() -> bool:
        said.append(capsys.readouterr().err)
        return "early signs" in "".join(said)

    monkeypatch.setattr(f"{__name__}.warned", warned)
    said.append(cppo(f"launch {HOPELESS}").err)
    assert "".join(said).count("early signs of a collapse") == 1
    assert cppo(f"status {HOPELESS} --json").states == [("done", "")] * 2
