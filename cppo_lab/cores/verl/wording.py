"""Reads the question and true answer of a data row, and the answer of a response, for mathematics and our tasks."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from cppo_lab.cores.mini.tasks.base import Task, make_task
from cppo_lab.data.answers import answer_of
from cppo_lab.spec import MathData, TaskData

Row = Mapping[str, Any]  # of verl's data set


class Wording(Protocol):
    """How the rows of a data set, and the responses to them, are read."""

    def asked(self, row: Row) -> str:
        """The text that identifies a problem in every run: the input of `problem_ids`."""
        ...

    def truth(self, row: Row) -> str:
        """The true answer."""
        ...

    def answer(self, ids: list[int], text: str) -> str | None:
        """The answer that the grader extracts from a response with these ids and this text; None if there is none."""
        ...


def wording_of(data: MathData | TaskData) -> Wording:
    """The wording of a run's data."""
    return OfTask(make_task(data)) if isinstance(data, TaskData) else OfMathematics()


class OfMathematics:
    """Mathematics, with answers extracted as in `data.grading`."""

    def asked(self, row: Row) -> str:
        """The prompt, without the text that a chat template adds."""
        return "\n\n".join(str(message["content"]) for message in row["raw_prompt"])

    def truth(self, row: Row) -> str:
        return str(row["reward_model"]["ground_truth"])

    def answer(self, ids: list[int], text: str) -> str | None:
        found = answer_of(text)
        return None if found is None else found.text


class OfTask:
    """Our tasks, with problems and answers as in the embedded core, so that their ids are the same in both cores."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def asked(self, row: Row) -> str:
        """The numbers and operators that define the problem."""
        return str(tuple(_values(row)))

    def truth(self, row: Row) -> str:
        problem = self.task.write(torch.tensor([_values(row)]), torch.Generator().manual_seed(0))
        return " ".join(map(str, problem.answers[0].tolist()))

    def answer(self, ids: list[int], text: str) -> str | None:
        return self.task.answer(ids)


def _values(row: Row) -> list[int]:
    values: list[int] = json.loads(row["reward_model"]["ground_truth"])
    return values
