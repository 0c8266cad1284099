"""Trains a run with verl's trainer, from the first step or the last complete checkpoint to the end."""

import importlib.util
import json
import math
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from cppo_lab import schema
from cppo_lab.core_records import MACHINE, Allocation, MetricSink, Resources
from cppo_lab.cores.base import require_same_task
from cppo_lab.cores.verl import checkpoints
from cppo_lab.cores.verl.checkpoints import HandOver, score_name
from cppo_lab.cores.verl.checks import INFINIBAND, RDMA, can_load
from cppo_lab.cores.verl.cluster import (
    DEVICE_VARIABLE,
    alone,
    head,
    longer_start_timeout,
    openmp_threads,
    own_handlers,
    without_working_folder,
)
from cppo_lab.cores.verl.export import export
from cppo_lab.cores.verl.files import Files, planned_files, require_files
from cppo_lab.cores.verl.rollout import SOCKET_VARIABLE
from cppo_lab.errors import Interrupted, UserError, find_interruption, interruption
from cppo_lab.files import replace_file
from cppo_lab.plugins import install_extra
from cppo_lab.schema import Outcome
from cppo_lab.spec import HubModel, LayoutSpec, RunSpec, VerlRun

SIGNAL_WAIT_SECONDS = 3.0  # how long to wait for a signal that explains why Ray ended
FOLLOW_SECONDS = 1.0  # how often the trainer's record is read


def train(spec: RunSpec, sink: MetricSink, resources: Resources) -> Outcome:
    """Run `spec` to its last step or to its collapse; a run with a complete checkpoint resumes from there.

    Raises UserError for missing files or settings that do not fit, RuntimeError with the reason if training fails.
    """
    folder = resources.folder
    assert isinstance(spec, VerlRun)
    if importlib.util.find_spec("verl") is None:
        raise UserError(f"package 'verl' is not installed: {install_extra('verl')}")
    with checkpoints.writing(folder):
        resources.doing("reading the checkpoint")
        step, recorded = checkpoints.resume(folder, score_name(spec))
    hand_over = HandOver(resources, sink)
    sink.begin(step)
    hand_over.begin(step)
    for row in recorded:
        hand_over.add(row)
    outcome = _ended(spec, recorded) or _train_on(spec, hand_over, resources, step)
    hand_over.end()
    for path in sorted((folder / "diagnostics").glob("*.json")):
        sink.artifact(f"diagnostics/{path.name}", json.loads(path.read_text(encoding="utf-8")))
    return outcome


def _ended(spec: VerlRun, recorded: list[checkpoints.Row]) -> Outcome | None:
    """The outcome of a run that was killed between its last row and writing its outcome; None if steps are left."""
    if not recorded:
        return None
    last = recorded[-1][0]
    if reason := checkpoints.collapse_of(spec, recorded):
        return Outcome(schema.COLLAPSED, last, reason)
    return Outcome(schema.DONE, last) if last >= spec.training.t_stop else None


def _train_on(spec: VerlRun, hand_over: HandOver, resources: Resources, step: int | None) -> Outcome:
    """Train from `step` (None: from the beginning) with verl."""
    paths, folder = resources.paths, resources.folder
    assert paths is not None
    resume = None if step is None else checkpoints.checkpoint_folder(folder, step)
    files = planned_files(spec, paths, resources.shared, folder, resume)
    with _ray_for(files, resources) as ray_init:
        config = _configuration(spec, files, resources, ray_init)
        with _following(folder, hand_over) as failures:
            try:
                _run(config)
            except Interrupted as warned:
                if warned.number == signal.SIGUSR2:
                    resources.doing("saving the step that is under way")
                    checkpoints.await_step(folder, resources.deadline, resources.grace_seconds)
                raise
        if failures:
            raise failures[0]
    outcome = checkpoints.read_outcome(folder)
    if outcome is None:
        raise RuntimeError("verl's trainer ended without reporting an outcome: see the run's log")
    return outcome


