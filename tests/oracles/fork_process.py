"""Slow reference for the exact core's process: its rules in plain Python, one token at a time.

It imports nothing of the package. A policy is a function (position, state) -> list of next-token probabilities, where a
state is (mode, previous token, slips).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.oracles import enumeration

State = tuple[int, int, int]
Policy = Callable[[int, State], list[float]]


@dataclass(frozen=True)
class Rules:
    family: str
    vocabulary: int
    horizon: int
    allowed: int

    def in_window(self, position: int) -> bool:
        """Whether token 0 changes the mode at `position` (from 0)."""
        eighth = math.ceil(self.horizon / 8)
        if self.family == "early_fork":
            return position < eighth
        return self.family == "late_fork" and position >= self.horizon - eighth

    def after(self, position: int, state: State, token: int) -> State:
        mode, previous, slips = state
        if token == 0 and self.in_window(position):
            return 1 - mode, token, slips
        alternates = token % 2 != previous % 2
        wrong = token == 0 or alternates == (mode == 1)
        return mode, token, min(slips + wrong, self.allowed + 1)

    def reward(self, state: State) -> float:
        return 1.0 if state[2] <= self.allowed else 0.0

    def states_along(self, start: int, tokens: tuple[int, ...]) -> list[State]:
        """The states before each token and behind the last."""
        found = [(0, start, 0)]
        for position, token in enumerate(tokens):
            found.append(self.after(position, found[-1], token))
        return found

    def flatten(self, policy: Policy, start: int) -> enumeration.Policy:
        """`policy` from `start` as a distribution for every sequence of tokens before."""
        return {
            tokens: policy(len(tokens), self.states_along(start, tokens)[-1])
            for tokens in enumeration.states(self.vocabulary, self.horizon)
        }

    def rewards(self, start: int) -> enumeration.Reward:
        return {
            tokens: self.reward(self.states_along(start, tokens)[-1])
            for tokens in enumeration.sequences(self.vocabulary, self.horizon)
        }
