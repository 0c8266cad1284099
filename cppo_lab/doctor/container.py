"""Checks what a run in a container needs on Slurm's nodes, on one of them, in a few seconds."""

import shlex
import subprocess
from collections.abc import Iterator

from cppo_lab.doctor.check import MISSING, OK, WARNING, Check
from cppo_lab.launch.slurm.container import ContainerSpec
from cppo_lab.launch.slurm.queue import command_output
from cppo_lab.launch.slurm.submit import SlurmSpec
from cppo_lab.spec import ResourcesSpec

WAIT_SECONDS = 10  # for a node; longer than a cycle of the scheduler
PATIENCE = 60.0  # seconds for the whole check
_RUNTIMES = {
    "pyxis": ("srun --help 2>&1 | grep -q -- --container-image", "srun --container-image"),
    "apptainer": ("command -v apptainer >/dev/null", "apptainer"),
}
_REMEDIES = {
    "pyxis": "ask whether the cluster has pyxis, or set launcher.container.runtime=apptainer",
    "apptainer": "name its module in launcher.setup, or set launcher.container.runtime=pyxis",
}


def check_container(launcher: SlurmSpec, resources: ResourcesSpec) -> Iterator[Check]:
    """The runtime, the image if it is a file, and the sources of mounts, on a node such as the run would get."""
    container = launcher.container
    if container.runtime is None or container.image is None:
        return
    looks, shown = _RUNTIMES[container.runtime]
    files = [container.image] if _is_file(container) else []
    files += [mount.split(":")[0] for mount in container.mounts]
    lines = [*launcher.setup, f"if {looks}; then echo cppo-runtime; fi"]
    lines += [f"if [ -e {shlex.quote(file)} ]; then echo cppo-file-{at}; fi" for at, file in enumerate(files)]
    said, problem = _on_a_node("\n".join([*lines, "echo cppo-looked"]), resources)
    if "cppo-looked" not in said:
        why = problem or "launcher.setup ended the shell"
        yield Check("container", WARNING, f"no node was checked: {why}", "try again when a node is free")
        return
    if "cppo-runtime" in said:
        yield Check("container's runtime", OK, f"{shown} on a node")
    else:
        yield Check("container's runtime", MISSING, f"no {shown} on a node", _REMEDIES[container.runtime])
    if not _is_file(container):
        yield Check("container's image", OK, f"{container.image} is an address: not checked")
    for at, file in enumerate(files):
        name = "container's image" if file == container.image else "container's mount"
        if f"cppo-file-{at}" in said:
            yield Check(name, OK, file)
        else:
            yield Check(name, MISSING, f"a node does not see {file}", "put it where all nodes see it")


def _is_file(container: ContainerSpec) -> bool:
    """Whether the image is a file; the runtimes tell files from addresses in the same way."""
    assert container.image is not None
    return (
        container.image.startswith((".", "/"))
        if container.runtime == "pyxis"
        else "://" not in container.image
    )


def _on_a_node(script: str, resources: ResourcesSpec) -> tuple[list[str], str]:
    """The output lines of a script on a node, or an error message."""
    wanted = {name: getattr(resources, name) for name in ("partition", "account", "qos", "constraint")}
    options = [f"--{name}={value}" for name, value in wanted.items() if value is not None]
    command = [
        "srun",
        "--quiet",
        f"--immediate={WAIT_SECONDS}",
        "--nodes=1",
        "--ntasks=1",
        "--time=1",
        *options,
    ]
    try:
        done = command_output(*command, "bash", "-c", script, seconds=PATIENCE)
    except subprocess.TimeoutExpired:
        return [], f"srun did not answer within {PATIENCE:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return done.stdout.splitlines(), lines[0] if done.returncode else ""
