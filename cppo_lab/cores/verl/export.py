"""From a verl checkpoint to a folder that transformers loads.

Folders in Hugging Face's format: copied from folders that others can write to, and checked afterwards.
"""

import contextlib
import importlib.util
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from cppo_lab.cores.base import Exported
from cppo_lab.cores.verl.checkpoints import BEST, STEP
from cppo_lab.errors import UserError, one_line
from cppo_lab.files import names_below, open_below
from cppo_lab.installed import install_extra
from cppo_lab.spec import RunSpec

# Files that describe the model and tokenizer. No code, and nothing that a reader would unpickle.
_DESCRIBES = (".json", ".txt", ".jinja", ".model")
_MOST_BYTES = 2**28  # of such a file; a tokenizer of 250,000 tokens has 2^25
CONFIG = "config.json"


def copy_description(runs: Path, at: tuple[str, ...], target: Path) -> None:
    """Copy the configuration and tokenizer of a model from the folder at the path `at` below `runs`.

    Raises UserError if there is no configuration, or if it requires the model's own code.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in names_below(runs, *at):
        if name.endswith(_DESCRIBES):
            copy_file(runs, (*at, name), target / name, most=_MOST_BYTES)
    where = runs.joinpath(*at)
    try:
        config: Any = json.loads((target / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UserError(f"{where / CONFIG} is missing or damaged, so the model is unknown")
    if config.get("auto_map"):
        raise UserError(
            f"{where / CONFIG} requires the model's own code (auto_map), which is neither run nor exported: only "
            "architectures that transformers knows can be"
        )
    # Drop the attention implementation: it depends on the machine, and its name may refer to code on the hub.
    for key in ("attn_implementation", "_attn_implementation", "_attn_implementation_internal"):
        config.pop(key, None)
    (target / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def copy_file(
    runs: Path, at: tuple[str, ...], target: Path, most: int | None = None, link: bool = False
) -> None:
    """Copy the file at the path `at` below `runs`, of at most `most` bytes; `link`: by a hard link if possible.

    Raises UserError if it is not a plain file, or too large.
    """
    file = open_below(runs, *at)
    if file is None:
        raise UserError(f"{runs.joinpath(*at)} no longer exists: try again")
    with file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise UserError(
                f"{runs.joinpath(*at)} has more than {most} bytes: it is not what verl writes there"
            )
        if link:
            with contextlib.suppress(OSError):  # another file system, or a kernel that forbids it
                # Only with a `src_dir_fd` does Python follow the link; an absolute path ignores the folder itself.
                os.link(
                    f"/proc/self/fd/{file.fileno()}", target, src_dir_fd=file.fileno(), follow_symlinks=True
                )
                return
        with target.open("xb") as copy:
            shutil.copyfileobj(file, copy, 2**22)


def require_complete(folder: Path) -> tuple[str, int]:
    """Load the model of `folder` as users will, but without the values; returns precision and number of its weights.

    Raises UserError if weights are missing, unexpected, or of a shape that does not match the configuration.
    """
    from transformers import AutoModelForCausalLM

    with quiet(), refusing("the checkpoint does not make a model that transformers reads"):
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported with the others
            local_files_only=True,
        )
    wrong = {name: sorted(map(str, found[name])) for name in _FAULTS if found.get(name)}
    if wrong:
        said = "; ".join(f"{_FAULTS[name]}: {', '.join(which[:3])}" for name, which in wrong.items())
        raise UserError(f"the checkpoint's weights are not those of its configuration: {said}")
    return str(model.dtype).removeprefix("torch."), sum(one.numel() for one in model.parameters())


_FAULTS = {
    "missing_keys": "missing",
    "unexpected_keys": "left over",
    "mismatched_keys": "of another shape",
    "error_msgs": "not read",
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings, verl's output, torch's message on meshes without processes, and transformers' progress bars."""
    from transformers.utils import logging as transformers_logging

    meshes = logging.getLogger("torch.distributed.device_mesh")
    level, bars = meshes.level, transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    meshes.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        meshes.setLevel(level)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Convert whatever libraries raise on untrusted files to a UserError with `what` and the reason.

    OSErrors are not converted, since the disk may be full.
    """
    try:
        yield
    except (UserError, ModuleNotFoundError):
        raise
    except Exception as error:  # tokenizers raises plain Exception, transformers nearly every type
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{what}: {type(error).__name__}: {one_line(str(error))}") from error


# The best checkpoint of a run of verl as a folder in Hugging Face's format, by verl's own merger.
#
# Others may have write access to the folder of a run: no link in it is followed, weights are read as tensors only, and
# of the other files only those that describe the model and tokenizer are used.


_MOST_SHARDS = 100_000

Say = Callable[[str], None]


def export(spec: RunSpec, runs: Path, target: Path, say: Say) -> Exported:
    """Write the best checkpoint of `spec` to `target`. As `cores.base.Exporter`.

    FSDP's shards, and weights that Megatron-Bridge has saved, keep their precision; verl's merger converts Megatron's
    own shards to bfloat16.
    """
    for package in ("transformers", "verl"):
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"package {package!r} is not installed, and verl's checkpoints are merged by verl: "
                f"{install_extra('verl')} (docs/verl.md)"
            )
    at = (spec.run_id, BEST, "actor")
    step = _step(runs, spec.run_id)
    inside = names_below(runs, *at)
    if "fsdp_config.json" in inside:
        _merge_fsdp(runs, at, target, say)
    elif any(name.endswith(".safetensors") for name in names_below(runs, *at, "model", "huggingface")):
        _copy_saved(runs, (*at, "model", "huggingface"), target, say)
    elif names_below(runs, *at, "model", "dist_ckpt"):
        _merge_megatron(runs, (*at, "model"), target, say)
    else:
        raise UserError(
            f"run {spec.run_id}: {runs.joinpath(*at)} has no weights as verl 0.9.1 writes them: the checkpoint is "
            "damaged, or of another verl"
        )
    if _step(runs, spec.run_id) != step:
        raise UserError(f"run {spec.run_id} has replaced its best checkpoint in the meantime: try again")
    dtype, parameters = require_complete(target)
    return Exported(step, dtype, parameters)


def _step(runs: Path, run_id: str) -> int:
    """The step of the best checkpoint."""
    file = open_below(runs, run_id, BEST, STEP)
    if file is not None:
        with file:
            said = file.read(100).strip()
        if said.isdigit():
            return int(said)
    raise UserError(
        f"run {run_id} has kept no checkpoint: there is none in {runs / run_id / BEST}. The first is kept at the first "
        "validation after step 0; if a kill interrupted that, `cppo launch` repairs it"
    )


def _merge_fsdp(runs: Path, at: tuple[str, ...], target: Path, say: Say) -> None:
    """Merge the shards that FSDP's ranks have saved, one of them or several."""
    from cppo_lab.cores.verl.export_fsdp import merge

    ranks = _ranks(runs, at)
    shards: list[BinaryIO] = []
    with TemporaryDirectory(prefix="cppo-export-") as folder:
        try:
            # Open all first, so that they belong to one checkpoint even if it is replaced.
            for rank in range(ranks):
                file = open_below(runs, *at, f"model_world_size_{ranks}_rank_{rank}.pt")
                if file is None:
                    raise UserError(
                        f"{runs.joinpath(*at)}: the shard of rank {rank} of {ranks} is missing: the checkpoint is "
                        "damaged"
                    )
                shards.append(file)
            copy_description(runs, (*at, "huggingface"), Path(folder))
            merge(shards, Path(folder), target, say)
        finally:
            for file in shards:
                file.close()


