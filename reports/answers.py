"""The page's section on answers, as a JSON object of bounded size: heat maps of each problem's share of right answers
at every validation, the texts that runs kept, and training responses token by token with the decisions of the rules of
the report's runs on the same tokens.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import permutations, product, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cppo_lab.analysis.reader import RunAnswers, evenly_spaced, read_answers
from cppo_lab.analysis.scoring import RunScore, Scoreboard
from cppo_lab.analysis.statistics.problems import solved_by_one
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.answers.texts import TRAINING, VALIDATION, Sample
from cppo_lab.answers.tokens import RecordedTokens
from cppo_lab.errors import UserError
from cppo_lab.reports.names import OURS, display_name, escape_json
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.rules import trusted_path

if TYPE_CHECKING:
    from cppo_lab.analysis.replay import Replayed  # torch

_TEXT_STEPS, _TOKEN_STEPS = 8, 1  # validated steps of each shown run


def kept_answers(uri: str, board: Scoreboard) -> Mapping[str, RunAnswers]:
    """MLflow run -> the texts and tokens of `shown_runs`, from the store; and if these recorded the answers to all
    problems at their last validation, the last texts of the other runs, for maj@k.

    Raises UserError as `read_answers`.
    """
    ids = [run.mlflow_id for run in shown_runs(board) if run.mlflow_id]
    if not ids:
        return {}
    shown, outcomes = read_answers(uri, ids, _TEXT_STEPS, _TOKEN_STEPS), board.data.outcomes
    for mlflow_id, answers in shown.items():
        last = answers.texts[-1].samples if answers.texts else ()
        if not {*outcomes[mlflow_id].problems} <= {
            sample.problem for sample in last if sample.kind == VALIDATION
        }:
            return shown
    others = [mlflow_id for mlflow_id in outcomes if mlflow_id not in ids]
    return {**shown, **read_answers(uri, others, 1, 0)}


def shown_runs(board: Scoreboard) -> tuple[RunScore, ...]:
    """The runs whose texts and tokens the page shows: the first run with outcomes of each cell."""
    shown: list[RunScore] = []
    for pair in board.cells:
        shown += [run for run in board.runs_of(*pair) if run.mlflow_id in board.data.outcomes][:1]
    return tuple(shown)


def answers_section(scored: Scored) -> Section | None:
    """Problems, texts and tokens; None if no run kept any."""
    view = answers_view(scored.board, scored.answers)
    return None if view is None else Section("answers", "Answers", view, "problems, texts, tokens")


def answers_view(board: Scoreboard, answers: Mapping[str, RunAnswers]) -> dict[str, Any] | None:
    """What the section shows; None if no run of the board recorded answers. `answers`: those of `shown_runs`.

    `content`: JSON that is safe inside a <script> element. `maps`, `texts` and `tokens`: whether these parts exist;
    `not_replayed`: why some methods have no token decisions.
    """
    runs = [(run, answers[run.mlflow_id]) for run in shown_runs(board) if run.mlflow_id in answers]
    maps, samples = problem_maps(board), _shown_samples(runs)
    tokens, reasons = _token_responses(runs)
    parts = {"maps": bool(maps), "texts": bool(samples["samples"]), "tokens": bool(tokens)}
    if not any(parts.values()):
        return None
    # The decisions of our rule are shown first.
    content = {"maps": maps, "texts": samples, "tokens": tokens, "ours": display_name(OURS)}
    return {"content": escape_json(content), **parts, "not_replayed": reasons}


MOST_CELLS = 250_000  # of all maps of a page: 90 problems x 112 validations x 7 methods are 70,560
_MOST_PROBLEMS = 1000  # per model; from more, a subset evenly spaced over difficulty
_MOST_ALONE = 200  # problems of an ordered pair of methods
FULL, NOT_SEEN = 60_000, 2**16 - 1  # values of a cell: all answers right; not validated


def problem_maps(board: Scoreboard) -> list[dict[str, Any]]:
    """One map for each model with runs that recorded outcomes, as JSON, with at most MOST_CELLS cells in total.

    A map has P problems from easy to hard (by the mean share over all methods and validations) and V validations.
    `cells` of a method: a [V, P] array in base64, the mean share over its runs times FULL, NOT_SEEN where no run was
    validated. `alone`: method, other method, and the problems that a run of the first solved and no run of the other
    ever answered right.
    """
    by_model: dict[str, dict[str, list[Outcomes]]] = {}
    for model, variant in product(board.models, board.variants):
        for run in board.runs_of(model, variant):
            outcomes = board.data.outcomes.get(run.mlflow_id)
            if outcomes is not None and len(outcomes.steps):
                methods = by_model.setdefault(model, {})
                first = next(iter(methods.values()), [outcomes])[0]
                # Those with the same problems and number of answers as the first run.
                if (outcomes.problems, outcomes.samples) == (first.problems, first.samples):
                    methods.setdefault(variant, []).append(outcomes)
    most = MOST_CELLS // max(1, len(by_model))
    return [_map(model, methods, most) for model, methods in by_model.items()]


def _map(model: str, methods: dict[str, list[Outcomes]], most: int) -> dict[str, Any]:
    first = next(iter(methods.values()))[0]
    steps = sorted({int(step) for runs in methods.values() for run in runs for step in run.steps})
    shares = {}  # [V, P] of each method: the mean over its runs that were validated at a step; NaN where none was
    for name, runs in methods.items():
        of_runs = pd.concat([pd.DataFrame(run.right / run.samples, run.steps) for run in runs])
        shares[name] = of_runs.groupby(level=0).mean().reindex(steps)
    difficulty = pd.concat(shares).mean()
    order = sorted(range(len(first.problems)), key=lambda place: (-difficulty[place], first.problems[place]))
    order = evenly_spaced(order, min(_MOST_PROBLEMS, max(2, most // (2 * len(methods)))))
    rows = evenly_spaced(range(len(steps)), max(2, most // (len(order) * len(methods))))
    places = {place: number for number, place in enumerate(order)}
    ever = {name: np.concatenate([run.right for run in runs]) for name, runs in methods.items()}
    alone = []
    for (i, ours), (j, theirs) in permutations(enumerate(methods), 2):
        solved = solved_by_one(ever[ours], ever[theirs], first.samples)
        if shown := sorted(places[place] for place in solved if place in places):
            alone.append([i, j, shown[:_MOST_ALONE]])
    shown_methods = []
    for name, runs in methods.items():
        cells = (shares[name].iloc[rows, order] * FULL).round().fillna(NOT_SEEN)
        text = b64encode(cells.to_numpy().astype("<u2").tobytes()).decode()
        shown_methods.append({"name": display_name(name), "runs": len(runs), "cells": text})
    return {
        "model": model,
        "k": first.samples,
        "steps": [steps[row] for row in rows],
        "problems": [first.problems[place] for place in order],
        "left": len(first.problems) - len(order),
        "methods": shown_methods,
        "alone": alone,
    }


MOST_SAMPLE_BYTES = 2_000_000  # of all texts of a page, as embedded in it
_LONGEST = 6_000  # characters of a prompt or response
_LONGEST_NAME = 200  # characters of an answer, an id or a stop reason


def _shown_samples(runs: Sequence[tuple[RunScore, RunAnswers]]) -> dict[str, Any]:
    """The samples of these runs that fit into MOST_SAMPLE_BYTES, as JSON; `left` counts the others. Each run's first
    answer to each problem at each step comes first, then its training groups, then further answers; later steps come
    first.
    """
    rows = [
        (number, sample)
        for number, (_, answers) in enumerate(runs)
        for texts in answers.texts
        for sample in texts.samples
    ]

    def order(row: tuple[int, Sample]) -> tuple[int, ...]:
        number, sample = row
        rank = 1 if sample.kind == TRAINING else 0 if sample.draw == 0 else 2
        return rank, -sample.step, number, sample.group or 0, sample.draw

    prompts: dict[str, int] = {}
    shown, used = [], 0
    for number, sample in sorted(rows, key=order):
        run, prompt = runs[number][0], shortened(sample.prompt, _LONGEST)
        named = {"answer": sample.answer, "truth": sample.truth}
        entry: dict[str, Any] = {
            "model": run.model,
            "method": display_name(run.variant),
            "seed": run.seed,
            "step": sample.step,
            "problem": visible(sample.problem[:_LONGEST_NAME]),
            "draw": sample.draw,
            "prompt": prompts.get(prompt, len(prompts)),
            "text": shortened(sample.response, _LONGEST),
            "right": sample.right,
            "length": sample.length,
            "stop": visible(sample.stop[:_LONGEST_NAME]),
            **{key: visible(text[:_LONGEST_NAME]) for key, text in named.items() if text is not None},
        }
        if sample.kind == TRAINING:
            entry["group"] = sample.group
            for key, value in (("reward", sample.reward), ("advantage", sample.advantage)):
                entry[key] = None if value is None else float(f"{value:.4g}")
        new = [entry] if prompt in prompts else [entry, prompt]
        used += sum(len(escape_json(part)) + 1 for part in new)
        if used > MOST_SAMPLE_BYTES:
            break
        prompts.setdefault(prompt, len(prompts))
        shown.append(entry)
    return {"prompts": list(prompts), "samples": shown, "left": len(rows) - len(shown)}


# Control characters except newline and tab; bidirectional controls and zero-width characters; lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def shortened(text: str, most: int) -> str:
    """`visible` text of about `most` characters at most; the middle of a longer text is replaced by a note."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters are left out …]\n{text[-half:]}"
    return visible(text)


