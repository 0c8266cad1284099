"""What a verl run keeps of its answers, in validation and in training.

Workers collect what a rule decided on the kept training responses. The trainer reads the question and true answer of a
data row, and the answer of a response, for mathematics and our tasks, and records them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import transfer_queue as tq
from torch import Tensor
from transfer_queue import KVBatchMeta

from cppo_lab.answers.outcomes import chosen_problems, no_outcomes, problem_ids
from cppo_lab.answers.records import StepAnswers
from cppo_lab.answers.texts import TRAINING, VALIDATION, Sample, as_text
from cppo_lab.answers.tokens import RecordedTokens, chosen_groups
from cppo_lab.cores.mini.tasks import answer_text, make_task
from cppo_lab.cores.rule_loss import KeptResponse, token_table
from cppo_lab.data.answers import answer_of
from cppo_lab.spec import AnswersSpec, MathData, TaskData, VerlRun

# The kept training responses, from the micro-batches of all ranks to a table of tokens.
#
# The trainer marks their rows with the column PLACE; all other rows have -1 there. Only these rows leave a worker.

PLACE = "kept_place"  # int64 [1]: index of the row among the kept responses of the step


def places_of(data: Any) -> Tensor | None:
    """The marks of a micro-batch's rows [B]; None if no row is marked."""
    column = data.get(PLACE, None)
    if column is None:
        return None
    marks: Tensor = (column.values() if column.is_nested else column).flatten()
    return marks if bool((marks >= 0).any()) else None


# How the trainer reads a row of data and a response to it.

Row = Mapping[str, Any]  # of verl's data set


class Wording:
    """How the rows of a data set, and the responses to them, are read: mathematics, or a task of ours.

    A task's problems and answers are those of the embedded core, so that their ids are the same in both cores.
    """

    def __init__(self, data: MathData | TaskData) -> None:
        self.task = make_task(data) if isinstance(data, TaskData) else None

    def question(self, row: Row) -> str:
        """The text that identifies a problem in every run, the input of `problem_ids`: without a chat template's."""
        if self.task is None:
            return "\n\n".join(str(message["content"]) for message in row["raw_prompt"])
        return str(tuple(json.loads(row["reward_model"]["ground_truth"])))

    def truth(self, row: Row) -> str:
        """The true answer."""
        truth = row["reward_model"]["ground_truth"]
        if self.task is None:
            return str(truth)
        problem = self.task.write(torch.tensor([json.loads(truth)]), torch.Generator().manual_seed(0))
        return " ".join(map(str, problem.answers[0].tolist()))

    def answer(self, ids: list[int], text: str) -> str | None:
        """The answer that the grader extracts from a response with these ids and this text; None if there is none."""
        if self.task is not None:
            return (
                answer_text(self.task.answers(torch.tensor([ids]), torch.tensor([len(ids)]))[0])
                if ids
                else None
            )
        extracted = answer_of(text)
        return None if extracted is None else extracted.text


# The responses that verl's trainer keeps: outcomes and texts of a validation, texts and tokens of a training batch.
#
# Everything is read from the queue while it holds the rows of a step. Only the texts of the chosen validation problems
# and the chosen groups of a training batch are fetched, so that little data moves between machines.

Decode = Callable[[list[int]], str]


class TrainedResponse(NamedTuple):
    """A response of a training batch. `group`: index of its prompt in the batch, `draw`: its index within the group."""

    key: str  # in the queue
    group: int
    draw: int
    reward: float
    advantage: float


