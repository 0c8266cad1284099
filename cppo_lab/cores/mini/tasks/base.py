"""The interface of a task of the embedded trainer, the tasks by name, and the problem sets that any task yields.

A new task touches this dict, `TaskData` in `cppo_lab.spec` (its name and lengths), a module here, and a file in
conf/data.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from cppo_lab.cores.mini.tasks.addition import Addition
from cppo_lab.cores.mini.tasks.chain import Chain
from cppo_lab.cores.mini.tasks.problems import Problems
from cppo_lab.cores.mini.tasks.tokenizer import Tokenizer
from cppo_lab.spec import TaskData


class Task(Protocol):
    """Problems, worked responses and grading. All draws come from the generators passed in (on the CPU).

    Prompts have `data.prompt_length` tokens and worked responses `data.worked_length`, the end token included.
    """

    @property
    def data(self) -> TaskData: ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Vocabulary size, ids of end and padding, readable text."""
        ...

    def sample(self, count: int, generator: torch.Generator) -> Problems:
        """Draw `count` problems with their prompts [N, P] and what grading needs."""
        ...

    def write(self, values: Tensor, generator: torch.Generator) -> Problems:
        """The problems that `values` [N, F] define; only the spelling of their prompts is drawn."""
        ...

    def noisy_traces(self, problems: Problems, step_noise: float, generator: torch.Generator) -> Tensor:
        """Worked responses [N, R] in which each step is wrong with probability `step_noise`."""
        ...

    def rewards(self, responses: Tensor, lengths: Tensor, problems: Problems) -> Tensor:
        """Reward [N] in {0, 1} of responses [N, T], of which row i has lengths[i] tokens and answers problem i."""
        ...

    def answer(self, response: list[int]) -> str | None:
        """The answer that grading extracts from a response: its values separated by spaces; None if there is none."""
        ...


TASKS: dict[str, Callable[[TaskData], Task]] = {
    "chain": Chain,
    "addition": Addition,
}


def make_task(data: TaskData) -> Task:
    """The task that `data` names."""
    return TASKS[data.task](data)


def validation_sets(task: Task) -> dict[str, Problems]:
    """The held-out problem sets by benchmark name: disjoint, and the same for every run on `task.data`.

    Training problems are drawn from the same space; `sample_training_problems` keeps these out of them.
    """
    generator = torch.Generator().manual_seed(task.data.validation_seed)
    seen: set[tuple[int, ...]] = set()
    sets = {}
    for benchmark in task.data.benchmarks:
        rows: list[Problems] = []
        while len(rows) < task.data.validation_problems:
            candidate = task.sample(1, generator)
            if candidate.identities()[0] not in seen:
                seen.add(candidate.identities()[0])
                rows.append(candidate)
        sets[benchmark] = Problems.cat(rows)
    return sets


def sample_training_problems(
    task: Task, count: int, generator: torch.Generator, held_out: set[tuple[int, ...]]
) -> Problems:
    """Draw `count` problems, none of which is in `held_out` in any spelling."""
    problems = task.sample(count, generator)
    while clashes := [i for i, key in enumerate(problems.identities()) if key in held_out]:
        problems = problems.replace(torch.tensor(clashes), task.sample(len(clashes), generator))
    return problems
