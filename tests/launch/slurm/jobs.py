"""Jobs that are cheaper than training, and write down what happens to them.

A job's process imports the module of its class: none that tests need is imported here.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import yaml

from cppo_lab.errors import Interrupted
from cppo_lab.launch.slurm.queue import Ledger, view
from cppo_lab.launch.slurm.submit import SlurmSpec, launch_slurm
from cppo_lab.spec import ResourcesSpec
from cppo_lab.sweep.groups import CONF
from tests.waiting import until


def slurm_spec(**changes: object) -> SlurmSpec:
    """Settings as `conf/launcher/slurm.yaml` has them, but for `changes`."""
    values = yaml.safe_load((CONF / "launcher" / "slurm.yaml").read_text())
    return SlurmSpec.model_validate(values | changes, strict=False)


def submit(jobs: Sequence["Noted"], **settings: object) -> None:
    """Launch jobs with these settings."""
    launch_slurm(jobs, slurm_spec(**settings), lambda event: None)


def takes(**values: object) -> ResourcesSpec:
    """Resources that are the cluster's defaults but for `values`."""
    nothing = dict.fromkeys(["cpus", "memory_gb", "partition", "account", "qos", "constraint"])
    return ResourcesSpec.model_validate({"hours": 0.5, **nothing, **values})


@dataclass(frozen=True)
class Noted:
    """A job that notes its begin and end in `runs/log`; in between it waits for the file `gate` in `runs`, if any."""

    runs: Path
    name: str
    gate: str = ""
    resources: ResourcesSpec | None = None
    fresh_process: bool = False
    nodes: int = 1
    gpus: int = 0
    cpus: int | None = None

    @property
    def folder(self) -> Path:
        """Below the folder of all."""
        return self.runs / self.name

    @property
    def places(self) -> tuple[Path, ...]:
        """What a container shows it."""
        return (self.runs,)

    def run(self) -> None:
        """Wait at the gate."""
        self.note("begin")
        if self.gate:
            until("the gate is open", (self.runs / self.gate).exists)
        self.note("end")

    def give_up(self, why: str) -> None:
        """Note it."""
        self.note("gave-up " + why)

    def note(self, what: str) -> None:
        """One line, whole, whoever else writes."""
        with (self.runs / "log").open("a") as log:
            log.write(f"{self.name}|{what}\n")


@dataclass(frozen=True)
class Long(Noted):
    """A job that lasts until it is interrupted, as a training run is; once that has happened `lives` times, it ends."""

    lives: int = 1

    def run(self) -> None:
        """Wait for the signal."""

        def stop(number: int, frame: object) -> None:
            for other in (signal.SIGTERM, signal.SIGUSR2):
                signal.signal(other, signal.SIG_IGN)
            raise Interrupted(number)

        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, stop)
        try:
            self.note("begin")
            if [what for _, what in notes(self.runs, self.name)].count("begin") > self.lives:
                self.note("end")
                return
            while True:
                time.sleep(0.1)  # noqa: TID251  hangs until a signal comes
        except Interrupted as error:
            self.note(f"interrupted {error.number}")
            raise


class Sized(Noted):
    """A job that notes the CPUs that it was given."""

    def run(self) -> None:
        """What Slurm says of the job, and of the step that this process is."""
        job = os.environ["SLURM_JOB_ID"]
        for what in (f"job {job}", f"step {job}.{os.environ['SLURM_STEP_ID']}"):
            text = subprocess.check_output(f"scontrol show --oneliner {what}".split(), text=True)
            [number] = re.findall(r"\b(?:NumCPUs|CPUs)=(\d+)", text)
            self.note(number)
        self.note(os.environ.get("SLURM_CPUS_PER_TASK", "none"))
        self.note(os.environ["CUDA_VISIBLE_DEVICES"].replace(",", " "))


class Telling(Noted):
    """A job that writes down its environment."""

    def run(self) -> None:
        """All of it."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "environment").write_text(json.dumps(dict(os.environ)))


class Looks(Noted):
    """Writes down what it sees of the machine, of each node it is on."""

    def run(self) -> None:
        import cppo_lab

        seen = {
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "project": str(Path(cppo_lab.__file__).parent.parent),
            "commands": [name for name in ("scontrol", "squeue", "srun") if shutil.which(name)],
            "models": [str(path) for path in Path("/models").rglob("*")],
            "beside": sorted(str(path) for path in self.runs.parent.iterdir()),
        }
        rank = os.environ["SLURM_PROCID"]
        (self.runs / f"{self.name}-{rank}.json").write_text(json.dumps(seen))


class Careless(Noted):
    """A job that prints its address, as libraries do, whole and in pieces, and fails with it."""

    def run(self) -> None:
        """Print and fail."""
        uri = os.environ["MLFLOW_TRACKING_URI"]
        print("logging to", uri)
        print("HF_TOKEN=" + os.environ["HF_TOKEN"], "then", uri[:20], end="")
        print(uri[20:] + "/")
        print("a warning:", uri, file=sys.stderr, flush=True)
        sys.stdout.write("an end without a line's end: " + uri)
        raise OSError(f"cannot reach {uri}")


def notes(runs: Path, name: str | None = None) -> list[tuple[str, str]]:
    """What jobs have noted, in order: the job's name, and what."""
    log = runs / "log"
    lines = [line.partition("|") for line in log.read_text().splitlines()] if log.exists() else []
    return [(who, what) for who, _, what in lines if name in (None, who)]


def ends(ledger: Ledger) -> dict[str, str | None]:
    """How the newest task of each job has ended, if it has."""
    return {name: task.ended for name, task in ledger.newest_tasks().items()}


def most_at_once(runs: Path) -> int:
    """How many jobs were between their begin and their end at the same time, at most."""
    changes = [{"begin": 1, "end": -1}[what] for _, what in notes(runs)]
    return max(accumulate(changes))


def begun(runs: Path) -> Counter[str]:
    """How often each job has begun."""
    return Counter(name for name, what in notes(runs) if what == "begin")


def wait_until_gone(runs: Path) -> None:
    """Until Slurm says that none of the jobs is in its queue; a machine under load may not answer in time."""
    until("the queue is empty", lambda: not (seen := view(runs)).silent and not seen.here)


def ended(runs: Path, jobs: Sequence[Noted]) -> bool:
    """Whether all of them have noted their end."""
    return {job.name for job in jobs} <= {name for name, what in notes(runs) if what == "end"}
