"""One row per prompt."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cppo_lab.data.answers import canonical
from cppo_lab.data.problem import Problem, problem_of
from cppo_lab.data.read import rows_of
from cppo_lab.errors import UserError

REPORT_EVERY = 250_000  # rows


@dataclass(frozen=True)
class Distinct:
    """The problems of a file, each once, in the order of their first rows, and what was left out.

    `rows_read` is the number of problems plus `duplicates` plus `conflicting_rows`.
    """

    problems: list[Problem]
    rows_read: int
    duplicates: int
    conflicting_rows: int
    # Prompts with more than one answer: id of the first row, and the answers.
    conflicts: list[tuple[str, list[str]]]


def distinct_problems(path: Path, benchmark: str | None, say: Callable[[str], None]) -> Distinct:
    """Read a file and keep one row per prompt.

    DAPO-Math-17k holds every prompt a hundred times, and AIME-2024 32 times. A few of DAPO's prompts come with two
    different answers (seven, by a count on the hub). Which one is right is unknown, and a wrong one
    would reward wrong responses: such a prompt is dropped from the training set and listed. In a benchmark it is an
    error, since the set of problems is fixed.

    Raises:
        UserError: a row cannot be used, or a benchmark has a prompt with two answers.
    """
    first: dict[str, Problem] = {}
    rows: Counter[str] = Counter()
    answers: dict[str, list[str]] = {}
    for read, (where, row) in enumerate(rows_of(path), start=1):
        problem = problem_of(row, where, benchmark, len(first))
        rows[problem.prompt] += 1
        if read % REPORT_EVERY == 0:
            say(f"{path.name}: {read} rows read, {len(first)} prompts")
        known = first.setdefault(problem.prompt, problem)
        if canonical(known.answer) == canonical(problem.answer):
            continue
        if benchmark:
            raise UserError(
                f"{where}: a prompt of {benchmark} has the answers {known.answer!r} and {problem.answer!r}: "
                "keep the right one"
            )
        seen = answers.setdefault(problem.prompt, [known.answer])
        if canonical(problem.answer) not in map(canonical, seen):
            seen.append(problem.answer)
    problems = [problem for prompt, problem in first.items() if prompt not in answers]
    conflicting = sum(rows[prompt] for prompt in answers)
    return Distinct(
        problems=problems,
        rows_read=rows.total(),
        duplicates=rows.total() - len(problems) - conflicting,
        conflicting_rows=conflicting,
        conflicts=[(first[prompt].id, found) for prompt, found in answers.items()],
    )
