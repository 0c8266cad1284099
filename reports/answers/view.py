"""The content of the page's section on answers, as one JSON object of bounded size."""

from collections.abc import Mapping, Sequence
from typing import Any

from cppo_lab.analysis.answers import RunAnswers, read_answers
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore
from cppo_lab.answers.texts import VALIDATION
from cppo_lab.reports.answers import samples as texts
from cppo_lab.reports.answers import token_traces
from cppo_lab.reports.answers.problem_map import problem_maps
from cppo_lab.reports.answers.samples import shown_samples
from cppo_lab.reports.answers.token_traces import not_replayed, token_responses
from cppo_lab.reports.escapes import escape_json
from cppo_lab.reports.names import OURS, display_name

TEXT_STEPS, TOKEN_STEPS = 8, 1  # validated steps of each shown run
MOST_BYTES = 6_000_000  # that this section adds to a page; above the sum of its parts' limits


def shown_runs(board: Scoreboard) -> tuple[RunScore, ...]:
    """The runs whose texts and tokens the page shows: the first run with outcomes of each cell."""
    found = []
    for pair in board.cells:
        own = [run for run in board.runs_of(*pair) if run.mlflow_id in board.data.outcomes]
        found += own[:1]
    return tuple(found)


def kept_answers(uri: str, board: Scoreboard) -> Mapping[str, RunAnswers]:
    """The texts and tokens of `shown_runs`, from the store. Raises UserError as `read_answers`."""
    ids = [run.mlflow_id for run in shown_runs(board) if run.mlflow_id is not None]
    if not ids:
        return {}
    shown = read_answers(uri, ids, TEXT_STEPS, TOKEN_STEPS)
    if not all(_complete(board, mlflow_id, own) for mlflow_id, own in shown.items()):
        return shown
    others = [mlflow_id for mlflow_id in board.data.outcomes if mlflow_id not in ids]
    return {**shown, **read_answers(uri, others, 1, 0)}  # for maj@k, over all runs


def _complete(board: Scoreboard, mlflow_id: str, answers: RunAnswers) -> bool:
    """Whether the answers to all problems were recorded at the last validation."""
    last = answers.texts[-1].samples if answers.texts else ()
    kept = {sample.problem for sample in last if sample.kind == VALIDATION}
    return set(board.data.outcomes[mlflow_id].problems) <= kept


def answers_view(board: Scoreboard, answers: Mapping[str, RunAnswers]) -> dict[str, Any] | None:
    """What the section shows; None if no run of the board recorded answers. `answers`: those of `shown_runs`.

    `content`: JSON that is safe inside a <script> element. `maps`, `texts` and `tokens`: whether these parts exist;
    `not_replayed`: why some methods have no token decisions.
    """
    runs = [(run, own) for run in shown_runs(board) if (own := answers.get(run.mlflow_id or "")) is not None]
    maps = problem_maps(board)
    samples = shown_samples(runs, texts.MOST_BYTES)
    tokens, reasons = _tokens(runs)
    if not (maps or samples.samples or tokens):
        return None
    content: dict[str, Any] = {
        "maps": [one.plain() for one in maps],
        "texts": samples.plain(),
        "tokens": tokens,
        "ours": display_name(OURS),  # its decisions are shown first
    }
    parts = {"maps": bool(maps), "texts": bool(samples.samples), "tokens": bool(tokens)}
    return {"content": escape_json(content), **parts, "not_replayed": reasons}


def _tokens(runs: Sequence[tuple[RunScore, RunAnswers]]) -> tuple[list[Any], list[str]]:
    """The responses with their decisions, as JSON values, and why some methods have none."""
    if not any(own.tokens for _, own in runs):
        return [], []
    responses = [one.plain() for one in token_responses(runs, token_traces.MOST_BYTES)]
    return responses, list(dict.fromkeys(not_replayed(runs).values()))
