"""verl's hands in vLLM's own process, where both run on the CPU: for `layout=cpu_vllm`, which tries a GPU's path."""

from typing import Any

import torch
import vllm._custom_ops
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

# With oneDNN vLLM packs the weights that it loads first and drops the originals, which new ones would be copied to.
vllm._custom_ops._supports_onednn = False


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """Loads copies of new weights: on the CPU `Tensor.to(device)` copies nothing, and vLLM would keep views of shared
    memory that verl closes next."""

    def _update_weights(
        self, weights: list[tuple[str, torch.Tensor]], peft_config: Any, base_sync_done: bool
    ) -> None:
        super()._update_weights(
            [(name, tensor.clone()) for name, tensor in weights], peft_config, base_sync_done
        )
