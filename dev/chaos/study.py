"""The sweep that is trained twice, in miniature: a few hundred steps of every rule in the paper's Figure 6."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cppo_lab.runs.spool import has_finished, newest_record
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
Reading = tuple[Store, dict[str, bytes]]  # the records in the store, and the files of the report
_STEP = re.compile(rb'^\{"step": (\d+), ', re.MULTILINE)


@dataclass(frozen=True)
class Study:
    """`runs` runs of `steps` training steps each, of which VARIANTS have a seed in common."""

    runs: int
    steps: int

    @property
    def words(self) -> list[str]:
        """The sweep and its overrides, as every subcommand takes them."""
        seeds = ",".join(str(seed) for seed in range(self.runs // VARIANTS))
        return [SWEEP, *SMALL, f"training.t_stop={self.steps}", f"seed={seeds}"]

    def progress(self, runs: Path) -> float:
        """The share of all steps, including step 0, that is recorded below the folder of runs."""
        done = sum(steps_on_file(folder) for folder in runs.iterdir()) if runs.is_dir() else 0
        return done / (self.runs * (self.steps + 1))

    def read(self, folder: Path, uri: str, log: Path) -> Reading:
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
        name: text for name, text in os.environ.items() if not name.startswith(("SLURM_", "MLFLOW_"))
    }
    return inherited | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [inherited.get("PYTHONPATH")])]),
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
    require_success(started(words, folder, env, log), f"`cppo {words[0]}`", log)


def require_success(process: "subprocess.Popen[bytes]", what: str, log: Path) -> None:
    """Waits for its end. Raises DevError if it fails, or takes longer than SECONDS."""
    try:
        if status := process.wait(SECONDS):
            raise DevError(f"{what} ended with status {status}: see {log}")
    except subprocess.TimeoutExpired:
        raise DevError(f"{what} takes longer than {SECONDS / 60:.0f} minutes: see {log}") from None
    finally:
        kill(process)


@contextmanager
def control_run(study: Study, folder: Path) -> Iterator["Future[Reading]"]:
    """The baseline: the same study in one process on an undisturbed store, trained and read while the other one is
    disturbed.
    """
    folder.mkdir(parents=True)
    # A server is needed here too, since reports link to its pages.
    server = MlflowServer(folder, f"sqlite:///{folder}/mlflow.db").start()
    log, env = folder / "commands.log", environment(server.uri, folder / "cache")
    training = started(["launch", *study.words, "launcher=inline"], folder, env, log)

    def outcome() -> Reading:
        require_success(training, "the control study", log)
        return study.read(folder, server.uri, log)

    with ThreadPoolExecutor() as pool:
        try:
            yield pool.submit(outcome)
        finally:
            kill(training)
            server.stop()


def left_behind(runs: Path) -> list[str]:
    """A description of each leftover file of runs that are done."""
    left = []
    for path in sorted([*runs.glob("*/checkpoint*"), *runs.glob("*/*.partial")]):
        # If a full disk kept a run's end out of its files, only the store knows it, and the checkpoint stays.
        if has_finished(newest_record(path.parent)):
            left.append(f"{path.relative_to(runs)} is left")
    return left