def evaluate(spec: RunSpec, other: RunSpec, resources: Resources) -> tuple[int, Mapping[str, float]]:
    """As `core_records.Evaluator`: verl's validation of the exported best checkpoint, which trains nothing."""
    assert isinstance(spec, VerlRun) and isinstance(other, VerlRun) and resources.paths is not None
    assert resources.layout is not None
    require_same_task(spec, other)
    if resources.layout.nodes > 1:
        raise UserError(
            f"layout={resources.layout.name} takes {resources.layout.nodes} nodes, and an evaluation has this machine: "
            "choose a layout with one node"
        )
    # Nothing is trained: the file may have few problems, and any number of responses serves that all ranks can share.
    shared = math.lcm(spec.batch.responses, resources.layout.devices)
    single_prompt = {"prompts": 1, "minibatch_prompts": 1, "responses": shared}
    evaluated = spec.model_copy(
        update={"data": other.data, "batch": spec.batch.model_copy(update=single_prompt)}
    )
    if (longest := evaluated.longest_prompt) > spec.longest_prompt and not isinstance(spec.model, HubModel):
        raise UserError(
            f"benchmark {other.data.name!r} has prompts of {longest} tokens, and the model of run {spec.run_id} was "
            f"made for {spec.longest_prompt}: choose one with shorter prompts"
        )
    with TemporaryDirectory(prefix="cppo-") as place:
        folder = Path(place)
        (model := folder / "model").mkdir()
        files = planned_files(evaluated, resources.paths, resources.shared, folder)
        files = files._replace(model=str(model))
        with _ray_for(files, resources) as ray_init:
            step = export(spec, resources.shared, model, resources.doing).step
            config = _configuration(evaluated, files, resources, ray_init)
            config.trainer.val_only = True
            _run(config)
        [(_, (_, metrics))] = checkpoints.rows(folder)
    samples = spec.validation.samples
    names = other.data.benchmarks
    return step, {name: metrics[schema.validation_metric(name, samples)] for name in names}


def _ray_for(files: Files, resources: Resources) -> AbstractContextManager[dict[str, Any]]:
    """As `own_ray`, for a run with these files."""
    assert resources.layout is not None
    resources.doing("starting Ray")
    offline = Path(files.model).is_absolute()
    return own_ray(resources.layout, resources.memory_gb, resources.allocation, offline)


def _configuration(spec: VerlRun, files: Files, resources: Resources, ray_init: dict[str, Any]) -> Any:
    """verl's configuration for a run. Called while its Ray is there, since Ray and verl read the environment when they
    are loaded.
    """
    resources.doing("importing verl")
    from cppo_lab.cores.verl.config import check_config, verl_config

    layout = resources.layout
    assert layout is not None
    require_files(spec, files, resources.shared)
    config = verl_config(spec, layout, files, resources.answers, resources.mismatch, resources.deadline)
    config.ray_kwargs.ray_init = ray_init
    check_config(spec, layout, config)
    resources.doing("starting verl's trainer")
    return config


# For vLLM's CPU build: 1 GiB of KV cache; threads are not bound to cores; nothing is compiled, which would take longer
# than running small models.
VLLM_ON_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "TORCHDYNAMO_DISABLE": "1",
}


@contextmanager
def own_ray(
    layout: LayoutSpec,
    memory_gb: float | None = None,
    allocation: Allocation | None = None,
    offline: bool = False,
) -> Iterator[dict[str, Any]]:
    """Arguments of `ray.init` for a new cluster on this machine or the allocation, which is shut down afterwards.

    `offline`: no process asks the hub, unless HF_HUB_OFFLINE says otherwise.
    """
    cpu = layout.device == "cpu"
    environment = {
        "VERL_USE_EXTERNAL_MODULES": "cppo_lab.cores.verl.plugin",  # which verl loads in each process
        SOCKET_VARIABLE: secrets.token_hex(16),
        "OMP_NUM_THREADS": str(openmp_threads(layout)),
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",  # vLLM would report usage
    }
    if offline:
        environment["HF_HUB_OFFLINE"] = os.environ.get("HF_HUB_OFFLINE", "1")
    if cpu:
        environment[DEVICE_VARIABLE] = "cpu"
        if layout.rollout == "vllm":
            environment |= VLLM_ON_CPU
    before = dict(os.environ)
    os.environ.update(environment)
    if cpu:
        # Ray's "GPUs" are then a number only (`platform_cpu`), and it would look for as many in this list.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        ray = alone(layout, memory_gb) if allocation is None else head(layout, allocation, memory_gb)
        with ray as ray_init, without_working_folder():
            yield ray_init | {"runtime_env": {"env_vars": environment}}
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(config: Any) -> None:
    """Run verl's entry point.

    Raises RuntimeError with the reason in its first line.
    """
    from ray.exceptions import RayTaskError
    from verl.trainer.main_ppo import run_ppo

    try:
        with longer_start_timeout(), _signals_after_ray() as runner:
            run_ppo(config, task_runner_class=runner)
    except RayTaskError as error:
        cause = error
        while isinstance(cause, RayTaskError) and cause.cause is not None:
            cause = cause.cause
        lines = [line.strip() for line in str(cause).splitlines()]
        # pydantic ends with a link.
        said = [line for line in lines if line and not line.startswith("For further information visit")]
        raise RuntimeError(f"{type(cause).__name__}: {said[-1] if said else ''}") from error
    except SystemExit as error:
        if (interrupted := interruption()) is not None:
            raise interrupted from error
        if type(error) is not SystemExit:  # raised by a signal
            raise
        # Raised by Ray: its processes on this machine have ended. If Slurm ends the job, a signal to this process
        # follows at once, and shows that the run has not failed.
        time.sleep(SIGNAL_WAIT_SECONDS)
        raise RuntimeError("Ray's processes on this machine have ended (out of memory?)") from error


