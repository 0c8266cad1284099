"""The rollout policy mu: the policy in training, or one that differs from it as rollout engines' policies do.

`staleness` makes mu older by that many rollout batches (asynchronous training); `precision` bfloat16 rounds
its weights and arithmetic, as inference engines do. Both make mu differ from pi before the first update.
"""

import copy
from collections import deque
from typing import Any

import torch

from cppo_lab.cores.mini.model import Transformer


class RolloutPolicy:
    """Gives the model to sample from, once per rollout batch."""

    def __init__(self, model: Transformer, staleness: int, precision: str) -> None:
        self.model, self.staleness = model, staleness
        same = staleness == 0 and precision == "float32"
        self._copy = None if same else copy.deepcopy(model).to(getattr(torch, precision))
        self._past: deque[dict[str, torch.Tensor]] = deque()

    def current(self) -> Transformer:
        """mu of the next rollout batch: the weights of `staleness` batches ago."""
        if self._copy is None:
            return self.model
        self._past.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
        self._copy.load_state_dict(self._past[0])
        if len(self._past) > self.staleness:
            self._past.popleft()
        return self._copy

    def state(self) -> list[dict[str, Any]]:
        """The state for a checkpoint."""
        return list(self._past)

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """Continue from `state`."""
        self._past = deque(state)
