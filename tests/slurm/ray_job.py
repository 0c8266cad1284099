"""A job over several machines with Ray between them, submitted by the launcher: for `test_ray_nodes`.

Run as `python -m tests.slurm.ray_job RUNS NAME KIND [RUNTIME=IMAGE]`.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cppo_lab.core_records import Allocation, Resources
from cppo_lab.errors import Interrupted
from cppo_lab.launch.slurm.submit import launch_slurm
from cppo_lab.spec import LayoutSpec, ResourcesSpec
from cppo_lab.sweep.compose import compose
from tests.launch.slurm.containers import settings
from tests.launch.slurm.jobs import slurm_spec, takes
from tests.waiting import CEILING_SECONDS

MACHINES = 2


@dataclass(frozen=True)
class RayJob:
    """Once Ray is there the first machine waits for an end from outside, and fails in its second life.

    `kind` `fail`: it fails in its first. `alone`: there the other machine does not join.
    """

    name: str
    runs: Path
    kind: str
    layout: LayoutSpec
    resources: ResourcesSpec
    allocation: Allocation | None = None
    fresh_process: bool = True
    gpus: int = 0

    @property
    def folder(self) -> Path:
        return self.runs / self.name

    @property
    def places(self) -> tuple[Path, ...]:
        return (self.runs,)

    @property
    def nodes(self) -> int:
        return self.layout.nodes

    def run(self) -> None:
        from cppo_lab.cores.verl import cluster
        from cppo_lab.cores.verl.core import own_ray

        assert self.allocation is not None
        resources = Resources(
            self.runs, self.folder, layout=self.layout, memory_gb=1.0, allocation=self.allocation
        )
        cluster.HEAD_SECONDS = cluster.JOIN_SECONDS = CEILING_SECONDS
        if self.kind == "alone" and not os.environ.get("SLURM_RESTART_COUNT"):
            cluster.JOIN_SECONDS = 1.0
            if self.allocation.rank:
                return
        if self.allocation.rank:
            self._note("lent")
            cluster.run_worker_node(resources)
            self._note("left")
            return
        self._note("training", pid=os.getpid())
        try:
            with own_ray(self.layout, resources.memory_gb, self.allocation) as ray_init:
                self._note("up", **look_around(ray_init))
                if self.kind == "fail" or os.environ.get("SLURM_RESTART_COUNT"):
                    raise RuntimeError("the trainer fails")
                while True:
                    signal.pause()
        except Interrupted as error:
            self._note("interrupted", why=str(error))
            raise

    def give_up(self, why: str) -> None:
        self._note("given up")

    def _note(self, what: str, **values: Any) -> None:
        """Write down what happened, and in which life of the job."""
        life = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        line = {"what": what, "machine": self.allocation.machine, "life": life, **values}
        with (self.folder / "notes").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def look_around(ray_init: dict[str, Any]) -> dict[str, Any]:
    """Where Ray has a process on each machine, and whether SIGUSR2, which Slurm sends to all of a job, would end it."""
    import ray

    ray.init(**ray_init)

    @ray.remote(num_gpus=1, num_cpus=1)
    class Process:
        def look(self) -> tuple[str, bool]:
            status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
            handled = int(status["SigIgn"], 16) | int(status["SigBlk"], 16) | int(status["SigCgt"], 16)
            return str(ray.util.get_node_ip_address()), not handled & 1 << 11

    processes = [Process.remote() for _ in range(MACHINES)]
    addresses, endangered = zip(*ray.get([process.look.remote() for process in processes]), strict=True)
    # <folder>/ray/session_.../sockets/plasma_store
    folders = [str(Path(node["ObjectStoreSocketName"]).parents[3]) for node in ray.nodes()]
    return {"addresses": addresses, "endangered": any(endangered), "folders": folders}


def main(runs: Path, name: str, kind: str, options: list[str]) -> None:
    """Submit one job."""
    layout = compose(["core=verl", "model=tiny_qwen3", "layout=cpu_two_nodes"]).layout
    assert layout is not None
    containers = [
        settings(runtime, Path(image)) for runtime, image in (option.split("=") for option in options)
    ]
    spec = slurm_spec(requeues=3, grace_seconds=60, **({"container": containers[0]} if containers else {}))
    job = RayJob(name, runs, kind, layout, takes(hours=2.0, cpus=1, memory_gb=1.0))
    job.folder.mkdir(parents=True, exist_ok=True)
    launch_slurm([job], spec, lambda event: print(event.kind, event.job.name))


if __name__ == "__main__":
    # Under its importable name, so that the job can be read where it runs.
    from tests.slurm import ray_job

    ray_job.main(Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3], sys.argv[4:])
