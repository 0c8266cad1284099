"""The best model of a run in Hugging Face's format: of verl from the weights of its checkpoint, of the embedded core as
a Qwen3.

Others may have write access to the folder of a run: no link in it is followed, weights are read as tensors only, and
of the other files only those that describe the model and tokenizer are used.
"""

import contextlib
import importlib.util
import io
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cppo_lab.core_records import BEST_CHECKPOINT, BEST_MODEL, Exported
from cppo_lab.cores.verl.checkpoints import MALFORMED, STEP
from cppo_lab.errors import UserError, one_line
from cppo_lab.files import names_below, open_below
from cppo_lab.plugins import install_extra
from cppo_lab.spec import MiniRun, RunSpec

if TYPE_CHECKING:
    from torch import Tensor

Say = Callable[[str], None]
# Files that describe the model and tokenizer. No code, and nothing that a reader would unpickle.
_DESCRIBES = (".json", ".txt", ".jinja", ".model")
CONFIG = "config.json"


def export(spec: RunSpec, runs: Path, target: Path, say: Say) -> Exported:
    """Write the best checkpoint of `spec`, a run of verl, to `target`. As `core_records.Exporter`.

    FSDP's shards, and weights that Megatron-Bridge has saved, keep their precision.
    """
    _require("transformers")
    at = (spec.run_id, BEST_CHECKPOINT, "actor")
    step = _step(runs, spec.run_id)
    if "fsdp_config.json" in names_below(runs, *at):
        optim = spec.optim
        _merge_fsdp(runs, at, target, say, (optim.lora_alpha or 0) / (optim.lora_rank or 1))
    elif names := [n for n in names_below(runs, *at, "model", "huggingface") if n.endswith(".safetensors")]:
        # Complete weights, which verl's Megatron engine saves through Megatron-Bridge in our layouts.
        copy_description(runs, (*at, "model", "huggingface"), target)
        for number, name in enumerate(names, 1):
            say(f"copying weights, file {number} of {len(names)}")
            copy_file(runs, (*at, "model", "huggingface", name), target / name)
    elif names_below(runs, *at, "model", "dist_ckpt"):
        raise UserError(
            f"{runs.joinpath(*at)} holds Megatron's own shards, without the weights that Megatron-Bridge saves: "
            "`python -m verl.model_merger merge --backend megatron` merges them on a machine with a GPU (docs/verl.md)"
        )
    else:
        raise UserError(
            f"run {spec.run_id}: {runs.joinpath(*at)} has no weights as verl 0.9.1 writes them: the checkpoint is "
            "damaged, or of another verl"
        )
    if _step(runs, spec.run_id) != step:
        raise UserError(f"run {spec.run_id} has replaced its best checkpoint in the meantime: try again")
    return Exported(step, *require_complete(target))


def export_embedded(spec: RunSpec, runs: Path, target: Path, say: Say) -> Exported:
    """Write the best model of `spec`, a run of the embedded core, to `target`. As `core_records.Exporter`."""
    assert isinstance(spec, MiniRun)
    _require("transformers", "tokenizers", "pyarrow")
    from cppo_lab.cores.mini.tasks import make_task
    from cppo_lab.cores.mini.trainer import load_best
    from cppo_lab.cores.verl.hf_models import as_fast_tokenizer, as_qwen3

    say(f"reading {BEST_MODEL}")
    step, model = load_best(spec, runs, spec.data.prompt_length + spec.rollout.max_response_length)
    tokenizer = make_task(spec.data).tokenizer
    say("writing the model")
    with quiet():
        as_qwen3(model, tokenizer.eos).save_pretrained(target)
        as_fast_tokenizer(tokenizer).save_pretrained(target)
    return Exported(step, *require_complete(target))


def _require(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"package {package!r} is not installed, and models are exported by it: {install_extra('verl')}"
            )


def _content(runs: Path, *at: str) -> bytes:
    """A small file at the path `at` below `runs`; empty if there is none."""
    file = open_below(runs, *at)
    if file is None:
        return b""
    with file:
        return file.read(10_000)


