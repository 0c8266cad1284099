"""verl's agent loop manager for TransferQueue, which also marks every row as training or validation.

Selected with `rollout.agent.agent_loop_manager_class=cppo_lab.cores.verl.rollout.dispatch.MarkedAgentLoopManager`.
"""

from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils import tensordict_utils

from cppo_lab.cores.verl.rollout.agent_loop import VALIDATE


class MarkedAgentLoopManager(AgentLoopManagerTQ):
    """Sends prompts to the agent loop workers, each with a column `VALIDATE`."""

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Dispatches `prompts`; verl marks a validation batch with `validate`, which its workers take out again."""
        validate = bool(tensordict_utils.get_non_tensor_data(prompts, "validate", default=False))
        tensordict_utils.assign_non_tensor_data(prompts, VALIDATE, validate)
        super().generate_sequences(prompts)