def visible(text: str) -> str:
    """The text with every control character written out, such as ⟨U+202E⟩, so that none takes effect on the page."""
    return _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


MOST_TOKEN_BYTES = 3_000_000  # of all responses of a page, as embedded in it
_MOST_TOKENS = 20_000  # of a response, from its start; the paper's have at most 16,384
_LONGEST_PIECE = 200  # characters of a token
_HALF = float(np.finfo(np.float16).max)


def _token_responses(
    runs: Sequence[tuple[RunScore, RunAnswers]],
) -> tuple[list[dict[str, Any]], list[str]]:
    """The responses that fit into MOST_TOKEN_BYTES of JSON, the first of every run before the second of any; and why
    the decisions of some runs' rules cannot be replayed from their recorded tokens: these have none.
    """
    recorded = [(run, answers.tokens[-1]) for run, answers in runs if answers.tokens]
    reasons, queues, shown, used = dict[str, None](), [], [], 0
    for run, tokens in recorded:
        try:
            from cppo_lab.analysis.replay import replay  # torch

            queues.append(_responses(run, tokens, replay(tokens), recorded))
        except ModuleNotFoundError as error:  # the page is complete otherwise
            reasons[f"package {error.name!r} is not installed"] = None
        except UserError as error:  # also of a package that is not installed here
            reasons[str(error)] = None
    for response in (response for row in zip_longest(*queues) for response in row if response is not None):
        used += len(escape_json(response)) + 1
        if used > MOST_TOKEN_BYTES:
            break
        shown.append(response)
    return shown, list(reasons)


