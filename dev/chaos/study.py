"""The sweep that is trained twice, in miniature: a few hundred steps of every rule in the paper's Figure 6."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.runs.spool import newest_record
from dev.chaos.compare import Store, read_report, read_store
from dev.errors import DevError
from dev.servers.mlflow_server import MlflowServer

ROOT = Path(__file__).parents[2]
SWEEP = "sensitivity"
VARIANTS = 4
SECONDS = 1800.0  # time limit of training, or of a command
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

    def read(self, folder: Path, uri: str, log: Path) -> tuple[Store, dict[str, bytes]]:
        """Its records in a store, and the files of its report, which is built in `folder`.

        Raises DevError if `cppo report` fails.
        """
        stored = read_store(uri)
        require(["report", *self.words], folder, environment(uri, folder / "cache"), log)
        return stored, read_report(folder / "reports" / "build" / SWEEP, stored.ids, uri)


def steps_on_file(folder: Path) -> int:
    """How many different steps all attempts at a run have recorded."""
    paths = (folder / "spool").glob("*.jsonl")
    return len({step for path in paths for step in _STEP.findall(path.read_bytes())})


def environment(store: str, cache: Path) -> dict[str, str]:
    """The environment of `cppo` for one of the two studies: with a separate cache, so that neither uses the
    other's.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MLFLOW_"))
    }
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join([str(ROOT), inherited.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "MLFLOW_TRACKING_URI": store,
        "XDG_CACHE_HOME": str(cache),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def started(
    words: list[str],
    folder: Path,
    env: Mapping[str, str],
    log: Path,
    python: Path | str = sys.executable,
    **identity: Any,
) -> "subprocess.Popen[bytes]":
    """`cppo` with these words in a folder, in a process group of its own; what it prints is added to `log`."""
    with log.open("ab") as output:
        output.write(f"$ cppo {' '.join(words)}\n".encode())
        output.flush()
        return subprocess.Popen(
            [str(python), "-m", "cppo_lab.cli", *words], cwd=folder, env=dict(env), stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **identity,
        )  # fmt: skip


def kill(process: "subprocess.Popen[bytes]", group: bool = True) -> None:
    """End it, and what it has started unless `group` is False."""
    with suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
    process.wait()


def require(words: list[str], folder: Path, env: Mapping[str, str], log: Path) -> None:
    """Runs `cppo` with these words in a folder. Raises DevError if it fails, or takes longer than SECONDS."""
    _require_success(started(words, folder, env, log), f"`cppo {words[0]}`", log)


def _require_success(process: "subprocess.Popen[bytes]", what: str, log: Path) -> None:
    try:
        if status := process.wait(SECONDS):
            raise DevError(f"{what} ended with status {status}: see {log}")
    except subprocess.TimeoutExpired:
        raise DevError(f"{what} takes longer than {SECONDS / 60:.0f} minutes: see {log}") from None
    finally:
        kill(process)


class ControlRun:
    """The baseline: the same study in one process on an undisturbed store, trained while the other one is disturbed.

    A context manager: it starts on entry.
    """

    def __init__(self, study: Study, folder: Path) -> None:
        self._study, self._folder, self._log = study, folder, folder / "commands.log"

    def __enter__(self) -> "ControlRun":
        self._folder.mkdir(parents=True)
        # A server is needed here too, since reports link to its pages.
        self._server = MlflowServer(self._folder, f"sqlite:///{self._folder}/mlflow.db").start()
        env = environment(self._server.uri, self._folder / "cache")
        words = ["launch", *self._study.words, "launcher=inline"]
        self._training = started(words, self._folder, env, self._log)
        return self

    def __exit__(self, *_: object) -> None:
        kill(self._training)
        self._server.stop()

    def result(self) -> tuple[Store, dict[str, bytes]]:
        """Waits for its end; returns its records in the store and the files of its report.

        Raises DevError if it does not end, or if `cppo report` fails.
        """
        _require_success(self._training, "the control study", self._log)
        return self._study.read(self._folder, self._server.uri, self._log)


def left_behind(runs: Path) -> list[str]:
    """A description of each leftover file of runs that are done."""
    left = []
    for path in sorted([*runs.glob("*/checkpoint*"), *runs.glob("*/*.partial")]):
        record = newest_record(path.parent)
        # If a full disk kept a run's end out of its files, only the store knows it, and the checkpoint stays.
        if record is not None and record.end is not None and record.end.status in schema.FINISHED:
            left.append(f"{path.relative_to(runs)} is left")
    return left
