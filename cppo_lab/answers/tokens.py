"""The tokens of some training responses of a validated step, with the inputs of a rule's decisions: an npz file.

Derived quantities (position weights, prefix sums, budgets, another rule's mask) are not in the file;
`analysis/replay.py` computes them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from cppo_lab.answers import ANSWERS, pack_arrays, unpacked_arrays
from cppo_lab.answers.texts import Count, Text

FORMAT = 1
LARGEST = 256 * 2**20  # bytes, of the file and of what it unpacks to
REMEDY = "delete that file"
OTHER_TEST = "rule"  # the reason if a rule does not name its tests
_COLUMNS = {
    "ends": "<i8",
    "group": "<i8",
    "draw": "<i8",
    "advantage": "<f4",
    "reward": "<f4",
    "token": "<i4",
    "rollout_logp": "<f4",
    "logp": "<f4",
    "divergence": "<f4",
    "keep": "<f4",
    "reason": "<u1",
    "order": "<i4",
    "vocabulary": "<i4",
}
_PER_RESPONSE = ("group", "draw", "advantage", "reward")
_PER_TOKEN = ("token", "rollout_logp", "logp", "divergence", "keep", "reason")


@dataclass(frozen=True)
class RuleUsed:
    """The rule that the run trained with, and the definition of its D_t.

    name, path: as in the run's configuration. constants: the keyword arguments of its function. measure, estimator: of
    D_t. k, convention: of the Top-K estimator only.
    """

    name: str
    path: str | None
    constants: Mapping[str, float | int | str]
    estimator: str
    measure: str
    k: int | None = None
    convention: str | None = None


@dataclass(frozen=True, eq=False)
class RecordedTokens:
    """R concatenated responses with N tokens in total, as of the beginning of their update.

    ends [R] int64: where each response's tokens end; those of response i begin at ends[i - 1], 0 for the first.
    group, draw [R] int64: as in `Sample`: which prompt of the batch, which of its responses.
    advantage, reward [R] float32.
    token [N] int32: ids. rollout_logp, logp [N] float32: log mu and log pi of them, in nats.
    divergence [N] float32: D_t.
    keep [N] float32: the rule's mask or weight, in [0, 1]. reason [N] uint8: 0 for a token that no test masked or
    reduced, else 1 + the index in `tests` of the first test that did. order [N] int32: for the rule that shuffles its
    weights, each response's permutation of its positions; else empty. vocabulary [U] int32, pieces: the different ids,
    rising, and the text of each by itself.
    """

    step: int
    rule: RuleUsed
    tests: tuple[str, ...]
    ends: NDArray[np.int64]
    group: NDArray[np.int64]
    draw: NDArray[np.int64]
    advantage: NDArray[np.float32]
    reward: NDArray[np.float32]
    token: NDArray[np.int32]
    rollout_logp: NDArray[np.float32]
    logp: NDArray[np.float32]
    divergence: NDArray[np.float32]
    keep: NDArray[np.float32]
    reason: NDArray[np.uint8]
    vocabulary: NDArray[np.int32]
    pieces: tuple[str, ...]
    order: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    left_out: int = 0  # chosen responses that did not fit into the file

    def __post_init__(self) -> None:
        """Raises ValueError if the parts do not fit together, or a value is out of range."""
        bounds = np.concatenate([[0], self.ends])
        count, responses, vocabulary = len(self.token), len(self.ends), self.vocabulary
        finite = ("advantage", "reward", "rollout_logp", "logp", "divergence", "keep")
        constants = self.rule.constants.values()
        if np.any(bounds[1:] < bounds[:-1]) or bounds[-1] != count:
            why = "its responses do not cover its tokens"
        elif any(getattr(self, name).shape != (responses,) for name in _PER_RESPONSE) or any(
            getattr(self, name).shape != (count,) for name in _PER_TOKEN
        ):
            why = "its columns have different lengths"
        elif len(self.order) not in (0, count) or np.any((self.order < 0) | (self.order >= max(count, 1))):
            why = "its order is not a permutation of its tokens"
        elif not all(np.all(np.isfinite(getattr(self, name))) for name in finite):
            why = f"one of {', '.join(finite)} is not finite"
        elif np.any(self.divergence < 0) or np.any((self.keep < 0) | (self.keep > 1)):
            why = "a divergence, or a share kept, is out of range"
        elif np.any(self.group < 0) or np.any(self.draw < 0) or np.any(self.reason > len(self.tests)):
            why = "a number of a response, or a test, is out of range"
        elif len(self.pieces) != len(vocabulary) or np.any(vocabulary[1:] <= vocabulary[:-1]):
            why = "its vocabulary is not sorted, or has no text for each entry"
        elif not np.all(np.isin(self.token, vocabulary)):
            why = "a token is not in its vocabulary"
        elif any(isinstance(constant, float) and math.isnan(constant) for constant in constants):
            why = "a constant of its rule is no number"
        else:
            return
        raise ValueError(why)

    def responses(self) -> Iterator[slice]:
        """The slice of each response's tokens."""
        start = 0
        for end in self.ends.tolist():
            yield slice(start, end)
            start = end

    def texts(self) -> list[str]:
        """The text of each token by itself [N]."""
        places = np.searchsorted(self.vocabulary, self.token)
        return [self.pieces[place] for place in places.tolist()]

    def reason_of(self, place: int) -> str:
        """The test that masked or reduced the token at index `place`; empty if none did."""
        number = int(self.reason[place])
        return self.tests[number - 1] if number else ""

    def first(self, count: int) -> "RecordedTokens":
        """The first `count` responses; the others are left out."""
        tokens = int(self.ends[count - 1])
        vocabulary = np.unique(self.token[:tokens])
        places = np.searchsorted(self.vocabulary, vocabulary)
        cut: dict[str, Any] = {name: getattr(self, name)[:count] for name in _PER_RESPONSE}
        cut |= {name: getattr(self, name)[:tokens] for name in (*_PER_TOKEN, "order")}
        return replace(
            self,
            ends=self.ends[:count],
            vocabulary=vocabulary,
            pieces=tuple(self.pieces[place] for place in places.tolist()),
            left_out=self.left_out + len(self.ends) - count,
            **cut,
        )


