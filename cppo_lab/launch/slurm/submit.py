"""Submits runs to Slurm: equal runs as an array. A run has at most one job, even if the launcher is killed.

The settings of the launcher, from a job's resources to its batch script, and what `cppo doctor` checks for
launcher=slurm are here too.
"""

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Self, cast

from pydantic import Field, model_validator

from cppo_lab.errors import UserError, say
from cppo_lab.files import replace_file
from cppo_lab.launch.base import JOB_VARIABLES, Event, J, Job, LauncherSpec, slurm_environment, variables
from cppo_lab.launch.slurm.job import (
    NO_CONTAINER,
    ContainerSpec,
    Line,
    SlurmTask,
    lines_after,
    lines_before,
    wrapping,
)
from cppo_lab.launch.slurm.queue import (
    SUBMISSIONS,
    Ledger,
    ask,
    command_output,
    complaint,
    configured,
    missing_commands,
    refresh,
    require_controller,
    require_slurm,
    submitting,
)
from cppo_lab.launch.training import TrainingJob
from cppo_lab.plugins import MISSING, OK, WARNING, Check
from cppo_lab.runs.machine import freeze
from cppo_lab.spec import ResourcesSpec

if TYPE_CHECKING:
    from submitit import SlurmExecutor


_EARLY_SECONDS = 30  # Slurm checks limits at this interval: its warning may come that much too early
_START_SECONDS = 15  # until a job receives the warning
_SETTLING_SECONDS = 30.0  # a controller that has just started first polls its nodes
_SLOW_SECONDS = 10.0  # sbatch returns within a second, unless the controller accepts no more jobs for now
_GPUS_OF_A_NODE = 8  # a job with so many, or on several nodes, takes them whole, and so their memory
_LONGEST_NAME = 100  # characters of a job's name
_LARGEST_ARRAY = 1000  # if the cluster does not report its limit
_REASON_TRIES, _REASON_SECONDS = 10, 0.5  # until Slurm has a reason for a waiting job
# Reasons of pending jobs that could never start, whatever the nodes' states.
_NEVER = frozenset({"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"})
_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|Connection refused"
    r"|Communication connection failure",
    re.I,
)
# Limits on the number of jobs in the queue, and of tasks in an array that the settings do not say.
_TOO_LONG = "Invalid job array specification"
_FULL = re.compile(rf"(QOS|Assoc)\w*Submit\w*Limit|{_TOO_LONG}")

# Options of sbatch that the launcher sets: values from another source would be silently overridden.
OURS = {
    "array": "one array is made of equal runs",
    "clusters": "jobs are looked for on this cluster",
    "comment": "write the whole word, sbatch.comment",
    "cpus-per-task": "set resources.cpus, or layout.cpus_per_gpu",
    "error": "see `cppo logs`",
    "gpus-per-node": "set layout.devices_per_node",
    "job-name": "it is that of the sweep and the run",
    "mem": "set resources.memory_gb",
    "nodes": "set layout.nodes",
    "ntasks": "one task runs on each node",
    "ntasks-per-node": "one task runs on each node",
    "open-mode": "output is appended to",
    "output": "see `cppo logs`",
    "parsable": "sbatch's answer is read",
    "quiet": "sbatch's answer is read",
    "requeue": "set launcher.requeues",
    "no-requeue": "set launcher.requeues",
    "signal": "set launcher.grace_seconds",
    "tasks-per-node": "one task runs on each node",
    "test-only": "`cppo plan` submits nothing",
    "time": "set resources.hours",
    "partition": "set resources.partition",
    "account": "set resources.account",
    "qos": "set resources.qos",
    "constraint": "set resources.constraint",
    "wait": "`cppo launch` does not wait",
    "wckey": "clusters that check it refuse unknown ones",
    "wrap": "a run is what is submitted",
}
_WHOLE = {"gpus", "comment"}  # allowed, although prefixes of an option above are not
# Those that variables of the user's shell may set (SBATCH_ACCOUNT) where `resources` leaves them to the cluster.
_OF_THE_SHELL = {"partition", "account", "qos", "constraint", "mem", "cpus-per-task"}
# Variables of sbatch that are not called like their option, or that another option excludes.
_OPTIONS_OF = {
    "SBATCH_ARRAY_INX": {"array"},
    "SBATCH_TIMELIMIT": {"time"},
    "SBATCH_MEM_PER_NODE": {"mem"},
    "SBATCH_MEM_PER_CPU": {"mem-per-cpu", "mem"},
    "SBATCH_MEM_PER_GPU": {"mem-per-gpu", "mem"},
    "SBATCH_CPUS_PER_GPU": {"cpus-per-gpu", "cpus-per-task"},
    "SBATCH_GPUS": {"gpus", "gpus-per-node"},
    "SBATCH_GPUS_PER_SOCKET": {"gpus-per-socket", "gpus-per-node"},
    "SBATCH_GPUS_PER_TASK": {"gpus-per-task", "gpus-per-node"},
    "SBATCH_GRES": {"gres", "gpus-per-node"},
}