def _responses(
    run: RunScore,
    tokens: RecordedTokens,
    own_replay: "Replayed",
    recorded: Sequence[tuple[RunScore, RecordedTokens]],
) -> Iterator[dict[str, Any]]:
    """The responses of a run as JSON, with numbers in half precision (three digits): T tokens (the first of a longer
    response) with log mu, log pi, D_t, and the rules of all runs on the same model on them.

    Of a rule, `own`: the run was trained with it. `reason`: 0, or 1 + the index in `tests` of the test that masked or
    reduced the token. `soft`: the weights, if a token is kept in part; w_t, S_{t-1} and c_t of rules with a prefix
    budget.
    """
    from cppo_lab.analysis.replay import FROM_SAMPLED, own_divergence, replay  # torch

    replayed = [(display_name(run.variant), own_replay)]
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
            path = trusted_path(rule.name, rule.path)
            result = replay(
                tokens, rule.name, rule.constants, path=path, divergence=None if same else divergence
            )
            replayed.append((title, result))
    texts = tokens.texts()
    for number, whole in enumerate(tokens.responses()):
        cut = slice(whole.start, min(whole.stop, whole.start + _MOST_TOKENS))
        rules = []
        for title, result in replayed:
            keep = result.keep[cut]
            parts = {"soft": result.keep if np.any((keep > 0) & (keep < 1)) else None}
            parts |= {"w": result.weight, "s": result.prefix_sum, "c": result.limit}
            rules.append(
                {
                    "name": title,
                    "own": result is own_replay,
                    "d": result.divergence,
                    "tests": [visible(test) for test in result.tests],
                    "reason": b64encode(result.reason[cut].tobytes()).decode(),
                    **{key: _packed(values[cut]) for key, values in parts.items() if values is not None},
                }
            )
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
            "pieces": [visible(text[:_LONGEST_PIECE]) for text in texts[cut]],
            "mu": _packed(tokens.rollout_logp[cut]),
            "ratio": _packed(tokens.logp[cut] - tokens.rollout_logp[cut]),
            "d": _packed(tokens.divergence[cut]),
            "rules": rules,
        }


def _packed(values: NDArray[np.float32]) -> str:
    """Half-precision floats, little-endian, in base64; larger values are clipped to the largest finite value."""
    return b64encode(np.clip(values, -_HALF, _HALF).astype("<f2").tobytes()).decode()
