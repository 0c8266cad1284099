"""Replays another rule on a run's recorded tokens: which tokens it drops, and by which test, without training.

A rule decides by log mu, log pi, A and D_t of a response's tokens, all of which are in the file. Three inputs are not,
and replays that need them are refused: the rest of the minibatch (for rules that decide about a whole minibatch), the
order in which training shuffled position weights (unless the run's rule did), and D_t on a different partition of
the vocabulary, since log-probabilities are recorded only for sampled tokens. The divergences FROM_SAMPLED can always be
computed.
"""

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cppo_lab.answers.tokens import RecordedTokens, RuleUsed
from cppo_lab.errors import UserError, counted, printable, unknown
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.masks import budget_terms, decisions
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import DRIFT, ENTROPY, KL, MINIBATCH, PERMUTATION, Rule, rule_of, trusted_path

FROM_SAMPLED = ("binary_tv", "binary_kl", "sample_k2", "sample_k3")
_OF_BUDGET = ("delta", "delta_b", "w_min", "delta_b_mode")
_NUMBERS = (float, int, float | None, int | None)


@dataclass(frozen=True, eq=False)
class Replayed:
    """A rule on kept tokens; arrays [N] as in `RecordedTokens`.

    divergence: the D_t that it was given, such as `topk_tv`; `measured` are its values.
    keep, tests, reason: as in `RecordedTokens`.
    weight, prefix_sum, limit: w_t, S_{t-1} and c_t of CPPO's tests, which drop a token if w_t D_t > c_t and it moves
        away from mu; None for other rules.
    """

    rule: str
    constants: Mapping[str, Any]
    divergence: str
    measured: NDArray[np.float32]
    tests: tuple[str, ...]
    keep: NDArray[np.float32]
    reason: NDArray[np.uint8]
    weight: NDArray[np.float32] | None = None
    prefix_sum: NDArray[np.float32] | None = None
    limit: NDArray[np.float32] | None = None


def own_divergence(rule: RuleUsed) -> str:
    """The name of the D_t in the file."""
    return f"{rule.estimator}_{rule.measure}"


def replay(
    tokens: RecordedTokens,
    rule: str | None = None,
    constants: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    divergence: str | None = None,
) -> Replayed:
    """Apply `rule` with `constants` to recorded tokens; by default the run's rule, as in training.

    Args:
        rule, path: as in a run's configuration.
        constants: the keyword arguments of the rule's function; None: the run's.
        divergence: the run's D_t (`own_divergence`) or one of FROM_SAMPLED; None: the run's, but for rules with
            limits on a KL divergence `binary_kl` where the run measured a TV.

    Raises UserError for an unknown rule or divergence, for a rule that cannot be replayed from a file, and for
    constants that do not fit the rule.
    """
    if rule is None:
        rule, constants = tokens.rule.name, constants or tokens.rule.constants
        path = trusted_path(rule, tokens.rule.path)
    record = rule_of(rule, path)
    given = dict(tokens.rule.constants if constants is None else constants)
    if (reason := why_not(record, tokens)) is not None:
        raise UserError(reason)
    kl_of_tv = KL in record.needs and tokens.rule.measure == "tv"
    name = divergence or ("binary_kl" if kl_of_tv else own_divergence(tokens.rule))
    record.check(given, name.rpartition("_")[2])
    takes = inspect.signature(record.apply).parameters
    for key, value in given.items():
        # A function would take any text for switched on.
        kind = takes[key].annotation
        if kind is bool and isinstance(value, str):
            raise UserError(f"{key}={value!r}: rule {record.name!r} takes true or false")
        if kind in _NUMBERS and isinstance(value, str | bool):
            raise UserError(f"{key}={value!r}: rule {record.name!r} takes a number")
    budget = {**given, **record.fixed}
    try:
        batch = _batch(tokens, name, PERMUTATION in record.needs)
        output = record.apply(batch, **given)
        has_budget = all(name in budget for name in _OF_BUDGET)
        terms = budget_terms(batch, budget) if has_budget else ()
    except (ValueError, TypeError) as error:  # TypeError: text in place of a number
        raise UserError(f"rule {rule!r} cannot be replayed with {given}: {error}") from None
    decision = decisions(output, batch.valid)
    measured, *of_budget = (
        values[batch.valid].numpy().astype(np.float32) for values in (batch.required_divergence, *terms)
    )
    return Replayed(
        rule,
        given,
        name,
        measured,
        decision.tests,
        decision.keep.numpy().astype(np.float32),
        decision.reason.numpy(),
        *of_budget,
    )


def why_not(record: Rule, tokens: RecordedTokens) -> str | None:
    """Why a rule cannot be replayed on these tokens; None if it can."""
    if MINIBATCH in record.needs:
        return (
            f"rule {record.name!r} decides over a whole minibatch, and the file has only some of its responses: it "
            "cannot be replayed"
        )
    if not record.needs.isdisjoint({DRIFT, ENTROPY}):
        return (
            f"rule {record.name!r} needs the probabilities of tokens that were not sampled, which the file does not "
            "have: it cannot be replayed"
        )
    if PERMUTATION in record.needs and not len(tokens.order):
        return (
            f"rule {record.name!r} shuffles its weights by an order that is drawn in training, and the run's rule "
            f"{tokens.rule.name!r} drew none: it cannot be replayed"
        )
    return None