_Option = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]


class SlurmSpec(LauncherSpec):
    """How runs become Slurm jobs.

    `sbatch` holds options of sbatch that `resources` and `layout` do not cover; `setup` shell lines to run before
    Python starts (modules, environments); `python` the command that starts it, inside the image if there is any.
    """

    requeues: Annotated[int, Field(ge=0, le=1000)]  # after preemption, time limit, or a node's failure
    grace_seconds: Annotated[int, Field(ge=10, le=3600)]  # from Slurm's warning to the time limit
    python: Line | None
    setup: tuple[Line, ...]
    srun: tuple[Line, ...]
    sbatch: dict[_Option, Line | int | bool | None]  # false and null leave the option out
    container: ContainerSpec = NO_CONTAINER

    @property
    def contained(self) -> bool:
        """Whether runs are in a container."""
        return self.container.runtime is not None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, value in self.sbatch.items():
            # sbatch accepts any unambiguous prefix of a long option.
            reserved = [option for option in OURS if option.startswith(name)]
            if reserved and name not in _WHOLE:
                raise ValueError(f"sbatch.{name}={value!r} must not be set here: {OURS[reserved[0]]}")
        return self


def parameters(job: Job, spec: SlurmSpec) -> dict[str, Any]:
    """Keyword arguments of `SlurmExecutor.update_parameters`, and `python`, the command that starts it on a node.

    None stands for the cluster's default. Raises UserError for a job whose folders cannot be mounted in its container.
    """
    taken = job.resources
    wrapped = wrapping(job, spec.container, spec.python)
    # What a layout asks for gives way to what a user sets, in whatever way.
    set_options = {
        name: value for name, value in spec.sbatch.items() if value is not False and value is not None
    }
    cpus, memory = (taken.cpus, taken.memory_gb) if taken else (None, None)
    if cpus is None and "cpus-per-gpu" not in set_options:
        cpus = job.cpus if job.gpus else spec.threads
    whole = job.gpus >= _GPUS_OF_A_NODE or (job.gpus > 0 and job.nodes > 1)
    if memory is None and whole and set_options.keys().isdisjoint(("mem-per-cpu", "mem-per-gpu")):
        memory = 0
    gpu_type = f"{taken.gpu_type}:" if taken and taken.gpu_type else ""
    agreement = " ".join(f"{name}={value}" for name, value in JOB_VARIABLES.items())
    values: dict[str, Any] = {
        "nodes": job.nodes,
        "ntasks_per_node": 1,
        "gpus_per_node": f"{gpu_type}{job.gpus}" if job.gpus else None,
        "cpus_per_task": cpus,
        "python": wrapped.python,
        "setup": [*spec.setup, *wrapped.setup, f"export {agreement}"],
        "srun_args": [
            "--export=ALL",  # of the batch script, also where SBATCH_EXPORT keeps those of the shell from it
            *([f"--cpus-per-task={cpus}"] if cpus else []),  # srun does not take it from the job
            *(["--kill-on-bad-exit=1"] if job.nodes > 1 else []),
            *wrapped.srun,
            *spec.srun,
        ],
        "stderr_to_stdout": True,
        "additional_parameters": {
            # Whether Slurm may requeue a job that is preempted or whose node fails.
            "requeue" if spec.requeues else "no-requeue": True,
            # In place of submitit's, which is as the shell was when submitit was loaded.
            "signal": f"{JOB_VARIABLES['SUBMITIT_PREEMPT_SIGNAL']}@{spec.grace_seconds}",
            **set_options,
        },
        "time": 0,  # no limit, where submitit would set five minutes
    }
    if taken is not None:
        values |= {
            "time": time_limit(spec, taken),
            "mem": None if memory is None else f"{math.ceil(memory * 1024)}M",
            **{name: getattr(taken, name) for name in ("partition", "account", "qos", "constraint")},
        }
    values = {key: value for key, value in values.items() if value is not None}
    return values | {"wckey": None}  # unset that of submitit, which clusters that check keys refuse


