"""verl's merger of FSDP's shards, changed to unpickle nothing and to keep the precision of the weights.

verl's merger unpickles shards and rounds every weight to bfloat16, which would change the outputs of a model that was
trained in float32.
"""

import json
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.distributed.tensor import DTensor  # importing it also allows torch to load it from shards
from verl.model_merger.base_model_merger import ModelMergerConfig
from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards

from cppo_lab.cores.checkpoint import load_whole
from cppo_lab.errors import UserError

Say = Callable[[str], None]


def merge(shards: Sequence[BinaryIO], description: Path, target: Path, say: Say, lora_scale: float) -> None:
    """Merge `shards`, in the order of ranks, into a model at `target`; adapters times `lora_scale` go into it.

    `description` is a folder with the configuration and tokenizer. Raises what verl, torch and transformers raise if
    they do not form a model.
    """
    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(description),
        target_dir=str(target),
        hf_model_config_path=str(description),
    )
    LabMerger(config, shards, say, lora_scale).merge_and_save()


class LabMerger(FSDPModelMerger):
    """Reads open files; the rest of the work is verl's."""

    def __init__(
        self, config: ModelMergerConfig, shards: Sequence[BinaryIO], say: Say, lora_scale: float
    ) -> None:
        super().__init__(config)
        self._files, self._say, self._lora_scale = shards, say, lora_scale
        self._first: dict[str, Any] = {}
        self._dtype = torch.float32

    def _get_world_size(self) -> int:
        return len(self._files)

    def _load_rank_zero_state_dict(self, world_size: int) -> dict[str, Any]:
        self._first = self._read(0)
        return self._first

    def _read(self, rank: int) -> dict[str, Any]:
        """The weights of a rank: tensors, and how they are spread over ranks."""
        self._say(f"reading shard {rank + 1} of {len(self._files)}")
        try:
            weights = load_whole(self._files[rank])
        except ValueError as error:
            raise UserError(f"the shard of rank {rank} is not read: {error}") from None
        if not isinstance(weights, dict) or not weights or not all(map(torch.is_tensor, weights.values())):
            raise UserError(f"the shard of rank {rank} is not read: it contains more than weights")
        return dict(weights)

    def _load_and_merge_state_dicts(
        self, world_size: int, total_shards: int, mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]
    ) -> dict[str, torch.Tensor]:
        """The complete weights. With replicas (`ddp`) the first `total_shards` ranks have each part once."""
        parts = [self._first, *(self._read(rank) for rank in range(1, total_shards))]
        self._first = {}
        if any(part.keys() != parts[0].keys() for part in parts):
            raise ValueError("the ranks have saved different weights")
        replicated = mesh_dim_names[0] == "ddp"
        whole = {
            name: self._whole(name, [part.pop(name) for part in parts], replicated)
            for name in sorted(parts[0])
        }
        kinds = {tensor.dtype for tensor in whole.values() if tensor.is_floating_point()}
        self._dtype = reduce(torch.promote_types, kinds) if kinds else self._dtype
        return self._without_adapters(whole)

    def _without_adapters(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weights under the model's names, with each adapter added to the matrix that it adapts."""
        merged = {}
        for name, value in weights.items():
            layer, is_adapted, _ = name.partition("base_layer.weight")
            if is_adapted:
                down, up = (weights[f"{layer}lora_{part}.default.weight"] for part in "AB")
                value = value + self._lora_scale * (up @ down)
            if ".lora_" not in name:
                merged[name.removeprefix("base_model.model.").replace("base_layer.", "")] = value
        return merged

    def _whole(self, name: str, parts: list[Any], replicated: bool) -> torch.Tensor:
        """One complete weight from the ranks' parts of it."""
        if not isinstance(parts[0], DTensor):
            return merge_non_dtensor_shards(name, parts)
        ways = [part.placements[replicated:] for part in parts]
        if any(way != ways[0] for way in ways) or len(ways[0]) != 1:
            raise ValueError(f"{name} is spread over ranks in a way that verl's merger does not know")
        merged: torch.Tensor = self._merge_by_placement([part._local_tensor for part in parts], ways[0][0])
        if merged.shape != parts[0].shape:
            raise ValueError(f"{name} has the shape {tuple(merged.shape)}, not {tuple(parts[0].shape)}")
        return merged

    def save_hf_model_and_tokenizer(self, state_dict: dict[str, torch.Tensor]) -> None:
        """verl's method, with the precision of the weights in the configuration, by which they are loaded."""
        self._say("writing the model")
        super().save_hf_model_and_tokenizer(state_dict)
        path = Path(self.config.target_dir) / "config.json"
        config = json.loads(path.read_bytes()) | {"dtype": str(self._dtype).removeprefix("torch.")}
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
