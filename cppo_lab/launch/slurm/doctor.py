"""Checks of what launcher=slurm needs, on the submitting machine and, for containers, on a node."""

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cppo_lab.launch.slurm.job import ContainerSpec
from cppo_lab.launch.slurm.queue import command_output
from cppo_lab.launch.slurm.submit import SlurmSpec
from cppo_lab.plugins import MISSING, OK, WARNING, Check
from cppo_lab.spec import ResourcesSpec

WAIT_SECONDS = 10  # for a node; longer than a cycle of the scheduler
CHECK_PATIENCE = 60.0  # seconds for the whole check
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
    output, problem = _on_a_node("\n".join([*lines, "echo cppo-looked"]), resources)
    if "cppo-looked" not in output:
        why = problem or "launcher.setup ended the shell"
        yield Check("container", WARNING, f"no node was checked: {why}", "try again when a node is free")
        return
    if "cppo-runtime" in output:
        yield Check("container's runtime", OK, f"{shown} on a node")
    else:
        yield Check("container's runtime", MISSING, f"no {shown} on a node", _REMEDIES[container.runtime])
    if not _is_file(container):
        yield Check("container's image", OK, f"{container.image} is an address: not checked")
    for at, file in enumerate(files):
        name = "container's image" if file == container.image else "container's mount"
        if f"cppo-file-{at}" in output:
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
    chosen = {name: getattr(resources, name) for name in ("partition", "account", "qos", "constraint")}
    options = [f"--{name}={value}" for name, value in chosen.items() if value is not None]
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
        done = command_output(*command, "bash", "-c", script, seconds=CHECK_PATIENCE)
    except subprocess.TimeoutExpired:
        return [], f"srun did not answer within {CHECK_PATIENCE:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return done.stdout.splitlines(), lines[0] if done.returncode else ""


# Checks what launcher=slurm needs on the submitting machine: commands, controller, partitions, a shared folder.


COMMANDS = ("sbatch", "squeue", "scancel", "srun")
PATIENCE = 15.0  # seconds for the controller to answer
MOUNTS = Path("/proc/mounts")
SHARED = (
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "wekafs",
    "panfs",
    "afs",
    "cifs",
    "orangefs",
    "9p",
)


def check_slurm(resources: ResourcesSpec, runs: Path, launcher: SlurmSpec) -> Iterator[Check]:
    """Check Slurm, the partition and the folder of all runs from here, and the container on a node."""
    lacking = [name for name in COMMANDS if shutil.which(name) is None]
    if lacking:
        remedy = "go to a login node of the cluster (`make slurm-dev` starts a Slurm to try things out)"
        yield Check("Slurm's commands", MISSING, f"{', '.join(lacking)} not found", remedy)
        return
    yield Check("Slurm's commands", OK, str(Path(str(shutil.which("sbatch"))).parent))
    answer, problem = _ask("scontrol", "ping")
    if problem:
        yield Check(
            "Slurm's controller", MISSING, problem, "check that it is up, and SLURM_CONF if it is set"
        )
        return
    yield Check("Slurm's controller", OK, answer)
    partition = _partition(resources.partition)
    yield partition
    yield _shared(runs)
    if partition.status == OK:
        yield from check_container(launcher, resources)


def _partition(requested: str | None) -> Check:
    listing, problem = _ask("sinfo", "--noheader", "--format=%R|%a")
    if problem:
        return Check("partition", WARNING, f"partitions cannot be listed: {problem}")
    states = {name: state for line in listing.splitlines() for name, _, state in [line.partition("|")]}
    if requested is None:
        return Check("partition", OK, f"the cluster's default; available: {', '.join(sorted(states))}")
    lacking = [name for name in requested.split(",") if name not in states]
    if lacking:
        remedy = f"set resources.partition to one of {', '.join(sorted(states))}"
        return Check("partition", MISSING, f"the cluster has no {', '.join(lacking)}", remedy)
    down = [name for name in requested.split(",") if states[name] != "up"]
    if down:
        return Check(
            "partition", WARNING, f"{', '.join(down)} is {states[down[0]]}", "its jobs wait until it is up"
        )
    return Check("partition", OK, requested)


def _shared(runs: Path) -> Check:
    """Judged by the type of the file system: a local file system is rarely visible to other machines."""
    kind = _file_system(runs)
    if kind.startswith(SHARED) or kind.startswith("fuse."):
        return Check("shared runs folder", OK, f"{runs} is on {kind}")
    remedy = "work in a folder that all nodes see under the same path, and MLflow's file in one too"
    return Check("shared runs folder", WARNING, f"{runs} is on {kind or 'an unknown file system'}", remedy)


def _file_system(path: Path) -> str:
    """The type of the file system that holds `path`, as the kernel calls it; empty where that is not known."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best = ("", "")
    for line in lines:
        _, place, kind, *_ = line.split()
        place = place.replace("\\040", " ")
        if path.resolve().is_relative_to(place) and len(place) >= len(best[0]):
            best = (place, kind)
    return best[1]


def _ask(*command: str) -> tuple[str, str]:
    """The output of a command, and an error message if it fails."""
    try:
        done = command_output(*command, seconds=PATIENCE)
    except FileNotFoundError:
        return "", f"{command[0]} not found"
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} did not answer within {PATIENCE:.0f} s"
    text = (done.stdout.strip() or done.stderr.strip()) if done.returncode else done.stdout.strip()
    lines = text.splitlines() or [f"exit status {done.returncode}"]
    return (text, "") if done.returncode == 0 else ("", f"{command[0]}: {lines[0]}")