def time_limit(spec: SlurmSpec, resources: ResourcesSpec) -> int:
    """The time limit in minutes, as Slurm counts it. Raises UserError if its warning would precede any progress."""
    minutes = max(1, math.ceil(resources.hours * 60))
    if minutes * 60 < spec.grace_seconds + _EARLY_SECONDS + _START_SECONDS:
        raise UserError(
            f"resources.hours={resources.hours:g} is a limit of {minutes} min, but Slurm warns launcher.grace_seconds="
            f"{spec.grace_seconds} before it and up to {_EARLY_SECONDS} s earlier, and a run starts in "
            f"{_START_SECONDS} s: it would make no progress; set resources.hours higher or launcher.grace_seconds lower"
        )
    return minutes


def groups(jobs: Iterable[J], spec: SlurmSpec) -> list[tuple[dict[str, Any], list[J]]]:
    """Jobs grouped by their parameters, in order: each group can be an array."""
    equal: dict[str, tuple[dict[str, Any], list[J]]] = {}
    for job in jobs:
        values = parameters(job, spec)
        equal.setdefault(json.dumps(values, sort_keys=True), (values, []))[1].append(job)
    return list(equal.values())


def launch_slurm(jobs: Sequence[J], spec: LauncherSpec, report: Callable[[Event[J]], None]) -> None:
    """Submit the jobs that are not in Slurm's queue and return; Slurm runs them.

    What exceeds a limit on jobs in the queue is named on standard error and not submitted. Raises UserError if Slurm is
    not available or refuses a job; the error says whether others have been submitted.
    """
    assert isinstance(spec, SlurmSpec)
    require_slurm()
    require_controller()
    runs = jobs[0].folder.parent
    if set(str(runs)) & set(
        "\n\r%\\"
    ):  # an option ends with its line, and Slurm expands % in names of output files
        raise UserError(
            f"launcher=slurm: the folder {str(runs)!r} has a line break, % or a backslash in its name, which Slurm "
            "misreads: rename it, or work in another folder"
        )
    with variables(slurm_environment()), submitting(runs), Ledger(runs) as ledger:
        refresh(ledger)
        queued = {task.name for task in ledger.open_tasks()}
        todo = groups([new for job in jobs if (new := _without(job, queued)) is not None], spec)
        for values, _ in todo:
            _rehearse(values, runs, spec)
        if todo and not spec.contained and ":" not in str(runs):  # an edit changes nothing of what waits
            frozen = shlex.quote(str(freeze(runs)))
            for values, _ in todo:
                values["setup"].append(f"export PYTHONPATH={frozen}${{PYTHONPATH:+:$PYTHONPATH}}")
        submitted, limit = 0, ""
        refused: list[str] = []
        largest = _LARGEST_ARRAY
        if todo:  # how many tasks the cluster allows in an array
            longest = configured("MaxArraySize") or ""
            most = re.search(r"\bmax_array_tasks=(\d+)", configured("SchedulerParameters") or "")
            largest = int(longest) - 1 if longest.isdecimal() else largest
            largest = max(1, min(largest, int(most[1])) if most else largest)
        for values, alike in todo:
            size = largest
            while alike and size:
                if refusal := _submit(alike[:size], values, ledger, spec, submitted):
                    limit, size = refusal, len(alike[:size]) // 2
                    continue
                for job in alike[:size]:
                    submitted += len(_names(job))
                    report(Event("submitted", job))
                alike = alike[size:]
            refused += [name for job in alike for name in _names(job)]
    if refused:
        shown = ", ".join(refused[:4]) + (f" and {len(refused) - 4} more" if len(refused) > 4 else "")
        line = f"Slurm takes no more jobs now ({limit}): not submitted: {shown}: launch again when others have ended"
        if not (submitted or queued):
            raise UserError(line)
        say(f"cppo: {line}")