class VerlAnswerRecorder:
    """Collects the answers of a validated step; `take` returns them.

    Args:
        rows: verl's validation data; those of benchmarks that the run does not have are left out.
        decode: the text of token ids as the grader sees it; `spell`: the same with end-of-message tokens.

    Raises ValueError if two rows of a benchmark have the same index: their answers would be indistinguishable.
    """

    def __init__(
        self, spec: VerlRun, settings: AnswersSpec, rows: Iterable[Row], decode: Decode, spell: Decode
    ) -> None:
        self.spec, self.settings, self._decode, self._spell = spec, settings, decode, spell
        self._wording = Wording(spec.data)
        benchmarks = spec.data.benchmarks
        tested = [row for row in rows if row["data_source"] in benchmarks]
        keys = [(str(row["data_source"]), int(row["extra_info"]["index"])) for row in tested]
        if len(set(keys)) < len(keys):
            raise ValueError("two rows of the validation data have the same data_source and extra_info.index")
        sources = [source for source, _ in keys]
        # P problems in the order of the data: by benchmark and index of the row within its file.
        self._places = {key: place for place, key in enumerate(keys)}
        self.problems = problem_ids(sources, [self._wording.question(row) for row in tested])
        self._truths = [self._wording.truth(row) for row in tested]
        self._benchmark_of = tuple(benchmarks.index(source) for source in sources)
        self._texts_of = frozenset(chosen_problems(self._benchmark_of, settings.wanted_problems))
        self._longest = spec.rollout.max_response_length
        self._forget()

    def _forget(self) -> None:
        # By problem: right responses, those as long as the limit, all, and the tokens of all. The embedded core knows
        # the end token, and counts none as cut off that ends just at the limit; here only lengths are fetched.
        self._counts = np.zeros((4, len(self.problems)), np.int64)
        self._samples: list[Sample] = []
        self._tokens: RecordedTokens | None = None
        self.chosen: list[TrainedResponse] = []

    def validation(self, step: int, batch: KVBatchMeta) -> None:
        """Add a batch of a validation, which is still in the queue."""
        columns = self._fetch(batch.partition_id, batch.keys, "data_source", "extra_info", "extra_fields")
        recorded = []
        for key, tag, source, info, extra in zip(batch.keys, batch.tags, *columns, strict=True):
            place, length = self._places.get((str(source), int(info["index"]))), int(tag["response_len"])
            if place is None:
                continue
            right = float(extra["reward_extra_info"]["acc"]) > 0.5
            self._counts[:, place] += right, length >= self._longest, 1, length
            if place in self._texts_of:
                # The key is prompt_draw_turn.
                recorded.append((place, int(key.rsplit("_", 2)[1]), key, right))
        if not recorded:
            return
        recorded.sort()
        columns = self._fetch(batch.partition_id, [key for *_, key, _ in recorded], "prompts", "responses")
        for (place, draw, _, right), prompt, response in zip(recorded, *columns, strict=True):
            self._samples.append(
                Sample(
                    kind=VALIDATION,
                    benchmark=self.spec.data.benchmarks[self._benchmark_of[place]],
                    problem=self.problems[place],
                    draw=draw,
                    truth=as_text(self._truths[place]),
                    right=right,
                    **self._written(step, prompt, response),
                )
            )

    def _fetch(self, partition: str, keys: list[str], *names: str) -> list[list[Any]]:
        """Columns of rows in the queue, as plain values."""
        data = tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=list(names))
        columns = (data[name] if torch.is_tensor(data[name]) else data.pop(name).tolist() for name in names)
        return [
            [row.tolist() for row in column.unbind()] if torch.is_tensor(column) else column
            for column in columns
        ]

    def choose(self, responses: Sequence[TrainedResponse]) -> None:
        """Choose whole groups among those of a training batch that are trained."""
        groups = chosen_groups(sorted({response.group for response in responses}), self.settings.groups)
        chosen = (response for response in responses if response.group in groups)
        self.chosen = sorted(chosen, key=lambda response: (groups.index(response.group), response.draw))

    def training(self, step: int, partition: str, of_ranks: Sequence[Mapping[int, KeptResponse]]) -> None:
        """Add the chosen responses, which are still in the queue, with what each rank has kept of them, by place."""
        names = ("prompts", "responses", "raw_prompt", "reward_model")
        columns = self._fetch(partition, [choice.key for choice in self.chosen], *names)
        for choice, prompt, response, raw_prompt, model in zip(self.chosen, *columns, strict=True):
            row = {"raw_prompt": raw_prompt, "reward_model": model}
            self._samples.append(
                Sample(
                    kind=TRAINING,
                    benchmark="",
                    problem=problem_ids([TRAINING], [self._wording.question(row)])[0],
                    draw=choice.draw,
                    truth=as_text(self._wording.truth(row)),
                    right=choice.reward == 1,
                    group=choice.group,
                    reward=choice.reward,
                    advantage=choice.advantage,
                    **self._written(step, prompt, response),
                )
            )
        responses_by_place = {
            (self.chosen[place].group, self.chosen[place].draw): response
            for responses in of_ranks
            for place, response in responses.items()
        }
        self._tokens = token_table(
            step, self.spec, responses_by_place, self._samples, lambda token: as_text(self._spell([token]))
        )
        self.chosen = []

    def take(self, step: int) -> StepAnswers | None:
        """What was collected since the last call; None if there was no validation."""
        answers = None
        right, cut_off, count, tokens = self._counts  # those of failed ones count as wrong, as in verl's mean
        if count.any():
            before = no_outcomes(
                self.spec.validation.samples, self.spec.data.benchmarks, self.problems, self._benchmark_of
            )
            outcomes = before.append(step, right, cut_off, tokens / np.maximum(count, 1))
            answers = StepAnswers(outcomes, tuple(self._samples), self._tokens)
        self._forget()
        return answers

    def _written(self, step: int, prompt: list[int], response: list[int]) -> dict[str, Any]:
        """The fields of a `Sample` that follow from its tokens."""
        text, cut_off = self._decode(response), len(response) >= self._longest
        answer = self._wording.answer(response, text)
        return {
            "step": step,
            "prompt": as_text(self._spell(prompt)),
            "response": as_text(text),
            "answer": None if answer is None else as_text(answer),
            "length": len(response),
            "cut_off": cut_off,
            "stop": "length" if cut_off else "end",
        }