class TaskRunner:
    """verl's TaskRunner with our trainer: the Ray actor that `verl.trainer.main_ppo.run_ppo` starts."""

    def run(self, config: Any) -> None:
        """Train the run of `config` to its end."""
        import transfer_queue
        from omegaconf import OmegaConf
        from verl.utils.import_utils import load_class_from_fqn

        from cppo_lab.cores.verl import trainer as trainers
        from cppo_lab.cores.verl.config import lab_settings

        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        transfer_queue.init(config.transfer_queue)
        try:
            folder = lab_settings(config).folder
            with checkpoints.writing(folder):
                sync = config.trainer.v1.trainer_mode == "sync"
                trainer = (trainers.LabTrainer if sync else trainers.AsyncLabTrainer)(config=config)
                trainer.init()
                # What a preflight tells of the machines and the engine.
                seen: dict[str, float | str] = {"CPUs of the first node": len(os.sched_getaffinity(0))}
                if any(INFINIBAND.glob("*")):
                    found = can_load(RDMA)
                    seen["InfiniBand"] = f"{RDMA} found" if found else f"no {RDMA}, so NCCL takes TCP"
                workers = trainer.actor_rollout_wg
                if (ranks := workers.world_size) > 1:
                    seen[f"all-reduce over {ranks} devices, GB/s"] = min(workers.all_reduce_speed())
                seen["rollout engine"] = trainer.engine
                replace_file(folder / MACHINE, json.dumps(seen))
                manager = load_class_from_fqn(config.actor_rollout_ref.rollout.agent.agent_loop_manager_class)
                loops = manager.create(
                    config=config,
                    llm_client=trainer.get_llm_client(),
                    teacher_client=trainer.get_teacher_client(),
                    reward_loop_worker_handles=trainer.get_reward_handles(),
                )
                with suppress(trainers.PolicyBroken):
                    trainer.fit(loops)
        finally:
            transfer_queue.close()


@contextmanager
def _signals_after_ray() -> Iterator[Any]:
    """verl's TaskRunner, with SIGUSR2 blocked until verl has started Ray and requests an instance.

    Slurm sends its warnings to every process of a job, and SIGUSR2 kills a process without a handler. The processes
    that Ray starts inherit the signal mask.
    """
    import ray

    actor: Any = ray.remote(num_cpus=1)(TaskRunner)

    def let_in() -> None:
        restore()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})

    def after_ray(method: str) -> Any:
        def call(**options: Any) -> Any:
            let_in()
            return getattr(actor, method)(**options)

        return call

    restore = own_handlers()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        yield SimpleNamespace(remote=after_ray("remote"), options=after_ray("options"))
    finally:
        let_in()


@contextmanager
def _following(folder: Path, hand_over: HandOver) -> Iterator[list[Exception]]:
    """Pass on rows to the recorder while the trainer writes them.

    The value: why a row was not recorded. That ends the block at once, as Ctrl-C would; the caller raises it after the
    block, since an error in whose context there is a KeyboardInterrupt counts as an interruption.
    """
    ended, caller = threading.Event(), threading.get_ident()
    offset = (folder / checkpoints.ROWS_FILE).stat().st_size
    failures: list[Exception] = []

    def follow() -> None:
        nonlocal offset
        try:
            while True:
                last = ended.is_set()
                for behind, row in checkpoints.rows(folder, offset):
                    hand_over.add(row)
                    offset = behind
                if last:
                    return
                ended.wait(FOLLOW_SECONDS)
        except Exception as error:  # noqa: BLE001 - this row and all later ones would be missing
            failures.append(error)
            if not ended.is_set():
                signal.pthread_kill(caller, signal.SIGINT)

    thread = threading.Thread(target=follow, name="follow-verl")
    thread.start()
    try:
        yield failures
        ended.set()
        thread.join()
    except BaseException as error:
        # The failure of a row has interrupted it, if nobody else has: what libraries make of that is no other failure.
        if not failures or isinstance(find_interruption(error), Interrupted):
            raise
    finally:
        ended.set()
        thread.join()