def _submit(jobs: Sequence[J], values: dict[str, Any], ledger: Ledger, spec: SlurmSpec, before: int) -> str:
    """Submit an array. Returns Slurm's limit that refuses so many jobs; empty: it is submitted.

    `before`: how many runs this launch has submitted before. Raises UserError if Slurm refuses them for another reason.
    """
    names = [name for job in jobs for name in _names(job)]
    positions = [position for position, job in enumerate(jobs) for _ in _names(job)]
    token = ledger.claim(names, positions, configured("ClusterName"))
    # Read-only commands load the settings above, and do not need submitit.
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    titles = [title_of(job) for job in jobs]
    # An array has one name; each of its tasks takes that of its run when it starts (job.py).
    name = (
        titles[0] if len(titles) == 1 else ",".join(dict.fromkeys(text.partition("/")[0] for text in titles))
    )
    executor = _executor(ledger.folder_of(token), values, spec, token, len(jobs), name)
    # sbatch retries for minutes, silently, if the controller accepts no more jobs.
    slow = (
        f"cppo: sbatch has not answered for {_SLOW_SECONDS:.0f} s: the cluster may have reached its limit of jobs "
        "(MaxJobCount), or its controller is slow; sbatch tries again by itself, and Ctrl-C loses nothing"
    )
    timer = threading.Timer(_SLOW_SECONDS, say, [slow])
    timer.daemon = True
    timer.start()
    try:
        with executor.batch():
            submitted = [
                executor.submit(SlurmTask(job, spec.requeues, title_of(job), spec.grace_seconds))
                for job in jobs
            ]
    except FailedJobError as error:
        ledger.end(ledger.open_tasks(token), "not submitted")
        if (limit := _FULL.search(str(error))) and (len(jobs) > 1 or limit[0] != _TOO_LONG):
            return limit[0]
        raise _refused(str(error), before) from None
    except FailedSubmissionError as error:  # it may be in the queue all the same: the next launch checks
        text = " ".join(str(error).split())
        raise UserError(
            f"{text}: launch again; if this persists, check which `sbatch` this is (`type sbatch`)"
        ) from None
    finally:
        timer.cancel()
    ledger.submitted(token, int(str(submitted[0].job_id).partition("_")[0]))
    return ""


def _read_output(
    process: "subprocess.Popen[bytes]", stdout: IO[str], stderr: IO[str], verbose: bool = False
) -> None:
    """What submitit reads of sbatch; undecodable bytes are replaced."""
    for text, output in zip((stdout, stderr), process.communicate(), strict=True):
        text.write(output.decode(errors="replace"))


