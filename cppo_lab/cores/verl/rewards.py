"""Rewards in verl besides those of mathematics: a function of the user's, and the grade of the arithmetic tasks.

`own_score` calls `data.reward` in verl's protocol of custom reward functions, and says what it may return. It and
`TaskRewardManager` run in verl's reward workers, `reward_parts` in the trainer.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import torch
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from cppo_lab import schema
from cppo_lab.cores.mini.tasks import make_task
from cppo_lab.cores.verl.config import lab_settings
from cppo_lab.errors import UserError
from cppo_lab.plugins import NAME, load
from cppo_lab.spec import TaskData

FAULT = "reward_fault"  # the key of what is wrong with an own reward; the trainer ends the run with it


def own_score(function: str, **response: Any) -> dict[str, Any]:
    """The reward of a response by the user's `function`, `package.module:name`, in verl's signature.

    Returns `score`, `acc` (the share of a right answer, by which a response is validated; the score where the function
    gives none) and the other numbers that it returns, its parts. What it does wrong is a text under FAULT, since verl
    would go on without the responses of a prompt whose reward has raised.
    """
    try:
        result = load(function, "data.reward")(**response)
        parts = result if isinstance(result, dict) else {"score": result}
        numbers = {key: float(value) for key, value in parts.items() if isinstance(value, Real)}
        if "score" not in numbers:
            raise ValueError(f"it returned {result!r:.200}: return a number, or a dict with a number `score`")
        if wrong := [
            key for key, value in numbers.items() if not math.isfinite(value) or not NAME.fullmatch(key)
        ]:
            raise ValueError(
                f"it returned {wrong[0]}={numbers[wrong[0]]}: return finite numbers under plain names"
            )
        numbers.setdefault("acc", numbers["score"])
        if not 0 <= numbers["acc"] <= 1:
            raise ValueError(
                f"acc={numbers['acc']:g}: validations need a share from 0 to 1: return a dict with `score` and `acc`"
            )
    except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code raises what it likes
        fault = f"data.reward={function!r}: {type(error).__name__}: {error}"
        return {"score": 0.0, "acc": 0.0, FAULT: str(error) if isinstance(error, UserError) else fault}
    return numbers


def reward_parts(responses: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each part in the results of `own_score`, over the responses that have it, by its metric.

    Raises UserError for what the function did wrong.
    """
    parts = defaultdict[str, list[float]](list)
    for response in responses:
        if FAULT in response:
            raise UserError(response[FAULT])
        for name, value in response.items():
            parts[schema.reward_metric(name)].append(value)
    return {name: sum(values) / len(values) for name, values in parts.items()}


class TaskRewardManager(RewardManagerBase):
    """verl's reward manager for the arithmetic tasks: the grade that the embedded core gives, on the same token ids.

    Selected with `reward.reward_manager.source=importlib`; it reads the task from the run's settings.
    """

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **_: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        data = lab_settings(config).spec.data
        assert isinstance(data, TaskData)  # `config` selects this class for tasks only
        self.task = make_task(data)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Grade a response: 1 if it ended by itself with the right answer, else 0."""
        row = data[-1]
        responses = row.batch["responses"][None]
        length = row.batch["attention_mask"][-responses.shape[1] :].sum()[None]
        values = json.loads(row.non_tensor_batch["reward_model"]["ground_truth"])
        # Grading uses values only, so the spelling of the prompt does not matter.
        problem = self.task.write(torch.tensor([values]), torch.Generator().manual_seed(0))
        reward = float(self.task.rewards(responses, length, problem.answers)[0])
        return {"reward_score": reward, "reward_extra_info": {"acc": reward}}
