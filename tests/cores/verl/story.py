"""A run of verl's own trainer by `cppo launch` that is killed, loses its newest checkpoint, and is launched again."""

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from cppo_lab import schema
from tests.cores.verl.conftest import LOG, ROOT, started, steps_in
from tests.waiting import CEILING_SECONDS, until

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


def store(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


def client(folder: Path) -> MlflowClient:
    return MlflowClient(store(folder))


def only_run(folder: Path) -> Run:
    experiment = client(folder).get_experiment_by_name(schema.experiment_name("verl"))
    runs = client(folder).search_runs([experiment.experiment_id], f"tags.`{schema.TAG_RUN_ID}` LIKE '%'")
    assert len(runs) == 1  # whatever happened
    return runs[0]


def launched(folder: Path, *overrides: str, **more: str) -> "subprocess.Popen[bytes]":
    """`cppo launch` of the run with a store of its own."""
    (folder / "one.yaml").write_text(SWEEP)
    words = ("launch", "one.yaml", *OVERRIDES, *overrides, "launcher.workers=1")
    return started(folder, "cppo_lab.cli", *words, MLFLOW_TRACKING_URI=store(folder), **more)


def train(folder: Path, *overrides: str, **more: str) -> Trained:
    """Launch the run to its end."""
    launched(folder, *overrides, **more).wait(CEILING_SECONDS)
    return Trained(folder, only_run(folder), (folder / LOG).read_text())


def tell(folder: Path) -> Story:
    """Launch the run, kill it, damage its newest checkpoint, and launch it again to its end."""
    hold = {"HOLD_AFTER_STEP": str(KILLED_AFTER), "PYTHONPATH": os.pathsep.join([str(HOLD), str(ROOT)])}
    process = launched(folder, **hold)

    def held() -> list[Path]:
        assert process.poll() is None, (folder / LOG).read_text()[-5000:]
        return list((folder / "runs").glob("*/held"))

    [mark] = until(f"step {KILLED_AFTER} is recorded", held)
    os.kill(json.loads((mark.parent / "status.json").read_text())["pid"], signal.SIGKILL)
    killed = steps_in(mark.parent)
    assert process.wait(CEILING_SECONDS) == 1, (folder / LOG).read_text()[-5000:]
    first = only_run(folder)
    # As a power cut leaves the last file of a checkpoint.
    [path] = folder.glob(f"runs/*/verl_checkpoints/global_step_{DAMAGED}/actor/optim_*.pt")
    os.truncate(path, path.stat().st_size // 2)
    last = train(folder)
    return Story(folder, last.run, last.output, killed, first)
