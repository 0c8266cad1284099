"""Task `chain`: chains of modular arithmetic whose partial results are the chain of thought.

A problem `7 + 5 * 3 - 4 =` is worked from the left, modulo `modulus`. The response restates each operation with
its result, `+ 5 r1 * 3 r2 - 4 r3`, and ends; the last result is the answer. Only the answer is graded.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cppo_lab.cores.mini.tasks.problems import Problems
from cppo_lab.cores.mini.tasks.tokenizer import OPERATORS, Tokenizer
from cppo_lab.spec import TaskData


def apply_operator(state: Tensor, operator: Tensor, operand: Tensor, modulus: int) -> Tensor:
    """(state op operand) mod modulus, elementwise."""
    results = torch.stack([state + operand, state - operand, state * operand]) % modulus
    return results.gather(0, operator[None])[0]


@dataclass(frozen=True)
class Chain:
    """S = `operations` steps per problem; `Problems.values` are first operand, S operators (0..2), S operands."""

    data: TaskData

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.data.modulus, self.data.spellings)

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
        for step in range(self.data.operations):
            state = apply_operator(state, operators[:, step], operands[:, step], self.data.modulus)
        return Problems(values, state[:, None], torch.cat([numbers[:, :1], pairs.flatten(1), equals], dim=1))

    def noisy_traces(self, problems: Problems, step_noise: float, generator: torch.Generator) -> Tensor:
        """Worked responses [N, 3S + 1] in which each step is wrong with probability `step_noise`.

        A wrong step is off by one, and later steps follow the wrong state: the model learns the arithmetic and a
        habit of slipping. A systematic slip, unlike a uniformly random slip, survives sampling at low temperature.
        """
        modulus, tokenizer = self.data.modulus, self.tokenizer
        state, operators, operands = self._parts(problems.values)
        states = []
        for step in range(self.data.operations):
            state = apply_operator(state, operators[:, step], operands[:, step], modulus)
            slip = torch.rand(len(problems), generator=generator) < step_noise
            state = torch.where(slip, (state + 1) % modulus, state)
            states.append(state)
        numbers = tokenizer.spell(torch.stack([operands, torch.stack(states, dim=1)], dim=-1), generator)
        steps = torch.cat([operators[..., None] + tokenizer.operator, numbers], dim=-1)
        return torch.cat([steps.flatten(1), torch.full((len(problems), 1), tokenizer.eos)], dim=1)

    def rewards(self, responses: Tensor, lengths: Tensor, problems: Problems) -> Tensor:
        """Reward [N] in {0, 1}: the response [N, T] ended by itself and the token before its end is the answer."""
        last = responses.gather(1, (lengths[:, None] - 1).clamp(min=0))[:, 0]
        answer = self.tokenizer.values(responses.gather(1, (lengths[:, None] - 2).clamp(min=0)))
        right = (answer == problems.answers)[:, 0]
        return ((lengths >= 2) & (last == self.tokenizer.eos) & right).float()

    def answer(self, response: list[int]) -> str | None:
        """The number before the end."""
        tokenizer = self.tokenizer
        if len(response) < 2 or response[-1] != tokenizer.eos or response[-2] >= tokenizer.operator:
            return None
        return str(response[-2] % self.data.modulus)

    def _parts(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """First operand [N], operators [N, S], operands [N, S]."""
        operators, operands = values[:, 1:].chunk(2, dim=1)
        return values[:, 0], operators, operands
