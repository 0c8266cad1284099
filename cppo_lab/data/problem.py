"""One problem, checked: the common form of a row of any accepted file; and the prompt it is given in."""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cppo_lab.data.sources import BENCHMARKS
from cppo_lab.errors import UserError

# Taken letter by letter from the rows of BytedTsinghua-SIA/DAPO-Math-17k; a test compares it with such rows.
# PAPER: the validation prompt is not given. DAPO's AIME-2024 file wraps its problems in this text, so
# all three benchmarks get it: a policy is validated on the form that it is trained on.
BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


def wrap(problem: str) -> str:
    """The user message that asks for the solution of `problem`."""
    return f"{BEFORE}{problem}{AFTER}"


def is_wrapped(prompt: str) -> bool:
    """Whether a user message has the form that `wrap` gives, around a problem that is not empty."""
    return prompt.startswith(BEFORE) and prompt.endswith(AFTER) and len(prompt) > len(BEFORE) + len(AFTER)


# Longer than anything published by far (DAPO's longest prompt has some thousand characters, its answers are
# integers): a longer one is a broken row, and would exceed the prompt length of every run anyway.
MAX_PROMPT = 100_000
MAX_ANSWER = 1_000
TRAINING_SOURCE = "math_dapo"  # verl's name of DAPO-Math-17k


ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Problem:
    """The messages of a prompt as pairs of role and text, the last the user's, and the answer that is right."""

    data_source: str
    messages: tuple[tuple[str, str], ...]
    answer: str
    id: str


def problem_of(row: Mapping[str, Any], where: str, benchmark: str | None, position: int) -> Problem:
    """Read a row in verl's layout (`prompt`, `reward_model`) or a plain one (`problem` or `messages`, `answer`).

    Args:
        row: the row as read; keys that are not needed are left alone.
        where: file and line, for messages.
        benchmark: name of the validation set that the row belongs to, or None for a row to train on.
        position: 0-based place in the file; names a row that has no id.

    Raises:
        UserError: a key is missing or its value cannot be used.
    """
    row = {key: row[key] for key in row if row[key] is not None}  # in parquet, keys of other rows are null
    if "prompt" in row:
        messages = _messages(row, "prompt", where)
        answer = _answer(_field(row, "reward_model", where), "ground_truth", where)
        identifier = (
            (row.get("extra_info") or {}).get("index") if isinstance(row.get("extra_info"), Mapping) else None
        )
        if benchmark in BENCHMARKS and not is_wrapped(messages[-1][1]):
            raise UserError(
                f"{where}: `prompt` of a {benchmark} row is {_shown(messages[-1][1])}, not a problem in DAPO's "
                "template: give the bare problem in a key `problem` with its `answer`, and it is wrapped"
            )
    elif "problem" in row or "messages" in row:
        messages = (
            _messages(row, "messages", where)
            if "messages" in row
            else (("user", wrap(_text(row, "problem", where, MAX_PROMPT))),)
        )
        answer = _answer(row, "answer", where)
        identifier = row.get("id")
    else:
        raise UserError(
            f"{where}: neither `prompt` nor `problem` is among the keys with a value, {sorted(map(str, row))}: "
            "each row needs `problem` or `messages`, and `answer`, or verl's `prompt` and `reward_model.ground_truth`"
        )
    name = benchmark or TRAINING_SOURCE
    if benchmark in BENCHMARKS:
        answer = _aime_answer(answer, where)
    elif not benchmark and row.get("data_source") is not None:
        name = _text(row, "data_source", where, MAX_ANSWER)
    if identifier is None or isinstance(identifier, bool) or not isinstance(identifier, int | str):
        identifier = f"{name}-{position}"
    return Problem(name, messages, answer, _storable(str(identifier), "id", where, MAX_PROMPT))


def _shown(value: object) -> str:
    return reprlib.repr(value)


def _field(row: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = _present(row, key, where)
    if not isinstance(value, Mapping):
        raise UserError(
            f"{where}: `{key}` is {_shown(value)}: give an object such as {{'ground_truth': '34'}}"
        )
    return value


def _present(row: Mapping[str, Any], key: str, where: str) -> Any:
    if row.get(key) is None:
        raise UserError(
            f"{where}: `{key}` is missing: its keys with a value are {sorted(map(str, row))}; add it or drop the row"
        )
    return row[key]


def _text(row: Mapping[str, Any], key: str, where: str, longest: int) -> str:
    value = _present(row, key, where)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: `{key}` is {_shown(value)}: give a text that is not empty")
    return _storable(value, key, where, longest)


def _storable(value: str, key: str, where: str, longest: int) -> str:
    if len(value) > longest:
        raise UserError(
            f"{where}: `{key}` has {len(value)} characters, starting {_shown(value[:40])}: at most {longest} are "
            "taken; fix or drop the row"
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: `{key}` holds half a surrogate pair at character {error.start}: write the text as UTF-8"
        ) from None
    return value


def _messages(row: Mapping[str, Any], key: str, where: str) -> tuple[tuple[str, str], ...]:
    """The roles and texts of a prompt's messages."""
    messages = row[key] if isinstance(row[key], list) else []
    roles = [str(message.get("role")) if isinstance(message, Mapping) else "" for message in messages]
    if not {*roles} <= {*ROLES} or roles[-1:] != ["user"]:
        raise UserError(
            f"{where}: `{key}` is {_shown(row[key])}: give a list of messages {{'role': 'user', 'content': ...}} "
            f"(roles: {', '.join(ROLES)}), of which the last is the user's, as DAPO-Math-17k has it"
        )
    texts = [_text(message, "content", f"{where}: `{key}`", MAX_PROMPT) for message in messages]
    return tuple(zip(roles, texts, strict=True))


def _answer(row: Mapping[str, Any], key: str, where: str) -> str:
    """An answer as text. Whole numbers are accepted, floats are not: they may not be the number that was meant."""
    value = _present(row, key, where)
    if isinstance(value, float):
        kind = "a binary fraction" if math.isfinite(value) else "not a number"
        raise UserError(
            f"{where}: `{key}` is {value!r}, {kind}: write the answer as text or as a whole number"
        )
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise UserError(f"{where}: `{key}` is {_shown(value)}: give the answer as text or as a whole number")
    return _storable(str(value).strip(), key, where, MAX_ANSWER)


def _aime_answer(answer: str, where: str) -> str:
    """An AIME answer: a whole number from 0 to 999, written without leading zeros."""
    if not (answer.isascii() and answer.isdigit() and int(answer) <= 999):
        raise UserError(
            f"{where}: the answer is {_shown(answer)}: AIME answers are whole numbers from 0 to 999"
        )
    return str(int(answer))