def _ranks(runs: Path, at: tuple[str, ...]) -> int:
    """How many ranks have saved a shard."""
    file = open_below(runs, *at, "fsdp_config.json")
    found: Any = None
    if file is not None:
        with file:
            try:
                found = json.loads(file.read(10_000))
            except (ValueError, RecursionError):
                found = None
    ranks = found.get("world_size") if isinstance(found, dict) else None
    if not isinstance(ranks, int) or not 1 <= ranks <= _MOST_SHARDS:
        raise UserError(
            f"{runs.joinpath(*at)}/fsdp_config.json does not say how many ranks there were: it is damaged"
        )
    return ranks


def _copy_saved(runs: Path, at: tuple[str, ...], target: Path, say: Say) -> None:
    """Copy the complete weights that verl's Megatron engine has saved through Megatron-Bridge, as our layouts do."""
    copy_description(runs, at, target)
    names = [name for name in names_below(runs, *at) if name.endswith(".safetensors")]
    for number, name in enumerate(names, 1):
        say(f"copying weights, file {number} of {len(names)}")
        copy_file(runs, (*at, name), target / name)


def _merge_megatron(runs: Path, at: tuple[str, ...], target: Path, say: Say) -> None:
    """Merge Megatron's own shards by verl's merger, which needs Megatron and a GPU.

    In a separate process, since it creates a process group. It unpickles (docs/security.md).
    """
    try:
        there = importlib.util.find_spec("megatron.core") is not None
    except ModuleNotFoundError:
        there = False
    if not there:
        raise UserError(
            f"{runs.joinpath(*at)} holds Megatron's own shards, which are merged on a machine with a GPU and "
            "megatron-core (docs/verl.md): run this command there, in the environment used for training"
        )
    with TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
        local = Path(folder)
        copy_description(runs, (*at, "huggingface"), local / "model" / "huggingface")
        names = names_below(runs, *at, "dist_ckpt")
        (local / "model" / "dist_ckpt").mkdir()
        for number, name in enumerate(names, 1):
            say(f"taking shards, file {number} of {len(names)}")
            copy_file(runs, (*at, "dist_ckpt", name), local / "model" / "dist_ckpt" / name, link=True)
        say("verl merges the shards")
        command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "megatron"]
        command += ["--local_dir", str(local), "--target_dir", str(target)]
        config = json.loads((local / "model" / "huggingface" / "config.json").read_bytes())
        if config.get("tie_word_embeddings"):
            command.append("--tie-word-embedding")
        offline = os.environ | {"HF_HUB_OFFLINE": "1"}  # everything that it needs is local
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=offline
        )
    if done.returncode:
        last = (done.stdout.strip().splitlines() or [""])[-1]
        raise UserError(f"verl's merger has failed with exit code {done.returncode}: {one_line(last)}")
