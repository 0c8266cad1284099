"""The tasks of the embedded trainer: symbols, problems, worked responses and grading; and the problem sets of any task.

A new task touches the dict `TASKS`, `TaskData` in `cppo_lab.spec` (its name and lengths), and a file in conf/data.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cppo_lab.spec import TaskData

# The symbols of every embedded task: numbers in several spellings, operators, `=`, end of response, padding.
#
# Each value 0..modulus-1 has `spellings` symbols, value + modulus * spelling, so that a symbol's value is its id
# modulo `modulus`. A writer draws the spelling of each number from Zipf's law, as words follow it in text: with many
# spellings the policy spreads its mass over more tokens than a Top-K partition holds.

OPERATORS = ("+", "-", "*")


@dataclass(frozen=True)
class Tokenizer:
    """Ids: numbers first, by spelling and then by value; operators, `=`, end of response and padding follow."""

    modulus: int
    spellings: int = 1

    @property
    def operator(self) -> int:
        """Id of the first operator; every id below it is a number."""
        return self.modulus * self.spellings

    @property
    def equals(self) -> int:
        return self.operator + len(OPERATORS)

    @property
    def eos(self) -> int:
        return self.equals + 1

    @property
    def pad(self) -> int:
        return self.equals + 2

    @property
    def vocabulary(self) -> int:
        return self.equals + 3

    def spell(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Ids, of the shape of `values`, that write the numbers `values`: spelling r (from 0) has p ~ 1 / (r + 1).

        A single spelling takes nothing from `generator`.
        """
        if self.spellings == 1:
            return values
        drawn = torch.multinomial(
            self.spelling_probabilities(), values.numel(), replacement=True, generator=generator
        )
        return values + self.modulus * drawn.view_as(values)

    def spelling_probabilities(self) -> Tensor:
        """Zipf's law over the spellings of a number [spellings], float64."""
        weights = 1 / torch.arange(1, self.spellings + 1, dtype=torch.float64)
        return weights / weights.sum()

    def values(self, ids: Tensor) -> Tensor:
        """The numbers that `ids` write, in the same shape; -1 where the symbol is not a number."""
        return torch.where(ids < self.operator, ids % self.modulus, -1)

    def names(self, ids: list[int]) -> list[str]:
        """The text of each symbol; empty for padding."""
        return ["" if i == self.pad else self.name(i) for i in ids]

    def name(self, symbol: int) -> str:
        """Readable text of a symbol: `7`, in its second spelling `7_1`, in its third `7_2`."""
        if symbol >= self.operator:
            return (*OPERATORS, "=", "<eos>", "<pad>")[symbol - self.operator]
        spelling, value = divmod(symbol, self.modulus)
        return f"{value}_{spelling}" if spelling else str(value)


