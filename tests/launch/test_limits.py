"""Runs that a launch does not begin: the first have failed alike, or they do not fit into its limits."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.launch.slurm.job import SlurmTask
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs import attempt as attempts
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import read_status, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import FAILED, Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.cost import NO_LIMITS, Limits, past_costs
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import TINY, Command

SWEEP = ["quickstart", *TINY, "variant=cppo", "seed=0,1,2,3,4", "model.warm_start.steps=2"]
INLINE = [*SWEEP, "launcher=inline"]
Train = Callable[[RunSpec, Recorder, object], Outcome]


def states() -> list[str]:
    """Of the five runs, in the order of the plan; empty if it has not begun."""
    return [read_status(folder).get("status", "") for folder in folders()]


def folders() -> list[Path]:
    return [
        Path("runs").resolve() / run.run_id for run in make_plan(load_sweep("quickstart"), SWEEP[1:]).runs
    ]


def fails(text: Callable[[int], str]) -> Callable[[str], Train]:
    """A core whose run fails with the text for its seed; without a text it is done."""

    def train(spec: RunSpec, recorder: Recorder, resources: object) -> Outcome:
        recorder.begin(None)
        if message := text(spec.seed):
            raise RuntimeError(message)
        recorder.log(4, {schema.validation_metric(schema.MEAN, 16): 0.5})
        return Outcome(schema.DONE, 4)

    return lambda core: train


def test_three_equal_failures_hold_the_rest_and_a_launch_goes_on(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(attempts, "load_core", fails(lambda seed: f"no room for {seed + 2.5} GiB\nmore"))
        said = cppo("launch", *INLINE, code=4)
    why = "the first 3 runs of the launch failed alike: RuntimeError: no room for 2.5 GiB"
    assert said.err.count(f"the rest is held: {why}\n") == 1
    assert (
        f"cppo: 2 runs not started ({folders()[3].name}, {folders()[4].name}): {why}: mend it, then"
        in said.err
    )
    assert "5 runs are not done (3 failed, 2 missing): cppo retry quickstart" in said.err
    assert "launch with --keep-going" in said.err and "run the same command to continue" not in said.err
    assert states() == ["failed"] * 3 + [""] * 2
    runs = cppo("status", *SWEEP, "--json").answer["runs"]
    assert [(run["state"], run["reason"]) for run in runs[3:]] == [("missing", why)] * 2
    monkeypatch.setattr(attempts, "load_core", fails(lambda seed: ""))
    assert "held" not in cppo("launch", *INLINE, code=4).err  # the failed ones are left
    assert states() == ["failed"] * 3 + ["done"] * 2
    cppo("retry", *INLINE, "--failed")
    assert "no run of quickstart has failed" in cppo("retry", *INLINE, "--failed").out


@pytest.mark.parametrize(
    "text, option, begun",
    [
        (lambda seed: f"no room for {seed} GiB", ["--keep-going"], 5),
        (lambda seed: "this" if seed != 1 else "that", [], 5),  # of another kind
        (lambda seed: "" if seed == 2 else "this", [], 5),  # not all of the first
        (lambda seed: f"/runs/{folders()[seed].name}/x is gone", [], 3),  # but for the run's id
    ],
)
def test_other_failures_hold_nothing(
    cppo: Command,
    monkeypatch: pytest.MonkeyPatch,
    text: Callable[[int], str],
    option: list[str],
    begun: int,
) -> None:
    monkeypatch.setattr(attempts, "load_core", fails(text))
    cppo("launch", *INLINE, *option, code=4)
    assert sum(map(bool, states())) == begun


def test_a_retry_that_fails_again_holds_the_rest_of_it(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "load_core", fails(lambda seed: "broken"))
    cppo("launch", *INLINE, "--keep-going", code=4)
    answer = cppo("retry", *INLINE, "--failed", "--json", code=4).answer
    assert list(answer["not_started"]) == [folder.name for folder in folders()[3:]]
    assert states() == ["failed"] * 5


def own_rule(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, module: str, seeds: str = "0, 1, 2, 3"
) -> list[str]:
    """The words of a sweep of a user's rule, the function `own` of a module, which jobs find in the folder `site`."""
    site = str(workspace / "site")
    for name, text in {
        "site/acme_rule.py": module,
        "rule/own.yaml": "name: own\ndelta: ${trust_region.delta}\n",
        "mine.yaml": "title: Mine\nquestion: Why?\nmodels: {mini: [mini_base]}\nvariants: {a: {rule: own}}\n"
        f"axes: {{seed: [{seeds}]}}\n",
    }.items():
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, str(Path(__file__).parents[2])]))
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "acme_rule", raising=False)
    return ["./mine.yaml", *TINY[1:], "rule.path=acme_rule:own"]