def _batch(tokens: RecordedTokens, name: str, shuffles: bool) -> Tokens:
    """The argument of a rule, [R, T] with T the longest response; float32, as in training.

    Raises UserError for a divergence that cannot be computed from the file.
    """
    of_run = own_divergence(tokens.rule)
    if name not in (*FROM_SAMPLED, of_run):
        raise unknown("divergence of kept tokens", name, {*FROM_SAMPLED, of_run})
    lengths = torch.from_numpy(np.diff(tokens.ends, prepend=0).astype(np.int64))
    packed = {
        "logp": tokens.logp,
        "rollout_logp": tokens.rollout_logp,
        "advantages": np.repeat(tokens.advantage.astype(np.float32), lengths.numpy()),
        **({"permutation": tokens.order} if shuffles else {}),
        **({"divergence": tokens.divergence} if name == of_run else {}),
    }
    # Copies, since a file's arrays are read-only.
    values = {
        key: torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")))
        for key, value in packed.items()
    }
    if name != of_run:
        measure = name.rpartition("_")[2]
        estimate = divergences.ESTIMATES.get(measure, partial(divergences.binary, measure=measure))
        values["divergence"] = estimate(values["logp"], values["rollout_logp"])
    return Tokens.packed(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), **values)


# The comparison of two rules on the same tokens: the run's rule and another.


def comparison(tokens: RecordedTokens, replayed: Replayed) -> dict[str, Any]:
    """What the run's rule kept in training (`own`), and what `replayed` keeps, of each response; for JSON.

    `kept`, `own_kept`: the mean of `keep` over a response's tokens, 1 for none. `tests`: how many of its tokens each
    test of the other rule masked or reduced. `differ`: the tokens that the rules weight differently.
    """
    texts, responses = tokens.texts(), []
    for number, place in enumerate(tokens.responses()):
        kept, trained = replayed.keep[place], tokens.keep[place]
        reasons = Counter(replayed.reason[place].tolist())
        responses.append(
            {
                "group": int(tokens.group[number]),
                "draw": int(tokens.draw[number]),
                "tokens": len(kept),
                "advantage": float(tokens.advantage[number]),
                "kept": _mean(kept),
                "own_kept": _mean(trained),
                "tests": {test: reasons[at] for at, test in enumerate(replayed.tests, 1) if reasons[at]},
                "differ": [
                    {
                        "position": at - place.start,
                        "token": int(tokens.token[at]),
                        "text": texts[at],
                        "logp": float(tokens.logp[at]),
                        "rollout_logp": float(tokens.rollout_logp[at]),
                        "divergence": float(replayed.measured[at]),
                        "keep": float(replayed.keep[at]),
                        "own_keep": float(tokens.keep[at]),
                        "test": ("", *replayed.tests)[replayed.reason[at]],
                        "own_test": tokens.reason_of(at),
                    }
                    for at in (np.flatnonzero(kept != trained) + place.start).tolist()
                ],
            }
        )
    return {
        "step": tokens.step,
        "left_out": tokens.left_out,
        "own": {
            "rule": tokens.rule.name,
            "constants": dict(tokens.rule.constants),
            "divergence": own_divergence(tokens.rule),
            "share_kept": _mean(tokens.keep),
        },
        "rule": replayed.rule,
        "constants": dict(replayed.constants),
        "divergence": replayed.divergence,
        "share_kept": _mean(replayed.keep),
        "responses": responses,
    }


_MOST_LINES = 20  # of differing tokens


def as_lines(compared: Mapping[str, Any]) -> Iterator[str]:
    """A `comparison` as lines for a terminal."""
    of_run, responses = compared["own"], compared["responses"]
    count = sum(response["tokens"] for response in responses)
    yield f"step {compared['step']}: {len(responses)} training responses, {count} tokens" + (
        f"; {compared['left_out']} responses were omitted for lack of space" if compared["left_out"] else ""
    )
    yield (
        f"{printable(of_run['rule'])} kept {of_run['share_kept']:.2%} of them in training, "
        f"D_t {printable(of_run['divergence'])}"
    )
    constants = ", ".join(f"{name}={value}" for name, value in compared["constants"].items())
    yield (
        f"{printable(compared['rule'])} keeps {compared['share_kept']:.2%}, D_t {printable(compared['divergence'])}, "
        f"{printable(constants)}"
    )
    yield ""
    yield f"{'response':>10} {'tokens':>7} {'advantage':>10} {'own':>8} {'other':>8} {'differ':>7}  other's tests"
    differing = []
    for response in responses:
        name = f"{response['group']}/{response['draw']}"
        tests = ", ".join(f"{test} {count}" for test, count in response["tests"].items())
        yield (
            f"{name:>10} {response['tokens']:>7} {response['advantage']:>10.3f} {response['own_kept']:>8.2%} "
            f"{response['kept']:>8.2%} {len(response['differ']):>7}  {printable(tests)}"
        )
        differing += [(name, token) for token in response["differ"]]
    if not differing:
        return
    yield ""
    yield counted(len(differing), "differing token") + (
        f", the first {_MOST_LINES} of them" if len(differing) > _MOST_LINES else ""
    )
    for name, token in differing[:_MOST_LINES]:
        yield (
            f"{name:>10} token {token['position']} {printable(repr(token['text']))}: "
            f"own {printable(token['own_test'] or 'kept')}, other {printable(token['test'] or 'kept')}; "
            f"log ratio {token['logp'] - token['rollout_logp']:+.4g}, D_t {token['divergence']:.4g}"
        )


def _mean(values: NDArray[np.float32]) -> float:
    return float(np.mean(values, dtype=np.float64)) if len(values) else 1.0
