"""verl's path gives a response the grade of the embedded core."""

import asyncio
import json

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from verl import DataProto

from cppo_lab.cores.mini.tasks.base import Task, make_task
from cppo_lab.cores.mini.tasks.problems import Problems
from cppo_lab.cores.verl.config import SECTION
from cppo_lab.cores.verl.task_reward import TaskRewardManager
from cppo_lab.spec import TaskData, VerlRun
from cppo_lab.sweep.compose import compose

pytestmark = pytest.mark.verl
TASKS = [
    [],
    ["data=addition", "data.validation_problems=4", "data.operations=4"],
    ["data.spellings=3"],
]


def manager(*overrides: str) -> tuple[TaskRewardManager, Task]:
    run = compose(["core=verl", "model=tiny_qwen3", *overrides]).run
    assert isinstance(run, VerlRun)
    assert isinstance(run.data, TaskData)
    spec = run.model_dump(mode="json", exclude_none=True)
    config = OmegaConf.create({SECTION: {"spec": spec, "folder": "/nowhere", "answers": None}})
    return TaskRewardManager(config, None, None, reward_router_address=None), make_task(run.data)


def grade(manager: TaskRewardManager, problems: Problems, row: int, response: Tensor, length: int) -> float:
    """Through verl's protocol: prompt on the left, response on the right, both padded."""
    pad = manager.task.tokenizer.pad
    prompt = torch.nn.functional.pad(problems.prompts[row], (3, 0), value=pad)
    padded = torch.full((len(response) + 2,), pad)
    padded[:length] = response[:length]
    mask = torch.cat(
        [torch.zeros(3), torch.ones(len(prompt) - 3), torch.ones(length), torch.zeros(len(padded) - length)]
    )
    data = DataProto.from_dict(
        tensors={
            "prompts": prompt[None], "responses": padded[None], "attention_mask": mask.long()[None],
            "input_ids": torch.cat([prompt, padded])[None],
        },
        non_tensors={
            "reward_model": np.array([{"ground_truth": json.dumps(problems.values[row].tolist())}], dtype=object),
            "data_source": np.array(["short24"], dtype=object),
        },
    )  # fmt: skip
    found = asyncio.run(manager.run_single(data))
    assert found["reward_extra_info"] == {"acc": found["reward_score"]}
    return float(found["reward_score"])


@pytest.mark.parametrize("overrides", TASKS, ids=["chain", "addition", "spellings"])
def test_grades_are_those_of_the_task(overrides: list[str]) -> None:
    verls, task = manager(*overrides)
    draw = torch.Generator().manual_seed(0)
    problems = task.sample(40, draw)
    responses = task.noisy_traces(problems, 0.3, draw)
    responses[20:30] = torch.randint(0, task.tokenizer.vocabulary, responses[20:30].shape, generator=draw)
    lengths = torch.full((40,), responses.shape[1])
    lengths[30:] -= 1  # cut off before the end
    expected = task.rewards(responses, lengths, problems)
    found = [grade(verls, problems, i, responses[i], int(lengths[i])) for i in range(40)]
    assert found == expected.tolist()
    assert 0 < sum(found[:20]) < 20
    assert sum(found[30:]) == 0