def _job_number(output: str) -> str:
    """The job in sbatch's answer, whatever else a site's prints. Raises submitit's error if it names none."""
    for line in (r"^Submitted batch job ([0-9]{1,18})\b", r"job ([0-9]{1,18})\b"):
        if number := re.search(line, output, re.M):
            return number[1]
    from submitit.core.utils import FailedSubmissionError

    raise FailedSubmissionError(f'Could not make sense of sbatch output "{output}"')


def _names(job: Job) -> tuple[str, ...]:
    """The names of a job in the ledger: those of its runs."""
    return job.run_ids if isinstance(job, TrainingJob) else (job.name,)


def title_of(job: Job) -> str:
    """The name of a job in Slurm's queue: its sweep and run, without what people's scripts around squeue split at."""
    title = job.title if isinstance(job, TrainingJob) else f"cppo/{job.name}"
    return re.sub(r"[^\w./=+-]+", "_", title, flags=re.ASCII)[:_LONGEST_NAME]


def _without(job: J, busy: Collection[str]) -> J | None:
    """`job` without the runs that are in the queue already; None if nothing is left of it."""
    if isinstance(job, TrainingJob):
        return cast(J | None, job.without(busy))
    return None if job.name in busy else job


def _executor(
    folder: Path, values: dict[str, Any], spec: SlurmSpec, token: str, size: int, name: str = "cppo"
) -> "SlurmExecutor":
    from submitit import SlurmExecutor
    from submitit.core import utils

    class Executor(SlurmExecutor):
        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            return _job_number(str(string))

    utils.copy_process_streams = _read_output  # submitit's takes bytes that are no UTF-8 for a refusal
    options = dict(values)
    executor = Executor(folder, max_num_timeout=spec.requeues, python=options.pop("python", None))
    if spec.container.runtime:
        options |= {"setup": [*options["setup"], *lines_before(folder.resolve())], "teardown": lines_after()}
    if "comment" in options["additional_parameters"]:  # a site may demand a comment: the token is in the name
        name += f"@{token}"
    executor.update_parameters(
        **options, job_name=name, comment=token, array_parallelism=spec.workers or size
    )
    return executor


def _rehearse(values: dict[str, Any], runs: Path, spec: SlurmSpec) -> None:
    """Have Slurm validate a batch script without running it. Raises UserError with Slurm's objection."""
    script = runs / SUBMISSIONS / "rehearsal.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    text = _executor(script.parent, values, spec, "rehearsal", 1)._make_submission_file_text(
        "true", "rehearsal"
    )
    _remove_overriding(text, spec)
    # Replaced, since the file of a killed launcher of another account could not be overwritten.
    replace_file(script, text)
    deadline = time.monotonic() + _SETTLING_SECONDS
    try:
        # A controller that has just started knows no nodes yet, and refuses jobs that need a node.
        while (
            (done := ask("sbatch", "--test-only", str(script))).returncode
            and time.monotonic() < deadline
            and "unknown" in ask("sinfo", "-h", "-o%T").stdout
        ):
            time.sleep(1.0)
        refusal = done.stderr if done.returncode else ""
        if _FULL.search(refusal):
            refusal = ""  # not for ever
        elif refusal and not _AWAY.search(refusal):
            refusal = _refused_for_ever(script, refusal)
    finally:
        script.unlink()
    if refusal:
        raise _refused(refusal)


def _remove_overriding(script: str, spec: SlurmSpec) -> None:
    """Remove the variables that override what a batch script sets, or that the launcher relies on, and say which."""
    reserved = {
        *re.findall(r"^#SBATCH --([a-z-]+)", script, re.M),
        *(OURS.keys() - _OF_THE_SHELL),
        *spec.sbatch,
    }
    names = [
        name
        for name in sorted(os.environ)
        if name.startswith("SBATCH_")
        and not reserved.isdisjoint(_OPTIONS_OF.get(name, {name[len("SBATCH_") :].lower().replace("_", "-")}))
    ]
    for name in names:
        del os.environ[name]
    if names:
        say(
            f"cppo: {', '.join(names)}: ignored, since `launcher`, `resources` and `layout` set what "
            f"{'it sets' if len(names) == 1 else 'they set'} (docs/slurm.md)"
        )


