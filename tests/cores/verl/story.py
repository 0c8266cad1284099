"""A run of verl's own trainer by `cppo launch` that is killed, loses its newest checkpoint, and is launched again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.cores.verl import checkpoints
from tests.cores.verl.conftest import LOG, ROOT
from tests.waiting import until

HOLD = Path(__file__).parent / "hold"  # stops the trainer behind a step
STEPS, EVERY, SAMPLES = 6, 2, 4
CHECKPOINT_EVERY = 3  # besides those of validations
KILLED_AFTER = 5  # a step with two checkpoints before it, and none of its own
DAMAGED, RESUMED = 4, 3  # the step of the newest checkpoint, and of that before it, which was not validated
RULE = "cppo"
SWEEP = f"""
title: One rule
question: Does a run train, die and go on?
models: [tiny_qwen3]
variants: {{{RULE}: {{rule: {RULE}}}}}
axes:
  seed: [0]
"""
# Of every core.
SETTINGS = [f"training.t_stop={STEPS}", f"validation.every={EVERY}", f"validation.samples={SAMPLES}"]
OVERRIDES = ["core=verl", *SETTINGS, f"layout.checkpoint_every={CHECKPOINT_EVERY}"]


@dataclass(frozen=True)
class Trained:
    """The run, as MLflow has it, and what its last launch said."""

    folder: Path
    run: Run
    output: str

    @property
    def own_folder(self) -> Path:
        return self.folder / "runs" / str(self.run.data.tags[schema.TAG_RUN_ID])

    def history(self, metric: str) -> list[tuple[int, float]]:
        points = client(self.folder).get_metric_history(self.run.info.run_id, metric)
        return [(point.step, point.value) for point in points]


@dataclass(frozen=True)
class Story(Trained):
    """What happened to the run."""

    killed: list[int]  # the steps that were recorded when the run was killed
    first: Run  # as MLflow had it after the first launch


def client(folder: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")


def only_run(folder: Path) -> Run:
    experiment = client(folder).get_experiment_by_name(schema.experiment_name("verl"))
    runs = client(folder).search_runs([experiment.experiment_id], f"tags.`{schema.TAG_RUN_ID}` LIKE '%'")
    assert len(runs) == 1  # whatever happened
    return runs[0]


def kill_when_held(folder: Path, process: "subprocess.Popen[bytes]") -> list[int]:
    """SIGKILL for the run when its trainer has recorded KILLED_AFTER; returns what it had recorded."""

    def seen(name: str) -> list[Path]:
        assert process.poll() is None, (folder / LOG).read_text()[-5000:]
        return list((folder / "runs").glob(f"*/{name}"))

    # By itself each: there are some twenty processes to start.
    for name in ("status.json", "verl_trainer.lock", "data/train.parquet"):
        until(name, lambda name=name: seen(name))
    until("the first validation", lambda: [path for path in seen("verl_steps.jsonl") if path.stat().st_size])
    [mark] = until(f"step {KILLED_AFTER} is recorded", lambda: seen("held"))
    os.kill(json.loads((mark.parent / "status.json").read_text())["pid"], signal.SIGKILL)
    return [step for _, (step, _) in checkpoints.rows(mark.parent)]


@contextmanager
def launched(
    folder: Path, *overrides: str, python: str = sys.executable, **more: str
) -> "Iterator[subprocess.Popen[bytes]]":
    """`cppo launch` of the run with a store of its own; output is added to LOG. It has ended behind the block."""
    (folder / "one.yaml").write_text(SWEEP)
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **more}
    command = [
        python,
        "-m",
        "cppo_lab.cli",
        "launch",
        "one.yaml",
        *OVERRIDES,
        *overrides,
        "launcher.workers=1",
    ]
    with (folder / LOG).open("ab") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def train(folder: Path, *overrides: str, python: str = sys.executable) -> Trained:
    """Launch the run to its end."""
    with launched(folder, *overrides, python=python) as process:
        process.wait()
    return Trained(folder, only_run(folder), (folder / LOG).read_text())


def tell(folder: Path) -> Story:
    """Launch the run, kill it, damage its newest checkpoint, and launch it again to its end."""
    hold = {"HOLD_AFTER_STEP": str(KILLED_AFTER), "PYTHONPATH": os.pathsep.join([str(HOLD), str(ROOT)])}
    with launched(folder, **hold) as process:
        killed = kill_when_held(folder, process)
        assert process.wait() == 1, (folder / LOG).read_text()[-5000:]
    first = only_run(folder)
    # As a power cut leaves the last file of a checkpoint.
    [path] = folder.glob(f"runs/*/verl_checkpoints/global_step_{DAMAGED}/actor/optim_*.pt")
    os.truncate(path, path.stat().st_size // 2)
    last = train(folder)
    return Story(folder, last.run, last.output, killed, first)
