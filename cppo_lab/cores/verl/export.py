"""The best checkpoint of a run of verl as a folder in Hugging Face's format, by verl's merger.

Others may have write access to the folder of a run: no link in it is followed, weights are read as tensors only, and
of the other files only those that describe the model and tokenizer are used.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from cppo_lab.cores.base import Exported
from cppo_lab.cores.verl.checkpoints import BEST, STEP
from cppo_lab.cores.verl.hub_folder import copy_description, copy_file, require_complete
from cppo_lab.errors import UserError, one_line
from cppo_lab.files import names_below, open_below
from cppo_lab.installed import install_extra
from cppo_lab.spec import RunSpec

Say = Callable[[str], None]
_MOST_SHARDS = 100_000


def export(spec: RunSpec, runs: Path, target: Path, say: Say) -> Exported:
    """Write the best checkpoint of `spec` to `target`. As `cores.base.Exporter`.

    FSDP's shards, and weights that Megatron-Bridge has saved, keep their precision; verl's merger converts Megatron's
    shards to bfloat16.
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
            text = file.read(100).strip()
        if text.isdigit():
            return int(text)
    raise UserError(
        f"run {run_id} has kept no checkpoint: there is none in {runs / run_id / BEST}. The first is kept at the first "
        "validation after step 0; if a kill interrupted that, `cppo launch` repairs it"
    )


def _merge_fsdp(runs: Path, at: tuple[str, ...], target: Path, say: Say) -> None:
    """Merge the shards that FSDP's ranks have saved, a single shard or several."""
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
    settings: Any = None
    if file is not None:
        with file:
            try:
                settings = json.loads(file.read(10_000))
            except (ValueError, RecursionError):
                settings = None
    ranks = settings.get("world_size") if isinstance(settings, dict) else None
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
    """Merge Megatron's shards by verl's merger, which needs Megatron and a GPU.

    In a separate process, since it creates a process group. It unpickles (docs/security.md).
    """
    try:
        installed = importlib.util.find_spec("megatron.core") is not None
    except ModuleNotFoundError:
        installed = False
    if not installed:
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
