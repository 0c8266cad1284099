"""Training responses token by token, with the decisions of the rules of the report's runs on the same tokens."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cppo_lab.analysis.answers import RunAnswers
from cppo_lab.analysis.selection import RunScore
from cppo_lab.answers.tokens import RecordedTokens
from cppo_lab.errors import UserError
from cppo_lab.reports.answers.samples import visible
from cppo_lab.reports.escapes import escape_json
from cppo_lab.reports.names import display_name
from cppo_lab.rules import rule_of

if TYPE_CHECKING:
    from cppo_lab.analysis.replay import Replayed  # torch

MOST_BYTES = 3_000_000  # of all responses of a page, as embedded in it
MOST_TOKENS = 20_000  # of one response, from its start; the paper's have at most 16,384
LONGEST_PIECE = 200  # characters of one token
_HALF = float(np.finfo(np.float16).max)


def token_responses(
    runs: Sequence[tuple[RunScore, RunAnswers]], most: int = MOST_BYTES
) -> tuple[list[dict[str, Any]], list[str]]:
    """The responses that fit into `most` bytes of JSON, the first of every run before the second of any; and why the
    decisions of some runs' rules cannot be replayed from their recorded tokens: these have none.
    """
    recorded = [(run, answers.tokens[-1]) for run, answers in runs if answers.tokens]
    reasons = {run.variant: reason for run, tokens in recorded if (reason := _why_not(tokens)) is not None}
    queues = [_responses(run, tokens, recorded) for run, tokens in recorded if run.variant not in reasons]
    shown, used = [], 0
    for response in (response for row in zip_longest(*queues) for response in row if response is not None):
        used += len(escape_json(response)) + 1
        if used > most:
            break
        shown.append(response)
    return shown, list(dict.fromkeys(reasons.values()))


def _why_not(tokens: RecordedTokens) -> str | None:
    try:
        from cppo_lab.analysis.replay import why_not  # torch

        return why_not(rule_of(tokens.rule.name, tokens.rule.path), tokens)
    except ModuleNotFoundError as error:  # the page is complete otherwise
        return f"package {error.name!r} is not installed"
    except UserError as error:  # a rule of a package that is not installed here
        return str(error)


def _responses(
    run: RunScore, tokens: RecordedTokens, recorded: Sequence[tuple[RunScore, RecordedTokens]]
) -> Iterator[dict[str, Any]]:
    """The responses of a run as JSON, with numbers in half precision (three digits): T tokens (the first ones of a
    longer one) with log mu, log pi, D_t, and the rules of all runs on the same model on them.
    """
    from cppo_lab.analysis.replay import FROM_SAMPLED, own_divergence, replay  # torch

    replayed = [(display_name(run.variant), True, replay(tokens))]
    others = {
        display_name(other.variant): theirs.rule
        for other, theirs in recorded
        if other.model == run.model and other.variant != run.variant
    }
    for title, rule in others.items():
        divergence = own_divergence(rule)
        # What cannot be computed from recorded tokens is replaced by what the run measured.
        same = divergence == own_divergence(tokens.rule) or divergence not in FROM_SAMPLED
        with suppress(UserError):  # a rule that cannot be replayed from a file is not offered
            result = replay(
                tokens, rule.name, rule.constants, path=rule.path, divergence=None if same else divergence
            )
            replayed.append((title, False, result))
    texts = tokens.texts()
    for number, whole in enumerate(tokens.responses()):
        cut = slice(whole.start, min(whole.stop, whole.start + MOST_TOKENS))
        yield {
            "model": run.model,
            "method": display_name(run.variant),
            "seed": run.seed,
            "step": tokens.step,
            "group": int(tokens.group[number]),
            "draw": int(tokens.draw[number]),
            "advantage": float(f"{tokens.advantage[number]:.4g}"),
            "reward": float(f"{tokens.reward[number]:.4g}"),
            "length": whole.stop - whole.start,
            "pieces": [visible(text[:LONGEST_PIECE]) for text in texts[cut]],
            "mu": _packed(tokens.rollout_logp[cut]),
            "ratio": _packed(tokens.logp[cut] - tokens.rollout_logp[cut]),
            "d": _packed(tokens.divergence[cut]),
            "rules": [_trace(title, own, result, cut) for title, own, result in replayed],
        }


def _trace(title: str, own: bool, replayed: "Replayed", cut: slice) -> dict[str, Any]:
    """One rule on the tokens of a response, for JSON. `own`: the run was trained with it. `reason`: 0, or 1 + the index
    in `tests` of the test that masked or reduced the token. `soft`: the weights, if a token is kept in part; w_t,
    S_{t-1} and c_t of rules with a prefix budget.
    """
    keep = replayed.keep[cut]
    parts = {"soft": replayed.keep if np.any((keep > 0) & (keep < 1)) else None}
    parts |= {"w": replayed.weight, "s": replayed.prefix_sum, "c": replayed.limit}
    return {
        "name": title,
        "own": own,
        "d": replayed.divergence,
        "tests": [visible(test) for test in replayed.tests],
        "reason": b64encode(replayed.reason[cut].tobytes()).decode(),
        **{key: _packed(values[cut]) for key, values in parts.items() if values is not None},
    }


def _packed(values: NDArray[np.float32]) -> str:
    """Half-precision floats, little-endian, in base64; larger values are clipped to the largest finite one."""
    return b64encode(np.clip(values, -_HALF, _HALF).astype("<f2").tobytes()).decode()
