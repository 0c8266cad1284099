"""What a container adds to the batch script of a Slurm job; and what runs inside that job: a launcher job, requeued
when Slurm takes its machine away.

Only the job's Python runs in the container; Slurm's commands are available outside only, to the batch script. A process
inside that wants the job requeued writes a request to a file, and the batch script carries it out when `srun` has
returned. Shared files have the same paths on both sides.
"""

import contextlib
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cppo_lab import schema
from cppo_lab.errors import Interrupted, UserError
from cppo_lab.launch.base import JOB_VARIABLES, Job, run_masked
from cppo_lab.launch.slurm.queue import command_output
from cppo_lab.launch.training import TrainingJob
from cppo_lab.plugins import hub_cache
from cppo_lab.runs.attempt import Allocation
from cppo_lab.runs.folder import AlreadyRunning
from cppo_lab.runs.machine import code_version
from cppo_lab.spec import Spec

if TYPE_CHECKING:  # read-only commands load the settings of a container, and do not need submitit
    from submitit.helpers import DelayedSubmission

OUTSIDE = "CPPO_OUTSIDE"  # set only inside: the file that carries a request to the batch script
GO_BACK, GO_BACK_IF_PREEMPTED = "requeue", "requeue if preempted"  # the requests
# Variables of Python with paths of the machine that are missing, or different, in the image.
_OF_PYTHON = ("PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "VIRTUAL_ENV")
# The image's project takes precedence over a checkout in the working folder and packages in the home folder.
_IN_THE_IMAGE = JOB_VARIABLES | {"PYTHONNOUSERSITE": "1"}
# Text without line breaks, since it becomes part of a line of the batch script.
Line = Annotated[str, Field(pattern=r"^[^\n\r\x00]*$", max_length=4096)]

# A comma or a colon ends a mount for pyxis and Apptainer, and enroot reads the paths of mounts in a shell's quotes.
_MISREAD = re.compile(r"""[,:"$`\\\x00-\x1f\x7f]""")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = re.compile(r"(SLURMD?|SUBMITIT|CPPO_OUTSIDE)(_|\Z)")  # variables that the job depends on
_REMEDY = "write SOURCE:TARGET or SOURCE:TARGET:ro, both absolute"


class ContainerSpec(Spec):
    """The image that contains a run's Python, and the parts of the machine mounted into it.

    `runtime` None: no container. `mounts` are SOURCE:TARGET or SOURCE:TARGET:ro, in addition to the folders that the
    run needs. `environment` lists NAME, to pass a variable from outside, overriding the image, or NAME=VALUE.
    """

    runtime: Literal["pyxis", "apptainer"] | None
    image: Line | None
    mounts: tuple[Line, ...]
    environment: tuple[Line, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.runtime is None:
            for name in ("image", "mounts", "environment"):
                if value := getattr(self, name):
                    raise ValueError(
                        f"{name}={value!r} has no use without a runtime: set launcher.container.runtime to pyxis or "
                        "apptainer"
                    )
            return self
        if self.image is None or not self.image.strip():
            raise ValueError(
                f"runtime={self.runtime!r} with image={self.image!r}: set launcher.container.image to a file or an "
                "address of an image"
            )
        if self.image.startswith("-"):
            raise ValueError(f"image={self.image!r} would be read as an option: write ./{self.image}")
        if target := _repeated([_require_mount(mount) for mount in self.mounts]):
            raise ValueError(f"mounts: two have the target {target}: remove one")
        if name := _repeated([_require_variable(entry) for entry in self.environment]):
            raise ValueError(f"environment: {name} appears twice: remove one")
        return self


NO_CONTAINER = ContainerSpec(runtime=None, image=None, mounts=(), environment=())


def _repeated(names: Sequence[str]) -> str:
    """The first of the names that is there more than once."""
    return next((name for name in names if names.count(name) > 1), "")


def _require_mount(mount: str) -> str:
    """The target of a mount. Raises ValueError for text that a runtime would misread."""
    parts = mount.split(":")
    if len(parts) == 3 and parts[2] in ("ro", "rw"):
        parts.pop()
    if len(parts) != 2:
        raise ValueError(f"mounts: {mount!r} is not two paths with a colon between: {_REMEDY}")
    for path in parts:
        if misread := _MISREAD.search(path):
            raise ValueError(
                f"mounts: {path!r} has {misread[0]!r} in it, which container runtimes misread: mount "
                "the folder above it, or a path without it"
            )
        if not path.startswith("/") or ".." in path.split("/") or path != path.strip():
            raise ValueError(f"mounts: {mount!r}: {path!r} is not an absolute path: {_REMEDY}")
    target = parts[1].strip("/")
    if not target:
        raise ValueError(f"mounts: {mount!r} would hide the whole image: {_REMEDY}")
    return f"/{target}"


def _require_variable(entry: str) -> str:
    """The name of a variable. Raises ValueError if it is not a valid name, or must not be set by the user."""
    name = entry.partition("=")[0]
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"environment: {entry!r}: write NAME, or NAME=VALUE")
    if name in _IN_THE_IMAGE or _OURS.match(name):
        raise ValueError(f"environment: {name} is set by Slurm and the launcher: remove it")
    return name


@dataclass(frozen=True)
class Wrapping:
    """What a container adds to a batch script: arguments of srun, the command that starts Python, lines before."""

    srun: tuple[str, ...]
    python: str | None
    setup: tuple[str, ...]


def wrapping(job: Job, container: ContainerSpec, python: str | None) -> Wrapping:
    """How `job` is started in its container, if it has any; `python` is the command in the image (None: `python`).

    Raises UserError for a folder that cannot be mounted under its path.
    """
    if container.image is None:
        return Wrapping((), python, ())
    folder, places = Path.cwd(), [Path.cwd(), *job.places]
    mounts = [*_mounts(places, container), *container.mounts]
    given = [entry for entry in container.environment if "=" in entry]
    names = [entry for entry in container.environment if "=" not in entry]
    values = dict(_IN_THE_IMAGE)
    if hub_cache() in places:
        values["HF_HUB_CACHE"] = str(hub_cache())  # the home folder may differ in the container
    command = shlex.join(["env", *(f"{name}={value}" for name, value in values.items()), *given])
    command = f"{command} {python or 'python'}"
    unset = f"unset {' '.join(name for name in _OF_PYTHON if name not in names)}"
    if container.runtime == "pyxis":
        options = (
            f"--container-image={container.image}",
            f"--container-mounts={','.join(mounts)}",
            f"--container-workdir={folder}",
            "--no-container-mount-home",
            "--no-container-remap-root",  # files are written and read as the same user as outside
            "--container-writable",  # caches of compilers; gone with the container
            f"--container-env={','.join([OUTSIDE, *names])}",
        )
        return Wrapping(options, command, (unset,))
    words = ["apptainer", "exec", *(["--nv"] if job.gpus else [])]
    words += [word for mount in mounts for word in ("--bind", mount)]
    words += ["--pwd", str(folder), container.image]
    # By variables, since every user of the machine can read arguments.
    passed = [f'[ -z "${{{name}+x}}" ] || export APPTAINERENV_{name}="${name}"' for name in names]
    return Wrapping((), f"{shlex.join(words)} {command}", (unset, *passed))


def lines_before(folder: Path) -> list[str]:
    """The last shell lines before srun. `folder` is that of the submission, without `%` and line breaks."""
    word = f"{shlex.quote(str(folder))}/outside-$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"
    return [f"export {OUTSIDE}={word}", "set +e"]  # the lines after srun run whatever its exit status is


def lines_after() -> list[str]:
    """Shell lines after srun: carry out the request from inside. The job exits with the status of srun."""
    preempted = (
        'scontrol show job --oneliner "$SLURM_JOB_ID" | grep -Eq " JobState=RUNNING .* PreemptTime=[0-9]"'
    )
    return [
        "status=$?",
        f'if [ -f "${OUTSIDE}" ]; then',
        f'  asked=$(cat "${OUTSIDE}"); rm -f "${OUTSIDE}"',
        # The job id of an array's last task equals that of the array, and would requeue the whole array.
        "  job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}",
        f'  if [ "$asked" = "{GO_BACK}" ] || {preempted}; then scontrol requeue "${{job:-$SLURM_JOB_ID}}"; fi',
        "fi",
        "exit $status",
    ]


def _ask_outside(request: str) -> bool:
    """Make a request to the batch script for when this job's processes have ended; False outside a container."""
    path = os.environ.get(OUTSIDE)
    if path is None:
        return False
    Path(path).write_text(request, encoding="utf-8")
    return True


def _mounts(places: Sequence[Path], container: ContainerSpec) -> list[str]:
    """Mounts of `places` under their paths on this machine, and of the targets of links in those paths."""
    pairs = [(place.resolve(), place.absolute()) for place in places]
    named = [pair for pair in pairs if ".." not in pair[1].parts]
    mounted: dict[Path, Path] = {}
    # Parent folders come first, since mounting them later would hide the others. Targets of links are mounted as well.
    for layer in ([(real, real) for real, _ in pairs], named):
        for source, target in sorted(layer, key=lambda pair: len(pair[1].parts)):
            _require_mountable(target, container)
            if not any(target.is_relative_to(folder) for folder in mounted):
                mounted[target] = source
    of_the_user = {Path(mount.split(":")[1]) for mount in container.mounts}
    return [f"{source}:{target}" for target, source in mounted.items() if target not in of_the_user]


def _require_mountable(place: Path, container: ContainerSpec) -> None:
    text = str(place)
    if len(place.parts) == 1 or _MISREAD.search(text) or text != text.strip():
        raise UserError(
            f"launcher.container.runtime={container.runtime}: the folder {text!r} cannot be mounted by its "
            "name (no comma, colon, quote, $, ` or backslash, and not the root): rename it, or work in another folder"
        )


# A preempted run may still be writing its last records on the other machine.
PREDECESSOR_SECONDS = 120.0


@dataclass(frozen=True)
class SlurmTask:
    """`job`, how often it may be requeued, and its name in the queue. submitit calls it, and `checkpoint` on Slurm's
    warning.
    """

    job: Job
    requeues: int
    title: str = ""  # empty in jobs of older versions
    grace_seconds: float = 0.0  # how long before the time limit Slurm warns it

    def __call__(self) -> None:
        allocation = _allocation(self.job)
        if _restarts() > self.requeues:
            if allocation is not None and allocation.rank:
                return
            sys.exit(self._give_up())
        self._take_name()
        requeue = signal.getsignal(signal.SIGUSR2)  # submitit's: `checkpoint`, then `scontrol requeue`
        try:
            self._run(_in_this_job(self.job, allocation, self.grace_seconds))
        except Interrupted as error:  # the job has recorded it and has replaced submitit's handlers
            if not callable(requeue) or not (error.number == signal.SIGUSR2 or self._preempted()):
                raise  # a user cancelled or requeued it
            try:
                requeue(signal.SIGUSR2, None)
            except subprocess.CalledProcessError:
                raise error from None  # Slurm has already requeued it
        finally:
            if allocation is not None and allocation.rank == 0:
                allocation.end()

    def _take_name(self) -> None:
        """Show this run's name in the queue, where the tasks of an array share a name until they start."""
        name = os.environ.get("SLURM_JOB_NAME", "")
        if not self.title or "SLURM_ARRAY_TASK_ID" not in os.environ or OUTSIDE in os.environ:
            return
        title = self.title + "".join(name.partition("@")[1:])  # the token stays
        if name != title and os.environ.get("SLURM_PROCID", "0") == "0":
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                job_id = os.environ.get("SLURM_JOB_ID", "")
                command_output("scontrol", "update", f"JobId={job_id}", f"JobName={title}")

    def _run(self, job: Job) -> None:
        deadline = time.monotonic() + PREDECESSOR_SECONDS
        while True:
            try:
                return run_masked(job)
            except AlreadyRunning:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)

    def checkpoint(self) -> "DelayedSubmission":
        """What goes back into the queue; nothing is saved here, since the run's core has written its checkpoint.

        submitit calls it when a job without a signal handler is preempted or reaches its time limit. Ends the
        process if the job may not be requeued.
        """
        from submitit.helpers import DelayedSubmission

        # Slurm's SIGTERM follows, and Apptainer forwards signals that the container has already received. Ignore them:
        # the job is already ending and records its progress.
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        if _restarts() >= self.requeues:
            sys.exit(self._give_up())
        if _ask_outside(GO_BACK):
            sys.exit(f"{self.job.name}: the batch script requeues the job")
        return DelayedSubmission(self)

    def _preempted(self) -> bool:
        """Whether Slurm reports that this job is being preempted; it leaves it to the job to requeue itself.

        In a container only the batch script can find out, and requeues the job if so.
        """
        if OUTSIDE in os.environ:
            if _restarts() < self.requeues:
                _ask_outside(GO_BACK_IF_PREEMPTED)
            return False
        try:
            shown = command_output(
                "scontrol", "show", "job", "--oneliner", os.environ.get("SLURM_JOB_ID", "")
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return re.search(r"\bJobState=RUNNING .*\bPreemptTime=[0-9]", shown.stdout) is not None

    def _give_up(self) -> str:
        why = (
            f"it was requeued {min(_restarts(), self.requeues)} times, the most allowed "
            f"(launcher.requeues={self.requeues}): launch again to resume"
        )
        self.job.give_up(why)
        return f"{self.job.name}: {why}"


def _restarts() -> int:
    """How often Slurm has started this job again."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def _allocation(job: Job) -> Allocation | None:
    """The machines that Slurm allocated to a multi-node job; one task runs on each."""
    if job.nodes == 1:
        return None
    from submitit import JobEnvironment

    environment = JobEnvironment()
    life = f"nodes-{environment.raw_job_id}.{_restarts()}"  # a requeued job keeps its id
    meeting = job.folder.resolve() / "attempts" / life
    return Allocation(tuple(environment.hostnames), environment.global_rank, meeting)


def _in_this_job(job: Job, allocation: Allocation | None, grace_seconds: float) -> Job:
    """`job` with the machines and GPUs that Slurm allocated, in place of those that the launcher saw."""
    here: dict[str, Any] = {
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "allocation": allocation,
        "grace_seconds": grace_seconds,
    }
    if isinstance(job, TrainingJob):
        # The project in the image does the training.
        tags = {schema.TAG_CODE_VERSION: code_version()} if OUTSIDE in os.environ else {}
        attempts = (
            dataclasses.replace(attempt, **here, tags={**attempt.tags, **tags}) for attempt in job.attempts
        )
        return dataclasses.replace(job, attempts=tuple(attempts))
    fields = {name: value for name, value in here.items() if hasattr(job, name)}
    if isinstance(training := getattr(job, "training", None), TrainingJob):  # of a search's worker
        fields["training"] = _in_this_job(training, allocation, grace_seconds)
    if not fields:
        return job
    assert dataclasses.is_dataclass(job) and not isinstance(job, type)
    return dataclasses.replace(job, **fields)
