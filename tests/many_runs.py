"""A working folder with very many runs, recorded and uploaded by the product: how commands grow with their number."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from cppo_lab import schema
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs.folder import announce
from cppo_lab.runs.machine import Environment, environment
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.tags import names, resolved_yaml
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.launch import sweep_tags
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking.upload import upload

STEPS, EVERY = 20, 5  # training steps of a run, and between its validations
ARRAY = 1000  # tasks of one submission to Slurm
UNSENT = 10  # runs that the store knows nothing of
_TOPS = {"grpo": 0.5, "dppo": 0.65, "cispo": 0.6, "cppo": 0.8}
_BENCHMARKS = (schema.MEAN, "chain_short", "chain", "chain_long")
# How the last of a hundred runs stand; all others are done.
_KINDS = {97: schema.FAILED, 98: schema.PARTIAL, 99: schema.QUEUED}


def make_runs(folder: Path, plan: Plan, uri: str) -> list[str]:
    """All runs of `plan` in `folder/runs` and in the store at `uri`, and what `squeue` says of those that wait.

    Of every hundred, one failed, one was interrupted and one waits in Slurm's queue; the first UNSENT of the others
    are on file alone.
    """
    runs, here = folder / "runs", environment()
    kinds = {run.run_id: _KINDS.get(number % 100, schema.DONE) for number, run in enumerate(plan.runs)}
    for run in plan.runs:
        if kinds[run.run_id] == schema.QUEUED:
            announce(runs / run.run_id, names(run.spec))
        else:
            _record(runs / run.run_id, run, kinds[run.run_id], sweep_tags(plan, run), here)
    recorded = [run_id for run_id, kind in kinds.items() if kind != schema.QUEUED]
    upload([runs / run_id for run_id in recorded[min(UNSENT, len(recorded) // 10) :]], uri)
    return _submitted(runs, kinds)


def _record(folder: Path, run: PlannedRun, kind: str, tags: dict[str, str], here: Environment) -> None:
    """What a trainer leaves in the folder of a run that ends as `kind`."""
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    data = schema.Dataset("chain", "0" * 8, "made", "CODE", "TRAINING", {"problems": 64})
    tags = tags | {schema.TAG_CODE_VERSION: "made"}
    recorder = Recorder(run.spec, tags, folder, datasets=[data], yaml=resolved_yaml(run.spec), here=here)
    top = _TOPS[run.spec.rule.name] + 0.02 * (run.spec.seed % 4)
    last = STEPS if kind == schema.DONE else STEPS // 2
    for step in range(last + 1):
        value = top * (1 - math.exp(-step / 6))
        validated = _BENCHMARKS if step % EVERY == 0 else ()
        metrics = {schema.validation_metric(name, run.spec.validation.samples): value for name in validated}
        recorder.log(step, metrics | {metric.name: value for metric in schema.METRICS})
    if kind == schema.FAILED:
        recorder.fail("RuntimeError: no memory left", "Traceback: made up\n")
    elif kind == schema.PARTIAL:
        recorder.interrupt("terminated by SIGTERM")
    else:
        recorder.finish(schema.Outcome(schema.DONE, last))


def _submitted(runs: Path, kinds: dict[str, str]) -> list[str]:
    """The record of all runs having been submitted as arrays, and the queue's lines on those that wait."""
    waiting: list[str] = []
    run_ids: Sequence[str] = list(kinds)
    with Ledger(runs) as ledger:
        for first in range(0, len(run_ids), ARRAY):
            token = ledger.claim(run_ids[first : first + ARRAY])
            ledger.submitted(token, 1000 + first)
            tasks = ledger.open_tasks(token)
            ledger.end([task for task in tasks if kinds[task.name] != schema.QUEUED], "COMPLETED")
            queued = [task.job for task in tasks if kinds[task.name] == schema.QUEUED]
            waiting += [f"{job}|{os.getuid()}|PENDING|Resources|{token}|cppo" for job in queued]
    return waiting
