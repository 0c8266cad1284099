"""The content of the page's section on answers, as one JSON object of bounded size."""

from collections.abc import Mapping
from typing import Any

from cppo_lab.analysis.answers import RunAnswers, read_answers
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore
from cppo_lab.answers.texts import VALIDATION
from cppo_lab.reports.answers.problem_map import problem_maps
from cppo_lab.reports.answers.samples import shown_samples
from cppo_lab.reports.answers.token_traces import token_responses
from cppo_lab.reports.escapes import escape_json
from cppo_lab.reports.names import OURS, display_name

TEXT_STEPS, TOKEN_STEPS = 8, 1  # validated steps of each shown run
MOST_BYTES = 6_000_000  # that this section adds to a page; above the sum of its parts' limits


def shown_runs(board: Scoreboard) -> tuple[RunScore, ...]:
    """The runs whose texts and tokens the page shows: the first run with outcomes of each cell."""
    shown: list[RunScore] = []
    for pair in board.cells:
        shown += [run for run in board.runs_of(*pair) if run.mlflow_id in board.data.outcomes][:1]
    return tuple(shown)


def kept_answers(uri: str, board: Scoreboard) -> Mapping[str, RunAnswers]:
    """MLflow run -> the texts and tokens of `shown_runs`, from the store; and if these recorded the answers to all
    problems at their last validation, the last texts of the other runs, for maj@k.

    Raises UserError as `read_answers`.
    """
    ids = [run.mlflow_id for run in shown_runs(board) if run.mlflow_id is not None]
    if not ids:
        return {}
    shown, outcomes = read_answers(uri, ids, TEXT_STEPS, TOKEN_STEPS), board.data.outcomes
    for mlflow_id, answers in shown.items():
        last = answers.texts[-1].samples if answers.texts else ()
        if not {*outcomes[mlflow_id].problems} <= {each.problem for each in last if each.kind == VALIDATION}:
            return shown
    others = [mlflow_id for mlflow_id in outcomes if mlflow_id not in ids]
    return {**shown, **read_answers(uri, others, 1, 0)}


def answers_view(board: Scoreboard, answers: Mapping[str, RunAnswers]) -> dict[str, Any] | None:
    """What the section shows; None if no run of the board recorded answers. `answers`: those of `shown_runs`.

    `content`: JSON that is safe inside a <script> element. `maps`, `texts` and `tokens`: whether these parts exist;
    `not_replayed`: why some methods have no token decisions.
    """
    ids = [(run, run.mlflow_id or "") for run in shown_runs(board)]
    runs = [(run, answers[mlflow_id]) for run, mlflow_id in ids if mlflow_id in answers]
    maps, samples = problem_maps(board), shown_samples(runs)
    tokens, reasons = token_responses(runs)
    parts = {"maps": bool(maps), "texts": bool(samples["samples"]), "tokens": bool(tokens)}
    if not any(parts.values()):
        return None
    # The decisions of our rule are shown first.
    content = {"maps": maps, "texts": samples, "tokens": tokens, "ours": display_name(OURS)}
    return {"content": escape_json(content), **parts, "not_replayed": reasons}