def _step(runs: Path, run_id: str) -> int:
    """The step of the best checkpoint."""
    text = _content(runs, run_id, BEST_CHECKPOINT, STEP).strip()
    if not text.isdigit():
        raise UserError(
            f"run {run_id} has kept no checkpoint: there is none in {runs / run_id / BEST_CHECKPOINT}. The first is "
            "kept at the first validation after step 0; if a kill interrupted that, `cppo launch` repairs it"
        )
    return int(text)


def _merge_fsdp(runs: Path, at: tuple[str, ...], target: Path, say: Say, lora_scale: float) -> None:
    """Merge the shards that FSDP's ranks have saved, a single shard or several; adapters times `lora_scale` go into it.

    Not by verl's merger, which unpickles shards and rounds every weight to bfloat16.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    from cppo_lab.cores.checkpoint import load_whole

    where = runs.joinpath(*at)
    try:
        ranks = int(json.loads(_content(runs, *at, "fsdp_config.json"))["world_size"])
    except MALFORMED:
        raise UserError(
            f"{where}/fsdp_config.json does not say how many ranks there were: it is damaged"
        ) from None
    with contextlib.ExitStack() as opened:
        shards = []
        # Open all first, so that they belong to the same checkpoint even if it is replaced.
        for rank in range(ranks):
            file = open_below(runs, *at, f"model_world_size_{ranks}_rank_{rank}.pt")
            if file is None:
                raise UserError(f"{where}: the shard of rank {rank} of {ranks} is missing: it is damaged")
            shards.append(opened.enter_context(file))

        def read(rank: int) -> dict[str, Any]:
            say(f"reading shard {rank + 1} of {ranks}")
            try:
                weights = load_whole(shards[rank])
            except ValueError as error:
                raise UserError(f"the shard of rank {rank} is not read: {error}") from None
            if (
                not isinstance(weights, dict)
                or not weights
                or not all(map(torch.is_tensor, weights.values()))
            ):
                raise UserError(f"the shard of rank {rank} is not read: it contains more than weights")
            return weights

        copy_description(runs, (*at, "huggingface"), target)
        with quiet(), refusing("the checkpoint cannot be merged"):
            config = AutoConfig.from_pretrained(target)
            weights = {}  # under the model's names, with each adapter added to the matrix that it adapts
            parts = merged(read, ranks)
            for name, value in parts.items():
                layer, is_adapted, _ = name.partition("base_layer.weight")
                if is_adapted:
                    down, up = (parts[f"{layer}lora_{part}.default.weight"] for part in "AB")
                    value = value + lora_scale * (up @ down)
                if ".lora_" not in name:
                    weights[name.removeprefix("base_model.model.").replace("base_layer.", "")] = value
            kinds = (weight.dtype for weight in weights.values() if weight.is_floating_point())
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=reduce(torch.promote_types, kinds))
            for tied in model.all_tied_weights_keys:
                weights.pop(tied, None)
            if (target / "generation_config.json").exists():
                model.generation_config = GenerationConfig.from_pretrained(target)
            say("writing the model")
            model.save_pretrained(target, state_dict=weights)


def merged(read: Callable[[int], dict[str, Any]], ranks: int) -> "dict[str, Tensor]":
    """The complete weights by name. `read` gives those of a rank: tensors, and how they are spread over `ranks`.

    Raises ValueError if they do not fit together.
    """
    from torch.distributed.tensor import DTensor  # importing it also allows torch to load it from shards

    first = read(0)
    meshes = [weight.device_mesh.mesh for weight in first.values() if isinstance(weight, DTensor)]
    # Of replicas of a model, the first has each part once.
    parts = [first, *map(read, range(1, meshes[0].shape[-1] if meshes else ranks))]
    if any(part.keys() != first.keys() for part in parts):
        raise ValueError("the ranks have saved different weights")
    return {name: _whole(name, [part.pop(name) for part in parts]) for name in sorted(first)}


def _whole(name: str, parts: list[Any]) -> "Tensor":
    """One complete weight from the ranks' parts of it."""
    import torch
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(parts[0], DTensor):
        for rank, part in enumerate(parts):
            if not torch.equal(part, parts[0]):
                raise ValueError(f"{name!r} differs between rank 0 and rank {rank}")
        return parts[0]
    *replicas, way = parts[0].placements
    can_merge = not way.is_partial() and all(replica.is_replicate() for replica in replicas)
    if not can_merge or any(part.placements != parts[0].placements for part in parts):
        raise ValueError(f"{name} is spread over ranks in a way that verl's merger does not know")
    local = [part._local_tensor for part in parts]
    whole = torch.cat(local, way.dim) if isinstance(way, Shard) else local[0]
    if whole.shape != parts[0].shape:
        raise ValueError(f"{name} has the shape {tuple(whole.shape)}, not {tuple(parts[0].shape)}")
    return whole


