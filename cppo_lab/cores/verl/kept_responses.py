"""Collects the kept training responses from the micro-batches of all ranks into a table of tokens.

The trainer marks their rows with the column PLACE; all other rows have -1 there. Only these rows leave a worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cppo_lab.cores.diagnostics import ObservedTokens
from cppo_lab.maths.masks import decisions
from cppo_lab.maths.tokens import RuleOutput

PLACE = "kept_place"  # int64 [1]: index of the row among the kept responses of the step


class Decided(NamedTuple):
    """A micro-batch with the rule's decisions; [B, T], right-padded."""

    places: Tensor  # [B] of PLACE
    seen: ObservedTokens
    order: Tensor | None  # of the shuffled weights
    output: RuleOutput


@dataclass(frozen=True, eq=False)
class KeptResponse:
    """One response of T tokens as trained by its rank, on the CPU; fields as in `answers.tokens.Tokens`, all [T]."""

    place: int
    advantage: float
    tests: tuple[str, ...]
    token: NDArray[np.int32]
    rollout_logp: NDArray[np.float32]
    logp: NDArray[np.float32]
    divergence: NDArray[np.float32]
    keep: NDArray[np.float32]
    reason: NDArray[np.uint8]
    order: NDArray[np.int32]  # empty unless the rule shuffles its weights


def places_of(data: Any) -> Tensor | None:
    """The marks of a micro-batch's rows [B]; None if no row is marked."""
    column = data.get(PLACE, None)
    if column is None:
        return None
    marks: Tensor = (column.values() if column.is_nested else column).flatten()
    return marks if bool((marks >= 0).any()) else None


@torch.no_grad()
def kept_responses(decided: Decided) -> list[KeptResponse]:
    """The kept responses of a micro-batch, in order."""
    seen, chosen = decided.seen, decided.places >= 0
    valid = seen.valid & chosen[:, None]
    decision = decisions(decided.output, valid)
    lengths = valid.sum(1)[chosen].tolist()

    def parts(values: Tensor, dtype: torch.dtype) -> list[NDArray[Any]]:
        """Split the values of the chosen rows' tokens [N] into one array per row."""
        return [part.numpy() for part in values.to(dtype).cpu().split(lengths)]

    empty: list[NDArray[Any]] = [np.empty(0, np.int32)] * len(lengths)
    columns = (
        parts(seen.tokens[valid], torch.int32),
        parts(seen.rollout_logp[valid], torch.float32),
        parts(seen.logp[valid], torch.float32),
        parts(seen.divergence[valid], torch.float32),
        parts(decision.keep, torch.float32),
        parts(decision.reason, torch.uint8),
        empty if decided.order is None else parts(decided.order[valid], torch.int32),
    )
    return [
        KeptResponse(place, advantage, decision.tests, *arrays)
        for place, advantage, *arrays in zip(
            decided.places[chosen].tolist(), seen.advantages[chosen, 0].tolist(), *columns, strict=True
        )
    ]


def in_places(of_ranks: Sequence[Sequence[KeptResponse]]) -> list[KeptResponse]:
    """The kept responses of all ranks in the order of their places."""
    return sorted(
        (response for of_rank in of_ranks for response in of_rank), key=lambda response: response.place
    )
