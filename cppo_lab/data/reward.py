"""The reward function of runs on mathematics, in verl's protocol of custom reward functions.

In verl's config: `reward.custom_reward_function.path=pkg://cppo_lab.data.reward`, `.name=compute_score`, and the
keyword arguments of ours under `.reward_kwargs`.
"""

from typing import Any

from cppo_lab.data.grading import LIMIT_SECONDS, WORKERS, grade


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: dict[str, Any] | None = None,
    *,
    limit_seconds: float = LIMIT_SECONDS,
    workers: int = WORKERS,
    **_: Any,
) -> dict[str, float]:
    """Reward one response.

    Args:
        data_source, extra_info: the row's own; the grade does not depend on them.
        solution_str: the response, without special tokens.
        ground_truth: the true answer.
        limit_seconds, workers: see `grading.grade`.

    Returns:
        `score`, the reward; `acc`, the same, by the name under which verl validates; `answer_rule`, `marked_answer`,
        `grade_timeout`, `grade_error`: see `grading.Grade`. verl averages all of them.
    """
    result = grade(solution_str, str(ground_truth), limit_seconds, workers)
    # PAPER: the reward's values are not given. Its reward curves lie between 0 and 0.85 and start near 0, which rewards
    # of 0 and 1 give; DAPO's code has -1 and 1. Group-normalised advantages are the same for both.
    return {
        "score": result.right,
        "acc": result.right,
        "answer_rule": result.answer_rule,
        "marked_answer": result.marked,
        "grade_timeout": result.timeout,
        "grade_error": result.error,
    }
