"""The embedded task: chains of modular arithmetic whose partial results are the chain of thought.

A problem `7 + 5 * 3 - 4 =` is worked from the left, modulo `modulus`. The response restates each operation with
its result, `+ 5 r1 * 3 r2 - 4 r3`, and ends; the last result is the answer. Only the answer is graded.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cppo_lab.spec import DataSpec

OPERATORS = ("+", "-", "*")
TOKENS_PER_STEP = 3


@dataclass(frozen=True)
class Tokenizer:
    """Numbers 0..modulus-1 are their own ids; then operators, `=`, end of response, padding."""

    modulus: int

    @property
    def operator(self) -> int:
        """Id of the first operator."""
        return self.modulus

    @property
    def equals(self) -> int:
        return self.modulus + len(OPERATORS)

    @property
    def eos(self) -> int:
        return self.equals + 1

    @property
    def pad(self) -> int:
        return self.equals + 2

    @property
    def vocabulary(self) -> int:
        return self.equals + 3

    def decode(self, ids: list[int]) -> str:
        """Readable text; padding is dropped."""
        names = [str(n) for n in range(self.modulus)] + [*OPERATORS, "=", "<eos>"]
        return " ".join(names[i] for i in ids if i != self.pad)


@dataclass(frozen=True)
class Problems:
    """N problems with `steps` operations each: first operand [N], operators [N, S] in 0..2, operands [N, S]."""

    first: Tensor
    operators: Tensor
    operands: Tensor

    def __len__(self) -> int:
        return len(self.first)

    def select(self, index: Tensor) -> "Problems":
        """The problems at `index`."""
        return Problems(self.first[index], self.operators[index], self.operands[index])

    def identities(self) -> list[tuple[int, ...]]:
        """One hashable identity per problem, to tell sets apart."""
        rows = torch.cat([self.first[:, None], self.operators, self.operands], dim=1)
        return [tuple(row) for row in rows.tolist()]


def apply_operator(state: Tensor, operator: Tensor, operand: Tensor, modulus: int) -> Tensor:
    """(state op operand) mod modulus, elementwise."""
    results = torch.stack([state + operand, state - operand, state * operand]) % modulus
    return results.gather(0, operator[None])[0]


def sample_problems(count: int, data: DataSpec, generator: torch.Generator) -> Problems:
    """Draw `count` problems.

    Multipliers are coprime to the modulus. Every operation is then a bijection of the state, so all answers
    are equally likely: a constant guess earns 1 / modulus and no more.
    """
    shape = (count, data.operations)
    units = torch.tensor([n for n in range(1, data.modulus) if math.gcd(n, data.modulus) == 1])
    operators = torch.randint(len(OPERATORS), shape, generator=generator)
    addends = torch.randint(1, data.modulus, shape, generator=generator)
    multipliers = units[torch.randint(len(units), shape, generator=generator)]
    return Problems(
        torch.randint(data.modulus, (count,), generator=generator),
        operators,
        torch.where(operators == OPERATORS.index("*"), multipliers, addends),
    )


def answers(problems: Problems, modulus: int) -> Tensor:
    """The true final values [N]."""
    state = problems.first
    for step in range(problems.operators.shape[1]):
        state = apply_operator(state, problems.operators[:, step], problems.operands[:, step], modulus)
    return state


def encode_prompts(problems: Problems, tokenizer: Tokenizer) -> Tensor:
    """Prompts [N, 2S + 2]: first operand, then operator and operand per step, then `=`."""
    pairs = torch.stack([problems.operators + tokenizer.operator, problems.operands], dim=-1)
    equals = torch.full((len(problems), 1), tokenizer.equals)
    return torch.cat([problems.first[:, None], pairs.flatten(1), equals], dim=1)


def noisy_traces(
    problems: Problems, tokenizer: Tokenizer, step_noise: float, generator: torch.Generator
) -> Tensor:
    """Worked responses [N, 3S + 1] in which each step is wrong with probability `step_noise`.

    A wrong step is off by one, and later steps follow the wrong state: the model learns the arithmetic and a
    habit of slipping. A systematic slip, unlike a uniformly random one, survives sampling at low temperature.
    """
    state, columns = problems.first, []
    for step in range(problems.operators.shape[1]):
        operator, operand = problems.operators[:, step], problems.operands[:, step]
        state = apply_operator(state, operator, operand, tokenizer.modulus)
        slip = torch.rand(len(problems), generator=generator) < step_noise
        state = torch.where(slip, (state + 1) % tokenizer.modulus, state)
        columns += [operator + tokenizer.operator, operand, state]
    columns.append(torch.full_like(state, tokenizer.eos))
    return torch.stack(columns, dim=1)


def grade(responses: Tensor, lengths: Tensor, expected: Tensor, tokenizer: Tokenizer) -> Tensor:
    """Reward [N] in {0, 1}: the response [N, T] ended by itself and the token before its end is the answer."""
    rows = torch.arange(len(responses), device=responses.device)
    last = responses[rows, (lengths - 1).clamp(min=0)]
    answer = responses[rows, (lengths - 2).clamp(min=0)]
    return ((lengths >= 2) & (last == tokenizer.eos) & (answer == expected)).float()


def validation_sets(data: DataSpec) -> dict[str, Problems]:
    """The held-out problem sets by benchmark name: disjoint, and the same for every run on `data`.

    Training problems are drawn from the same space; `held_out` keeps these out of them.
    """
    generator = torch.Generator().manual_seed(data.validation_seed)
    seen: set[tuple[int, ...]] = set()
    sets = {}
    for benchmark in data.benchmarks:
        rows: list[Problems] = []
        while len(rows) < data.validation_problems:
            candidate = sample_problems(1, data, generator)
            if candidate.identities()[0] not in seen:
                seen.add(candidate.identities()[0])
                rows.append(candidate)
        sets[benchmark] = Problems(
            torch.cat([p.first for p in rows]),
            torch.cat([p.operators for p in rows]),
            torch.cat([p.operands for p in rows]),
        )
    return sets


def sample_training_problems(
    count: int, data: DataSpec, generator: torch.Generator, held_out: set[tuple[int, ...]]
) -> Problems:
    """Draw `count` problems, none of which is in `held_out`."""
    problems = sample_problems(count, data, generator)
    while clashes := [i for i, key in enumerate(problems.identities()) if key in held_out]:
        fresh = sample_problems(len(clashes), data, generator)
        index = torch.tensor(clashes)
        problems.first[index] = fresh.first
        problems.operators[index] = fresh.operators
        problems.operands[index] = fresh.operands
    return problems
