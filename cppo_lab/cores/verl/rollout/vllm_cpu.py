"""verl's extension of vLLM's worker process on the CPU, for `layout=cpu_vllm`, which tests the code path of GPUs."""

from typing import Any

import torch
import vllm._custom_ops
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

# With oneDNN vLLM packs its first weights and drops the originals, so that new weights could not be copied to them.
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
