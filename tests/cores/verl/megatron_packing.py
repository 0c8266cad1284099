"""verl's own packing for Megatron, without Megatron: its process groups are stood in for."""

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import torch.distributed as dist
import verl


class _Packed(types.SimpleNamespace):
    """Megatron's PackedSeqParams: it only carries what it is given."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)


def stand_in(tensor_group: dist.ProcessGroup, context_group: dist.ProcessGroup) -> Any:
    """verl/models/mcore/util.py, with these tensor- and context-parallel groups."""
    state = types.ModuleType("megatron.core.parallel_state")
    state.__dict__.update(
        get_tensor_model_parallel_group=lambda: tensor_group,
        get_tensor_model_parallel_world_size=lambda: dist.get_world_size(tensor_group),
        get_context_parallel_group=lambda: context_group,
        get_context_parallel_world_size=lambda: dist.get_world_size(context_group),
        get_context_parallel_rank=lambda: dist.get_rank(context_group),
    )
    sequences = types.ModuleType("megatron.core.packed_seq_params")
    sequences.__dict__["PackedSeqParams"] = _Packed
    core = types.ModuleType("megatron.core")
    core.__dict__.update(parallel_state=state, packed_seq_params=sequences)
    # The package's __init__ imports all of Megatron's models: its one file is taken by itself.
    place = Path(verl.__file__).parent / "models" / "mcore" / "util.py"
    spec = importlib.util.spec_from_file_location("verl.models.mcore.util", place)
    assert spec is not None and spec.loader is not None
    packing = importlib.util.module_from_spec(spec)
    package = types.ModuleType("verl.models.mcore")
    package.__dict__["util"] = packing
    sys.modules |= {
        "megatron": types.ModuleType("megatron"),
        core.__name__: core,
        state.__name__: state,
        sequences.__name__: sequences,
        package.__name__: package,
        spec.name: packing,
    }
    spec.loader.exec_module(packing)
    return packing