WRONG = "def own(tokens, *, delta):\n    raise RuntimeError('wrong')\n"


@pytest.mark.slow
def test_jobs_of_this_machine_are_held(
    workspace: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = own_rule(workspace, monkeypatch, WRONG)
    said = cppo("launch", *words, "launcher.workers=1", code=4).err
    assert "cppo: 1 run not started" in said and "failed alike: RuntimeError: wrong" in said
    assert len(list(workspace.glob("runs/*/spool"))) == 3


def test_a_job_in_a_queue_looks_before_it_begins(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Slurm's job, when its launcher is long gone; a run that has begun in this launch goes on when it is requeued."""
    runs = make_plan(load_sweep("quickstart"), SWEEP[1:]).runs
    first = tuple(run.run_id for run in runs[:3])
    planned = [Attempt(run.spec, Path("runs").resolve(), canaries=first) for run in runs]
    late = planned[0].created + 1.0
    for folder in folders():
        folder.mkdir(parents=True)
        write_status(folder, {"status": "", "step": None})
    for folder in folders()[:3]:
        write_status(folder, {"status": FAILED, "reason": "OSError: gone", "updated": late})
    SlurmTask(TrainingJob((planned[3],), tracking_uri()), 0)()
    assert f"run {runs[3].run_id} is held: the first 3 runs" in capsys.readouterr().out
    assert states()[3] == "" and "OSError: gone" in read_status(folders()[3])["reason"]
    write_status(folders()[4], {"status": "partial", "updated": late})
    assert planned[3].withheld_because() and not planned[4].withheld_because()
    write_status(
        folders()[2], {"status": FAILED, "reason": "OSError: gone", "updated": late - 9.0}
    )  # before it
    assert not planned[3].withheld_because()


def test_what_does_not_fit_is_not_started_in_the_order_of_the_plan(workspace: Path) -> None:
    words = ["core=verl", "model=qwen3_1_7b_base", "variant=cppo,dppo", "seed=0,1"]
    plan = make_plan(load_sweep("main"), words)
    hours = {run_id: cost.gpu_hours or 0.0 for run_id, cost in past_costs(plan.runs).items() if cost}
    assert len({*hours.values()}) == 1 and len(hours) == 4
    each, missing = next(iter(hours.values())), dict.fromkeys(hours, "missing")

    def beyond(limits: Limits, at_once: int = 1, states: dict[str, str] = missing) -> list[str]:
        todo = [run for run in plan.runs if states[run.run_id] == "missing"]
        return list(limits.beyond(plan.runs, todo, states, at_once))

    ids = [run.run_id for run in plan.runs]
    assert beyond(NO_LIMITS) == [] and beyond(Limits(4.01 * each)) == []
    assert beyond(Limits(2.5 * each)) == ids[2:] and beyond(Limits(0.0)) == ids
    folder = workspace / "runs" / ids[0]
    folder.mkdir(parents=True)
    write_status(
        folder, {"status": "done", "gpus": 8, "seconds": 3600 * each / 8 * 2}
    )  # it took twice as long
    done = missing | {ids[0]: "done"}
    assert beyond(Limits(2.5 * each), states=done) == ids[1:]
    assert beyond(Limits(4.5 * each), states=done | {ids[1]: "running"}) == ids[3:]
    # 1.7e9 parameters: float32 weights stay, and two checkpoints of 12 bytes while it trains (spec/job.py).
    parameters = plan.runs[0].spec.model.parameters
    weights, training = 4 * parameters, 2 * 12 * parameters
    assert beyond(Limits(disk=2 * weights + training + 0.1)) == ids[2:]
    assert beyond(Limits(disk=2 * weights + 2 * training - 0.1), at_once=2) == ids[1:]
    assert beyond(Limits(disk=4 * weights + 2 * training + 0.1), at_once=2) == []
    assert beyond(Limits(disk=2 * weights + training + 0.1), states=done) == ids[2:]


def test_a_launch_names_what_does_not_fit(cppo: Command) -> None:
    line = "launch main core=verl model=qwen3_1_7b_base variant=cppo seed=0,1 --dry-run"
    said = cppo(f"{line} --max-gpu-hours 1")
    assert "would train 0 of 2 runs" in said.out
    assert "cppo: 2 runs not started (" in said.err
    assert "): --max-gpu-hours 1: with run " in said.err
    assert cppo(f"{line} --max-disk 1 --json").answer["to_train"] == []
    assert "would train 2 of 2" in cppo(f"{line} --max-disk 1000000 --max-gpu-hours 1000000").out
