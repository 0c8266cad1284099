"""One row per prompt."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cppo_lab.data.problem import Problem, problem_of
from cppo_lab.data.read import rows_of
from cppo_lab.errors import UserError

REPORT_EVERY = 250_000  # rows


@dataclass
class Distinct:
    """The problems of a file, each once, in the order of their first rows, and what was left out."""

    problems: list[Problem] = field(default_factory=list)
    rows_read: int = 0
    duplicates: int = 0
    # Prompts with more than one answer: id of the first row, and the answers.
    conflicts: list[tuple[str, list[str]]] = field(default_factory=list)


def distinct_problems(path: Path, benchmark: str | None, say: Callable[[str], None]) -> Distinct:
    """Read a file and keep one row per prompt.

    DAPO-Math-17k holds every prompt a hundred times, and AIME-2024 32 times. A few of DAPO's prompts come with two
    different answers (seven, by a count on the hub). Which one is right can't be known, and a wrong answer pays
    for wrong responses: such a prompt is left out of the training set and listed. In a benchmark it is an error,
    for there the set of problems is fixed.

    Raises:
        UserError: a row cannot be used, or a benchmark has a prompt with two answers.
    """
    result = Distinct()
    first: dict[str, Problem] = {}
    answers: dict[str, list[str]] = {}
    for where, row in rows_of(path):
        problem = problem_of(row, where, benchmark, len(first))
        result.rows_read += 1
        if result.rows_read % REPORT_EVERY == 0:
            say(f"{path.name}: {result.rows_read} rows read, {len(first)} prompts")
        known = first.setdefault(problem.prompt, problem)
        if known is problem:
            continue
        if _same_answer(known.answer, problem.answer):
            result.duplicates += 1
        elif benchmark:
            raise UserError(
                f"{where}: a prompt of {benchmark} has the answers {known.answer!r} and {problem.answer!r}: "
                "leave the right one"
            )
        else:
            seen = answers.setdefault(problem.prompt, [known.answer])
            if problem.answer not in seen:
                seen.append(problem.answer)
    result.problems = [problem for prompt, problem in first.items() if prompt not in answers]
    result.conflicts = [(first[prompt].id, found) for prompt, found in answers.items()]
    return result


def _same_answer(one: str, other: str) -> bool:
    """Equal as texts, or as whole numbers ("073" and "73")."""
    return one == other or (_whole(one) is not None and _whole(one) == _whole(other))


def _whole(answer: str) -> str | None:
    digits = answer.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return None
    value = digits.lstrip("0") or "0"
    return value if answer == digits or value == "0" else f"-{value}"
