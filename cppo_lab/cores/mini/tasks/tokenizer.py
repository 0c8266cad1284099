"""The symbols of every embedded task: numbers in several spellings, operators, `=`, end of response, padding.

Each value 0..modulus-1 has `spellings` symbols, value + modulus * spelling, so that a symbol's value is its id
modulo `modulus`. A writer draws the spelling of each number from Zipf's law, as words follow it in text: with many
spellings the policy spreads its mass over more tokens than a Top-K partition holds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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

    def decode(self, ids: list[int]) -> str:
        """Readable text: `7`, in its second spelling `7_1`, in its third `7_2`; padding is dropped."""
        return " ".join(self.name(i) for i in ids if i != self.pad)

    def names(self, ids: list[int]) -> list[str]:
        """The text of each symbol; empty for padding."""
        return [self.decode([i]) for i in ids]

    def name(self, symbol: int) -> str:
        """Readable text of a symbol."""
        if symbol >= self.operator:
            return (*OPERATORS, "=", "<eos>", "<pad>")[symbol - self.operator]
        spelling, value = divmod(symbol, self.modulus)
        return f"{value}_{spelling}" if spelling else str(value)