@dataclass(frozen=True)
class Problems:
    """N problems. `values` alone define a problem; the spelling of its prompt does not matter."""

    values: Tensor  # [N, F] the numbers and operators that define the problem, laid out by its task
    answers: Tensor  # [N, A] the values that grading compares
    prompts: Tensor  # [N, P] token ids

    @classmethod
    def cat(cls, parts: Iterable["Problems"]) -> "Problems":
        """All problems of `parts`, in order."""
        columns = zip(*((part.values, part.answers, part.prompts) for part in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    def __len__(self) -> int:
        return len(self.values)

    def select(self, index: Tensor) -> "Problems":
        """The problems at `index`."""
        return Problems(self.values[index], self.answers[index], self.prompts[index])

    def identities(self) -> list[tuple[int, ...]]:
        """One hashable identity per problem, to tell sets apart; the same in every spelling."""
        return [tuple(row) for row in self.values.tolist()]


@dataclass(frozen=True)
class Task(ABC):
    """Problems, worked responses and grading. All draws come from the generators passed in (on the CPU).

    Prompts have `data.prompt_length` tokens and worked responses `data.worked_length`, the end token included.
    """

    data: TaskData

    @property
    def tokenizer(self) -> Tokenizer:
        """Vocabulary size, ids of end and padding, readable text."""
        return Tokenizer(self.data.modulus, self.data.spellings)

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator) -> Problems:
        """Draw `count` problems with their prompts [N, P] and what grading needs."""

    @abstractmethod
    def write(self, values: Tensor, generator: torch.Generator) -> Problems:
        """The problems that `values` [N, F] define; only the spelling of their prompts is drawn."""

    @abstractmethod
    def noisy_traces(self, problems: Problems, step_noise: float, generator: torch.Generator) -> Tensor:
        """Worked responses [N, R] in which each step is wrong with probability `step_noise`."""

    @abstractmethod
    def answers(self, responses: Tensor, lengths: Tensor) -> Tensor:
        """The values [N, A] that grading compares with `Problems.answers`, of responses [N, T], of which row i has
        lengths[i] tokens; -1 where there is none.
        """

    def rewards(self, responses: Tensor, lengths: Tensor, answers: Tensor) -> Tensor:
        """Reward [N] in {0, 1} of responses [N, T], whose true answers are `answers` [N, A]."""
        return (self.answers(responses, lengths) == answers).all(1).float()


def answer_text(values: Tensor) -> str | None:
    """An answer [A] as text: its values separated by spaces; None if any is missing."""
    return None if bool((values < 0).any()) else " ".join(map(str, values.tolist()))


# Task `chain`: chains of modular arithmetic whose partial results are the chain of thought.
#
# A problem `7 + 5 * 3 - 4 =` is worked from the left, modulo `modulus`. The response restates each operation with
# its result, `+ 5 r1 * 3 r2 - 4 r3`, and ends; the last result is the answer. Only the answer is graded.


class Chain(Task):
    """S = `operations` steps per problem; `Problems.values` are first operand, S operators (0..2), S operands."""

    def sample(self, count: int, generator: torch.Generator) -> Problems:
        """Draw `count` problems: prompts [N, 2S + 2], answers [N, 1].

        Multipliers are coprime to the modulus. Every operation is then a bijection of the state, so all answers
        are equally likely: a constant guess earns 1 / modulus and no more.
        """
        modulus, shape = self.data.modulus, (count, self.data.operations)
        units = torch.tensor([n for n in range(1, modulus) if math.gcd(n, modulus) == 1])
        operators = torch.randint(len(OPERATORS), shape, generator=generator)
        addends = torch.randint(1, modulus, shape, generator=generator)
        multipliers = units[torch.randint(len(units), shape, generator=generator)]
        first = torch.randint(modulus, (count, 1), generator=generator)
        operands = torch.where(operators == OPERATORS.index("*"), multipliers, addends)
        return self.write(torch.cat([first, operators, operands], dim=1), generator)

    def write(self, values: Tensor, generator: torch.Generator) -> Problems:
        """The problems that `values` [N, 2S + 1] define, each number in a spelling drawn from `generator`."""
        state, operators, operands = self._parts(values)
        numbers = self.tokenizer.spell(torch.cat([state[:, None], operands], dim=1), generator)
        pairs = torch.stack([operators + self.tokenizer.operator, numbers[:, 1:]], dim=-1)
        equals = torch.full((len(values), 1), self.tokenizer.equals)
        answers = self._states(values, torch.zeros_like(operators, dtype=torch.bool))[:, -1:]
        return Problems(values, answers, torch.cat([numbers[:, :1], pairs.flatten(1), equals], dim=1))

    def noisy_traces(self, problems: Problems, step_noise: float, generator: torch.Generator) -> Tensor:
        """Worked responses [N, 3S + 1] in which each step is wrong with probability `step_noise`.

        A wrong step is off by one, and later steps follow the wrong state: the model learns the arithmetic and a
        habit of slipping. A systematic slip, unlike a uniformly random slip, survives sampling at low temperature.
        """
        tokenizer = self.tokenizer
        _, operators, operands = self._parts(problems.values)
        drawn = torch.rand(operators.T.shape, generator=generator).T
        states = self._states(problems.values, drawn < step_noise)
        numbers = tokenizer.spell(torch.stack([operands, states], dim=-1), generator)
        steps = torch.cat([operators[..., None] + tokenizer.operator, numbers], dim=-1)
        return torch.cat([steps.flatten(1), torch.full((len(problems), 1), tokenizer.eos)], dim=1)

    def answers(self, responses: Tensor, lengths: Tensor) -> Tensor:
        """The number [N, 1] before the end, of responses that ended by themselves."""
        end = lengths[:, None] - 1
        ended = (end > 0) & (responses.gather(1, end.clamp(min=0)) == self.tokenizer.eos)
        return torch.where(ended, self.tokenizer.values(responses.gather(1, (end - 1).clamp(min=0))), -1)

    def _states(self, values: Tensor, slips: Tensor) -> Tensor:
        """The result of each step [N, S]; where `slips` [N, S] it is one too large."""
        state, operators, operands = self._parts(values)
        states = []
        for operator, operand, slip in zip(operators.T, operands.T, slips.T, strict=True):
            results = torch.stack([state + operand, state - operand, state * operand])
            state = (results.gather(0, operator[None])[0] + slip) % self.data.modulus
            states.append(state)
        return torch.stack(states, dim=1)

    def _parts(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """First operand [N], operators [N, S], operands [N, S]."""
        operators, operands = values[:, 1:].chunk(2, dim=1)
        return values[:, 0], operators, operands


# Task `addition`: two long numbers in base `modulus`, added digit by digit with written carries.
#
# A problem `a0 b0 a1 b1 ... =` gives the digits of both numbers, least significant first. The response
# `s0 c0 s1 c1 ...` writes each position's sum digit and the carry out of it, and ends. Prompt and response advance
# two tokens per position, so that what a position needs always lies at the same distance: a two-layer model with
# rotary attention learns responses of hundreds of tokens. The sum digits and the last carry are graded; the carries
# in between are the chain of thought.


class Addition(Task):
    """S = `operations` digits per number; `Problems.values` are a0 b0 a1 b1 ..., least significant first."""

    def sample(self, count: int, generator: torch.Generator) -> Problems:
        """Draw `count` problems with uniform digits: prompts [N, 2S + 1], answers [N, S + 1]."""
        shape = (count, 2 * self.data.operations)
        return self.write(torch.randint(self.data.modulus, shape, generator=generator), generator)

    def write(self, values: Tensor, generator: torch.Generator) -> Problems:
        """The problems that `values` [N, 2S] define, each number in a spelling drawn from `generator`."""
        modulus = self.data.modulus
        totals = values[:, ::2] + values[:, 1::2]
        # A position whose digits sum to modulus - 1 passes its carry on; any other decides the carry by itself. The
        # carry out of a position is therefore that of the last deciding position up to it, or 0 if there is none.
        positions = torch.arange(self.data.operations)
        decider = torch.where(totals != modulus - 1, positions, -1).cummax(dim=1).values
        carries = (decider >= 0) & (totals.gather(1, decider.clamp(min=0)) >= modulus)
        carried_in = torch.cat([torch.zeros(len(values), 1), carries[:, :-1]], dim=1).long()
        answers = torch.cat([(totals + carried_in) % modulus, carries[:, -1:].long()], dim=1)
        equals = torch.full((len(values), 1), self.tokenizer.equals)
        return Problems(values, answers, torch.cat([self.tokenizer.spell(values, generator), equals], dim=1))

    def noisy_traces(self, problems: Problems, step_noise: float, generator: torch.Generator) -> Tensor:
        """Worked responses [N, 2S + 1]: each position that passes its carry on is wrong with probability `step_noise`.

        These are the positions whose digits sum to modulus - 1, a share of 1 / modulus; all others are right. A wrong
        position has its sum digit off by one or, equally likely, its carry flipped, and later positions follow the
        wrong carry. Rare hard steps leave long responses a chance: with noise everywhere, nearly all would fail.
        """
        modulus, tokenizer = self.data.modulus, self.tokenizer
        totals = problems.values[:, ::2] + problems.values[:, 1::2]
        slip = (torch.rand(totals.shape, generator=generator) < step_noise) & (totals == modulus - 1)
        in_digit = torch.rand(totals.shape, generator=generator) < 0.5
        carry, written = torch.zeros_like(totals[:, 0]), []
        for position in range(self.data.operations):
            total = totals[:, position] + carry
            digit = (total + (slip & in_digit)[:, position]) % modulus
            carry = total // modulus ^ (slip & ~in_digit)[:, position]
            written += [digit, carry]
        numbers = tokenizer.spell(torch.stack(written, dim=1), generator)
        return torch.cat([numbers, torch.full((len(problems), 1), tokenizer.eos)], dim=1)

    def answers(self, responses: Tensor, lengths: Tensor) -> Tensor:
        """The sum digits and the last carry [N, S + 1] of responses with a complete layout."""
        needed, digits = self.data.worked_length, 2 * self.data.operations
        if responses.shape[1] < needed:  # no room for a complete answer
            return torch.full((len(responses), self.data.operations + 1), -1, device=responses.device)
        complete = (lengths == needed) & (responses[:, digits] == self.tokenizer.eos)
        written = self.tokenizer.values(responses[:, :digits])
        graded = torch.cat([written[:, ::2], written[:, -1:]], dim=1)
        return torch.where(complete[:, None], graded, -1)


TASKS: dict[str, type[Task]] = {"chain": Chain, "addition": Addition}


def make_task(data: TaskData) -> Task:
    """The task that `data` names."""
    return TASKS[data.task](data)


def identities(sets: Mapping[str, Problems]) -> set[tuple[int, ...]]:
    """Those of all problems of validation sets, which are not trained on."""
    return {key for problems in sets.values() for key in problems.identities()}


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
        places = torch.arange(count).index_copy(0, torch.tensor(clashes), count + torch.arange(len(clashes)))
        problems = Problems.cat([problems, task.sample(len(clashes), generator)]).select(places)
    return problems
