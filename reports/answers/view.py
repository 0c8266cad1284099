"""Everything that the page's part on answers shows, as one JSON object of bounded size."""

from collections.abc import Mapping
from dataclasses import dataclass
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

TEXT_STEPS, TOKEN_STEPS = 8, 1  # of each shown run: how many validated steps
MOST_BYTES = 6_000_000  # that this part adds to a page; the sum of its parts' bounds is below it


@dataclass(frozen=True)
class AnswersView:
    """`content`: JSON that can be inside a <script> element. `maps`, `texts` and `tokens` say which parts there are,
    `not_replayed` why some methods have no decisions on tokens.
    """

    content: str
    maps: bool
    texts: bool
    tokens: bool
    not_replayed: tuple[str, ...]


def shown_runs(board: Scoreboard) -> tuple[RunScore, ...]:
    """The runs whose texts and tokens the page has: of each cell the first with outcomes."""
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
    """Whether answers to all problems are kept at the last validation."""
    last = answers.texts[-1].samples if answers.texts else ()
    kept = {sample.problem for sample in last if sample.kind == VALIDATION}
    return set(board.data.outcomes[mlflow_id].problems) <= kept


def answers_view(board: Scoreboard, answers: Mapping[str, RunAnswers]) -> AnswersView | None:
    """The part of the page; None where no run of the board kept any answers. `answers`: of `shown_runs`."""
    runs = [(run, own) for run in shown_runs(board) if (own := answers.get(run.mlflow_id or "")) is not None]
    maps = problem_maps(board)
    samples = shown_samples(runs, texts.MOST_BYTES)
    responses = token_responses(runs, token_traces.MOST_BYTES)
    if not (maps or samples.samples or responses):
        return None
    content: dict[str, Any] = {
        "maps": [one.plain() for one in maps],
        "texts": samples.plain(),
        "tokens": [one.plain() for one in responses],
        "ours": display_name(OURS),  # its decisions are shown first
    }
    reasons = tuple(dict.fromkeys(not_replayed(runs).values()))
    return AnswersView(escape_json(content), bool(maps), bool(samples.samples), bool(responses), reasons)
