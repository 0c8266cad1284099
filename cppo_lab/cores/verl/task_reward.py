"""verl's reward manager for the arithmetic tasks: the grade that the embedded core gives, on the same token ids."""

import json
from typing import Any

import torch
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from cppo_lab.cores.mini.tasks import make_task
from cppo_lab.cores.verl.config import lab_settings
from cppo_lab.spec import TaskData


class TaskRewardManager(RewardManagerBase):
    """Selected with `reward.reward_manager.source=importlib`; it reads the task from the run's settings."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **_: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        data = lab_settings(config).spec.data
        assert isinstance(data, TaskData)  # `config` selects this class for tasks only
        self.task = make_task(data)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Grade one response: 1 if it ended by itself with the right answer, else 0."""
        row = data[-1]
        responses = row.batch["responses"][None]
        length = row.batch["attention_mask"][-responses.shape[1] :].sum()[None]
        values = json.loads(row.non_tensor_batch["reward_model"]["ground_truth"])
        # Grading uses values only, so the spelling of the prompt does not matter.
        problem = self.task.write(torch.tensor([values]), torch.Generator().manual_seed(0))
        reward = float(self.task.rewards(responses, length, problem)[0])
        return {"reward_score": reward, "reward_extra_info": {"acc": reward}}
