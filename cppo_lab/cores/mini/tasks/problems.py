"""Problems of any embedded task as one batch of tensors: their definition, prompts and true answers."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


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

    def repeat(self, n: int) -> "Problems":
        """Each problem `n` times in a row: one per response of its group."""
        return self.select(torch.arange(len(self), device=self.values.device).repeat_interleave(n))

    def replace(self, index: Tensor, fresh: "Problems") -> "Problems":
        """A copy with the problems at `index` [M] replaced by the M problems `fresh`."""
        return Problems(
            self.values.index_copy(0, index, fresh.values),
            self.answers.index_copy(0, index, fresh.answers),
            self.prompts.index_copy(0, index, fresh.prompts),
        )

    def to(self, device: torch.device) -> "Problems":
        """The same problems on `device`."""
        return Problems(self.values.to(device), self.answers.to(device), self.prompts.to(device))

    def identities(self) -> list[tuple[int, ...]]:
        """One hashable identity per problem, to tell sets apart; the same in every spelling."""
        return [tuple(row) for row in self.values.tolist()]