# Folders in Hugging Face's format: copied from folders that others can write to, and checked afterwards.


def copy_description(runs: Path, at: tuple[str, ...], target: Path) -> None:
    """Copy the configuration and tokenizer of a model from the folder at the path `at` below `runs`.

    Raises UserError if there is no configuration, or if it requires code of the model.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in names_below(runs, *at):
        if name.endswith(_DESCRIBES):
            copy_file(runs, (*at, name), target / name)
    where = runs.joinpath(*at, CONFIG)
    try:
        config: Any = json.loads((target / CONFIG).read_bytes())
    except (FileNotFoundError, *MALFORMED):
        config = None
    if not isinstance(config, dict):
        raise UserError(f"{where} is missing or damaged, so the model is unknown")
    if config.get("auto_map"):
        raise UserError(
            f"{where} requires the model's own code (auto_map), which is neither run nor exported: only "
            "architectures that transformers knows can be"
        )
    # Drop the attention implementation: it depends on the machine, and its name may refer to code on the hub.
    for key in ("attn_implementation", "_attn_implementation", "_attn_implementation_internal"):
        config.pop(key, None)
    (target / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def copy_file(runs: Path, at: tuple[str, ...], target: Path) -> None:
    """Copy the file at the path `at` below `runs`.

    Raises UserError if it is not a plain file.
    """
    file = open_below(runs, *at)
    if file is None:
        raise UserError(f"{runs.joinpath(*at)} no longer exists: try again")
    with file, target.open("xb") as copy:
        shutil.copyfileobj(file, copy, 2**22)


def require_complete(folder: Path) -> tuple[str, int]:
    """Load the model of `folder` as users will, but without the values; returns precision and number of its weights.

    Raises UserError if weights are missing, unexpected, or of a shape that does not match the configuration.
    """
    from transformers import AutoModelForCausalLM

    with quiet(), refusing("the checkpoint does not make a model that transformers reads"):
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported with the others
            local_files_only=True,
        )
    wrong = {name: sorted(map(str, loading[name])) for name in _FAULTS if loading.get(name)}
    if wrong:
        problems = "; ".join(f"{_FAULTS[name]}: {', '.join(which[:3])}" for name, which in wrong.items())
        raise UserError(f"the checkpoint's weights are not those of its configuration: {problems}")
    return str(model.dtype).removeprefix("torch."), sum(parameter.numel() for parameter in model.parameters())


_FAULTS = {
    "missing_keys": "missing",
    "unexpected_keys": "left over",
    "mismatched_keys": "of another shape",
    "error_msgs": "not read",
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings, logs, verl's output and transformers' progress bars."""
    from transformers.utils import logging as transformers_logging

    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    logging.disable()
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Convert whatever libraries raise on untrusted files to a UserError with `what` and the reason.

    Errors of the disk are not converted.
    """
    try:
        yield
    except (UserError, ModuleNotFoundError):
        raise
    except Exception as error:  # tokenizers raises plain Exception, transformers nearly every type
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{what}: {type(error).__name__}: {one_line(str(error))}") from error