def _refused_for_ever(script: Path, refusal: str) -> str:
    """Why a job that `sbatch --test-only` refuses could never run; empty if it would only have to wait.

    The test refuses everything that no node can take now, also while nodes are drained, reserved or down. A real
    submission is queued then. So the script is submitted, and cancelled before it can start.
    """
    trial = ("--parsable", "--begin=now+1hour", "--output=/dev/null", "--error=/dev/null")
    done = ask("sbatch", *trial, str(script))
    if done.returncode:
        return done.stderr
    # Behind what a site's sbatch says to everybody; a number that is not there can be neither asked for nor cancelled.
    *_, job = ("", *re.findall(r"^[0-9]+", done.stdout, re.M))
    if not job:
        return ""
    try:
        for _ in range(_REASON_TRIES):
            reason = ask("squeue", "--noheader", f"--jobs={job}", "--format=%r").stdout.strip()
            if reason in _NEVER:
                return f"{refusal}\nit would never start ({reason})"
            if reason == "BeginTime":  # the scheduler has set this in place of the reason that is needed
                ask("scontrol", "update", f"JobId={job}", "StartTime=now")
            elif reason != "None":
                break
            time.sleep(_REASON_SECONDS)
    finally:
        ask("scancel", "--quiet", job)
    return ""


def _refused(objection: str, sent: int = 0) -> UserError:
    """What sbatch objects to, as a line, and whether `sent` runs were submitted before."""
    before = f"{sent} other runs were submitted" if sent else "nothing was submitted"
    lines = [
        line.strip().removeprefix("sbatch: ").removeprefix("error: ")
        for line in objection.splitlines()
        if line.strip() and not line.startswith('Try "sbatch --help"')
    ]
    if _AWAY.search(objection):
        return UserError(
            f"Slurm's controller does not answer ({'; '.join(lines)}): {before}; see that it is up "
            "(`scontrol ping`), and launch again"
        )
    return UserError(
        f"Slurm rejects these jobs: {'; '.join(lines) or 'it gave no reason'}: {before}; check resources.*, layout.* "
        "and launcher.sbatch of the runs (`sinfo` lists partitions, `cppo show` what a run requests)"
    )


WAIT_SECONDS = 10  # for a node; longer than a cycle of the scheduler
NODE_PATIENCE = 60.0  # seconds for the whole check
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
        done = command_output(*command, "bash", "-c", script, seconds=NODE_PATIENCE)
    except subprocess.TimeoutExpired:
        return [], f"srun did not answer within {NODE_PATIENCE:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return done.stdout.splitlines(), lines[0] if done.returncode else ""


# Checks what launcher=slurm needs on the submitting machine: commands, controller, partitions, a shared folder.

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
    if lacking := missing_commands():
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
    kinds: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
            _, place, kind, *_ = line.split()
            kinds[place.replace("\\040", " ")] = kind  # a later one hides those before
    real = runs.resolve()
    kind = next((kinds[str(place)] for place in (real, *real.parents) if str(place) in kinds), "")
    if kind.startswith(SHARED) or kind.startswith("fuse."):
        return Check("shared runs folder", OK, f"{runs} is on {kind}")
    remedy = "work in a folder that all nodes see under the same path, and MLflow's file in one too"
    return Check("shared runs folder", WARNING, f"{runs} is on {kind or 'an unknown file system'}", remedy)


def _ask(*command: str) -> tuple[str, str]:
    """The output of a command, and an error message if it fails."""
    try:
        done = command_output(*command, seconds=PATIENCE)
    except FileNotFoundError:
        return "", f"{command[0]} not found"
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} did not answer within {PATIENCE:.0f} s"
    return ("", f"{command[0]}: {complaint(done)}") if done.returncode else (done.stdout.strip(), "")
