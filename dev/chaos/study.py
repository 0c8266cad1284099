"""The sweep that is trained twice, in miniature: a few hundred steps of every rule in the paper's Figure 6."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cppo_lab import schema
from cppo_lab.runs.spool import newest_record
from dev.errors import DevError

ROOT = Path(__file__).parents[2]
SWEEP = "sensitivity"
VARIANTS = 4
SMALL = (
    "model.architecture.width=32",
    "model.architecture.mlp_width=64",
    "model.architecture.layers=1",
    "model.warm_start.steps=300",
    "model.warm_start.target_accuracy=null",
    "model.warm_start.batch=32",
    "data.operations=2",
    "data.validation_problems=4",
    "rollout.max_response_length=9",
    "validation.every=2",  # and a checkpoint
    "training.collapse_share=0",
)
_STEP = re.compile(rb'^\{"step": (\d+), ', re.MULTILINE)


@dataclass(frozen=True)
class Study:
    """`runs` runs of `steps` training steps each; their number is a multiple of VARIANTS."""

    runs: int
    steps: int

    def __post_init__(self) -> None:
        if self.runs < VARIANTS or self.runs % VARIANTS:
            raise DevError(
                f"--runs {self.runs}: {SWEEP} has {VARIANTS} variants: give a multiple of {VARIANTS}"
            )

    @property
    def words(self) -> list[str]:
        """The sweep and its overrides, as every subcommand takes them."""
        seeds = ",".join(str(seed) for seed in range(self.runs // VARIANTS))
        return [SWEEP, *SMALL, f"training.t_stop={self.steps}", f"seed={seeds}"]

    def progress(self, runs: Path) -> float:
        """The share of all steps, including step 0, that is recorded below the folder of runs."""
        done = sum(steps_on_file(folder) for folder in runs.iterdir()) if runs.is_dir() else 0
        return done / (self.runs * (self.steps + 1))


def steps_on_file(folder: Path) -> int:
    """How many different steps all attempts at a run have recorded."""
    found: set[bytes] = set()
    for path in sorted((folder / "spool").glob("*.jsonl")):
        found.update(_STEP.findall(path.read_bytes()))
    return len(found)


def command(*words: str) -> list[str]:
    """`cppo` with these words."""
    return [sys.executable, "-m", "cppo_lab.cli", *words]


def environment(store: str, cache: Path) -> dict[str, str]:
    """The environment of `cppo` for one of the two studies: with a separate cache, so that neither uses the
    other's."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MLFLOW_"))}
    return {
        **known,
        "PYTHONPATH": os.pathsep.join([str(ROOT), known.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "MLFLOW_TRACKING_URI": store,
        "XDG_CACHE_HOME": str(cache),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def call(words: list[str], folder: Path, env: Mapping[str, str], log: Path, seconds: float) -> int:
    """Runs `cppo` with these words in a folder and returns its exit status; what it prints is added to `log`.

    Raises DevError if it takes longer than `seconds`.
    """
    with log.open("ab") as output:
        output.write(f"$ cppo {' '.join(words)}\n".encode())
        output.flush()
        try:
            done = subprocess.run(
                command(*words), cwd=folder, env=dict(env), stdout=output, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, check=False, timeout=seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DevError(f"cppo {words[0]} took longer than {seconds:g} s: see {log}") from None
    return done.returncode


def left_behind(runs: Path) -> list[str]:
    """A description of each leftover file of runs that are done."""
    found = []
    for path in sorted([*runs.glob("*/checkpoint*"), *runs.glob("*/*.partial")]):
        record = newest_record(path.parent)
        # If a full disk kept a run's end out of its files, only the store knows it, and the checkpoint stays.
        if record is not None and record.end is not None and record.end.status in schema.FINISHED:
            found.append(f"{path.relative_to(runs)} is left")
    return found
