"""Compares two rules on the same tokens: the run's own rule and another one."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cppo_lab.answers.replay import Replayed, own_divergence
from cppo_lab.answers.tokens import RecordedTokens
from cppo_lab.errors import printable

MOST_LINES = 20  # of differing tokens


@dataclass(frozen=True)
class ResponsePair:
    """One response under both rules. `kept`, `own_kept`: the mean of `keep` over its tokens, 1 for none.

    tests: how many of its tokens each test of the other rule masked or reduced. differ: the indices in `RecordedTokens`
    of the tokens that the rules weight differently.
    """

    group: int
    draw: int
    tokens: int
    advantage: float
    kept: float
    own_kept: float
    tests: Mapping[str, int]
    differ: tuple[int, ...]


def compare(tokens: RecordedTokens, found: Replayed) -> list[ResponsePair]:
    """Each response of `tokens` under the run's own rule, as applied in training, and under `found`."""
    pairs = []
    for number, place in enumerate(tokens.responses()):
        kept, own = found.keep[place], tokens.keep[place]
        reasons = Counter(found.reason[place].tolist())
        pairs.append(
            ResponsePair(
                int(tokens.group[number]),
                int(tokens.draw[number]),
                place.stop - place.start,
                float(tokens.advantage[number]),
                _mean(kept),
                _mean(own),
                {test: reasons[at] for at, test in enumerate(found.tests, 1) if reasons[at]},
                tuple((np.nonzero(kept != own)[0] + place.start).tolist()),
            )
        )
    return pairs


def as_values(tokens: RecordedTokens, found: Replayed, pairs: list[ResponsePair]) -> dict[str, Any]:
    """For JSON."""
    texts, place = tokens.texts(), list(tokens.responses())
    return {
        "step": tokens.step,
        "left_out": tokens.left_out,
        "own": {
            "rule": tokens.rule.name,
            "constants": dict(tokens.rule.constants),
            "divergence": own_divergence(tokens.rule),
            "share_kept": _mean(tokens.keep),
        },
        "rule": found.rule,
        "constants": dict(found.constants),
        "divergence": found.divergence,
        "share_kept": _mean(found.keep),
        "responses": [
            {
                **{name: value for name, value in vars(pair).items() if name != "differ"},
                "tests": dict(pair.tests),
                "differ": [
                    {
                        "position": at - place[number].start,
                        "token": int(tokens.token[at]),
                        "text": texts[at],
                        "logp": float(tokens.logp[at]),
                        "rollout_logp": float(tokens.rollout_logp[at]),
                        "divergence": float(found.measured[at]),
                        "keep": float(found.keep[at]),
                        "own_keep": float(tokens.keep[at]),
                        "test": _test(found, at),
                        "own_test": tokens.reason_of(at),
                    }
                    for at in pair.differ
                ],
            }
            for number, pair in enumerate(pairs)
        ],
    }


def as_lines(tokens: RecordedTokens, found: Replayed, pairs: list[ResponsePair]) -> Iterator[str]:
    """The comparison as lines for a terminal."""
    own = tokens.rule.name
    constants = ", ".join(f"{name}={value}" for name, value in found.constants.items())
    yield f"step {tokens.step}: {len(pairs)} training responses, {len(tokens.token)} tokens" + (
        f"; {tokens.left_out} responses were omitted for lack of space" if tokens.left_out else ""
    )
    yield f"{own} kept {_mean(tokens.keep):.2%} of them in training, D_t {own_divergence(tokens.rule)}"
    yield f"{found.rule} keeps {_mean(found.keep):.2%}, D_t {found.divergence}, {printable(constants)}"
    yield ""
    yield f"{'response':>10} {'tokens':>7} {'advantage':>10} {'own':>8} {'other':>8} {'differ':>7}  other's tests"
    for pair in pairs:
        tests = ", ".join(f"{test} {count}" for test, count in pair.tests.items())
        yield (
            f"{f'{pair.group}/{pair.draw}':>10} {pair.tokens:>7} {pair.advantage:>10.3f} {pair.own_kept:>8.2%} "
            f"{pair.kept:>8.2%} {len(pair.differ):>7}  {printable(tests)}"
        )
    yield from _differing(tokens, found, pairs)


def _differing(tokens: RecordedTokens, found: Replayed, pairs: list[ResponsePair]) -> Iterator[str]:
    places = [(pair, at) for pair in pairs for at in pair.differ]
    if not places:
        return
    texts, starts = (
        tokens.texts(),
        {(pair.group, pair.draw): place.start for pair, place in zip(pairs, tokens.responses(), strict=True)},
    )
    yield ""
    yield f"{len(places)} tokens differ" + (
        f", the first {MOST_LINES} of them" if len(places) > MOST_LINES else ""
    )
    for pair, at in places[:MOST_LINES]:
        own, other = tokens.reason_of(at) or "kept", _test(found, at) or "kept"
        yield (
            f"{f'{pair.group}/{pair.draw}':>10} token {at - starts[pair.group, pair.draw]} "
            f"{printable(repr(texts[at]))}: own {printable(own)}, other {printable(other)}; "
            f"log ratio {tokens.logp[at] - tokens.rollout_logp[at]:+.4g}, D_t {found.measured[at]:.4g}"
        )


def _test(found: Replayed, place: int) -> str:
    number = int(found.reason[place])
    return found.tests[number - 1] if number else ""


def _mean(values: Any) -> float:
    return float(np.mean(values, dtype=np.float64)) if len(values) else 1.0