def tokens_name(step: int) -> str:
    """The name of a step's file, relative to the run's folder."""
    return f"{ANSWERS}/tokens-{step:06d}.npz"


def chosen_groups(trained: Sequence[int], most: int) -> list[int]:
    """The training groups whose responses are recorded: `most` of `trained`, the batch's groups with a learning signal.

    Evenly spaced, the last first, since the last minibatch is furthest from the rollout policy.
    """
    count = min(most, len(trained))
    return [trained[len(trained) * (number + 1) // count - 1] for number in reversed(range(count))]


def write(tokens: RecordedTokens) -> bytes:
    """The file's bytes."""
    about = {
        "format": FORMAT,
        "step": tokens.step,
        "left_out": tokens.left_out,
        "rule": {**vars(tokens.rule), "constants": dict(tokens.rule.constants)},
        "tests": tokens.tests,
        "pieces": tokens.pieces,
    }
    return pack_arrays(about, vars(tokens), _COLUMNS)


def write_within(tokens: RecordedTokens, most: int) -> bytes | None:
    """The bytes of the file with as many whole responses as fit into `most` bytes; None if none does."""
    count = len(tokens.ends)
    while count and len(data := write(tokens.first(count))) > most:
        count = min(
            count - 1, int(np.searchsorted(tokens.ends, tokens.ends[count - 1] * (most / len(data)), "right"))
        )
    return data if count else None


def read(data: bytes, what: str) -> RecordedTokens:
    """The tokens in a file's bytes; `what` names the file in messages. Everything in it is validated.

    Raises UserError if it is too large, broken, or not such a file.
    """
    said = f"{what} has no tokens of training responses"
    with unpacked_arrays(data, _COLUMNS, FORMAT, LARGEST, said, REMEDY) as (about, arrays):
        return RecordedTokens(**vars(_About.model_validate(about)) | arrays)


class _About(BaseModel):
    step: Count
    left_out: Count
    rule: RuleUsed
    tests: tuple[str, ...]
    pieces: tuple[Text, ...]
