"""Task `addition`: two long numbers in base `modulus`, added digit by digit with written carries.

A problem `a0 b0 a1 b1 ... =` gives the digits of both numbers, least significant first. The response
`s0 c0 s1 c1 ...` writes each position's sum digit and the carry out of it, and ends. Prompt and response advance
two tokens per position, so that what a position needs always lies at the same distance: a two-layer model with
rotary attention learns responses of hundreds of tokens. The sum digits and the last carry are graded; the carries
in between are the chain of thought.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cppo_lab.cores.mini.tasks.problems import Problems
from cppo_lab.cores.mini.tasks.tokenizer import Tokenizer
from cppo_lab.spec import TaskData


@dataclass(frozen=True)
class Addition:
    """S = `operations` digits per number; `Problems.values` are a0 b0 a1 b1 ..., least significant first."""

    data: TaskData

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.data.modulus, self.data.spellings)

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

        These are the positions whose digits sum to modulus - 1, one in `modulus`; all others are right. A wrong
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

    def rewards(self, responses: Tensor, lengths: Tensor, problems: Problems) -> Tensor:
        """Reward [N] in {0, 1} of responses [N, T]: the layout is complete, sum digits and last carry are right."""
        needed, digits = self.data.worked_length, 2 * self.data.operations
        if responses.shape[1] < needed:  # no room for a complete answer
            return torch.zeros(len(responses), device=responses.device)
        complete = (lengths == needed) & (responses[:, digits] == self.tokenizer.eos)
        written = self.tokenizer.values(responses[:, :digits])
        graded = torch.cat([written[:, ::2], written[:, -1:]], dim=1)
        return (complete & (graded == problems.answers).all(dim=1)).float()

    def answer(self, response: list[int]) -> str | None:
        """The sum digits and the last carry of a complete layout of numbers."""
        tokenizer, digits = self.tokenizer, 2 * self.data.operations
        complete = len(response) == self.data.worked_length and response[-1] == tokenizer.eos
        if not complete or any(symbol >= tokenizer.operator for symbol in response[:digits]):
            return None
        written = [symbol % self.data.modulus for symbol in response[:digits]]
        return " ".join(map(str, [*written[::2], written[-1]]))
