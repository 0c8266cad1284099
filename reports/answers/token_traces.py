"""Training responses token by token, with the decisions of the rules of the report's runs on the same tokens."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cppo_lab.analysis.answers import RunAnswers
from cppo_lab.analysis.selection import RunScore
from cppo_lab.answers.tokens import RecordedTokens, RuleUsed
from cppo_lab.errors import UserError
from cppo_lab.reports.answers.samples import visible
from cppo_lab.reports.escapes import escape_json
from cppo_lab.reports.names import display_name
from cppo_lab.rules import rule_of

MOST_BYTES = 3_000_000  # of all responses of a page, as embedded in it
MOST_TOKENS = 20_000  # of one response, from its start; the paper's have at most 16,384
LONGEST_PIECE = 200  # characters of one token
_HALF = float(np.finfo(np.float16).max)

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class RuleTrace:
    """One rule on the T tokens of a response. `own`: the run was trained with it.

    reason [T]: 0, or 1 + the index in `tests` of the test that masked or reduced the token. keep [T]: its mask or
    weight. weight, prefix_sum, limit [T]: w_t, S_{t-1} and c_t of rules with a prefix budget; None for others.
    """

    name: str
    own: bool
    divergence: str
    tests: tuple[str, ...]
    reason: NDArray[np.uint8]
    keep: FloatArray
    weight: FloatArray | None = None
    prefix_sum: FloatArray | None = None
    limit: FloatArray | None = None

    def plain(self) -> dict[str, Any]:
        """The trace for JSON; `soft` is present only if a token is kept in part."""
        found: dict[str, Any] = {
            "name": self.name,
            "own": self.own,
            "d": self.divergence,
            "tests": [visible(test) for test in self.tests],
            "reason": b64encode(self.reason.tobytes()).decode(),
        }
        if np.any((self.keep > 0) & (self.keep < 1)):
            found["soft"] = _packed(self.keep)
        for key, values in (("w", self.weight), ("s", self.prefix_sum), ("c", self.limit)):
            if values is not None:
                found[key] = _packed(values)
        return found


@dataclass(frozen=True, eq=False)
class TokenResponse:
    """One response: its T tokens (the first ones of a longer one) with log mu, log pi, D_t, and the rules on them."""

    model: str
    method: str
    seed: int | None
    step: int
    group: int
    draw: int
    advantage: float
    reward: float
    length: int
    pieces: tuple[str, ...]
    rollout_logp: FloatArray
    logp: FloatArray
    divergence: FloatArray
    rules: tuple[RuleTrace, ...]

    def plain(self) -> dict[str, Any]:
        """The response for JSON, with numbers in half precision (three digits)."""
        return {
            "model": self.model,
            "method": self.method,
            "seed": self.seed,
            "step": self.step,
            "group": self.group,
            "draw": self.draw,
            "advantage": float(f"{self.advantage:.4g}"),
            "reward": float(f"{self.reward:.4g}"),
            "length": self.length,
            "pieces": self.pieces,
            "mu": _packed(self.rollout_logp),
            "ratio": _packed(self.logp - self.rollout_logp),
            "d": _packed(self.divergence),
            "rules": [rule.plain() for rule in self.rules],
        }


def token_responses(
    runs: Sequence[tuple[RunScore, RunAnswers]], most: int = MOST_BYTES
) -> tuple[TokenResponse, ...]:
    """The responses that fit into `most` bytes of JSON, the first of every run before the second of any. Runs in
    `not_replayed` have none.
    """
    left_out = not_replayed(runs)
    queues = [
        _responses(run, own.tokens[-1], _rules(run, runs))
        for run, own in runs
        if own.tokens and run.variant not in left_out
    ]
    found, used = [], 0
    for response in (one for row in zip_longest(*queues) for one in row if one is not None):
        size = len(escape_json(response.plain())) + 1
        if used + size > most:
            break
        used += size
        found.append(response)
    return tuple(found)


def not_replayed(runs: Sequence[tuple[RunScore, RunAnswers]]) -> dict[str, str]:
    """Variant -> why its decisions cannot be replayed from the recorded tokens of its runs."""
    found: dict[str, str] = {}
    for run, own in runs:
        if own.tokens and (reason := _why_not(own.tokens[-1])) is not None:
            found[run.variant] = reason
    return found


def _why_not(tokens: RecordedTokens) -> str | None:
    try:
        from cppo_lab.answers.replay import why_not  # torch

        return why_not(rule_of(tokens.rule.name, tokens.rule.path), tokens)
    except ModuleNotFoundError as error:  # the page is complete otherwise
        return f"package {error.name!r} is not installed"
    except UserError as error:  # a rule of a package that is not installed here
        return str(error)


def _rules(run: RunScore, runs: Sequence[tuple[RunScore, RunAnswers]]) -> tuple[tuple[str, RuleUsed], ...]:
    """(title, rule) of the other methods on the same model."""
    found: dict[str, RuleUsed] = {}
    for other, own in runs:
        if other.model == run.model and other.variant != run.variant and own.tokens:
            found[display_name(other.variant)] = own.tokens[-1].rule
    return tuple(found.items())


def _responses(
    run: RunScore, tokens: RecordedTokens, others: Sequence[tuple[str, RuleUsed]]
) -> Iterator[TokenResponse]:
    from cppo_lab.answers.replay import own_divergence, replay  # torch

    replayed = [(display_name(run.variant), True, replay(tokens))]
    for title, rule in others:
        try:
            same = own_divergence(rule) == own_divergence(tokens.rule)
            found = replay(
                tokens,
                rule.name,
                rule.constants,
                path=rule.path,
                divergence=None if same else _from_file(own_divergence(rule)),
            )
        except UserError:  # a rule that cannot be replayed from a file is not offered
            continue
        replayed.append((title, False, found))
    texts = tokens.texts()
    for number, whole in enumerate(tokens.responses()):
        cut = slice(whole.start, min(whole.stop, whole.start + MOST_TOKENS))
        yield TokenResponse(
            model=run.model,
            method=display_name(run.variant),
            seed=run.seed,
            step=tokens.step,
            group=int(tokens.group[number]),
            draw=int(tokens.draw[number]),
            advantage=float(tokens.advantage[number]),
            reward=float(tokens.reward[number]),
            length=whole.stop - whole.start,
            pieces=tuple(visible(text[:LONGEST_PIECE]) for text in texts[cut]),
            rollout_logp=tokens.rollout_logp[cut],
            logp=tokens.logp[cut],
            divergence=tokens.divergence[cut],
            rules=tuple(
                RuleTrace(
                    name=title,
                    own=own,
                    divergence=one.divergence,
                    tests=one.tests,
                    reason=one.reason[cut],
                    keep=one.keep[cut],
                    weight=_cut(one.weight, cut),
                    prefix_sum=_cut(one.prefix_sum, cut),
                    limit=_cut(one.limit, cut),
                )
                for title, own, one in replayed
            ),
        )


def _from_file(divergence: str) -> str | None:
    """The divergence if it can be computed from recorded tokens; otherwise None, and the rule gets the one that the run
    measured.
    """
    from cppo_lab.answers.replay import FROM_SAMPLED  # torch

    return divergence if divergence in FROM_SAMPLED else None


def _cut(values: FloatArray | None, cut: slice) -> FloatArray | None:
    return None if values is None else values[cut]


def _packed(values: FloatArray) -> str:
    """Half-precision floats, little-endian, in base64; larger values are clipped to the largest finite one."""
    return b64encode(np.clip(values, -_HALF, _HALF).astype("<f2").tobytes()).decode()
