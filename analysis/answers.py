"""What runs kept of their answers, from the artifacts of the store: outcomes, texts, tokens (`cppo_lab.answers`)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab.analysis.artifacts import artifact_bytes, artifact_sizes
from cppo_lab.analysis.listing import open_store, unreadable
from cppo_lab.answers import ANSWERS, outcomes, texts, tokens
from cppo_lab.answers.outcomes import OUTCOMES, Outcomes
from cppo_lab.answers.texts import Texts
from cppo_lab.answers.tokens import Tokens
from cppo_lab.store import address

MOST_RUNS = 300  # of a larger sweep the answers are not read, as its page shows no single curve either
_TEXTS, _TOKENS = f"{ANSWERS}/texts-", f"{ANSWERS}/tokens-"

T = TypeVar("T")


@dataclass(frozen=True)
class RunAnswers:
    """What one run kept: texts and tokens of some of its validated steps, in the order of the steps."""

    texts: tuple[Texts, ...]
    tokens: tuple[Tokens, ...]


def read_outcomes(client: MlflowClient, mlflow_ids: Sequence[str]) -> dict[str, Outcomes]:
    """MLflow run -> its outcomes, of those that have them; nothing for more than MOST_RUNS runs.

    Raises UserError if a file is too large or not what it should be.
    """
    if len(mlflow_ids) > MOST_RUNS:
        return {}
    found = {}
    for mlflow_id in mlflow_ids:
        size = artifact_sizes(client, mlflow_id, ANSWERS).get(OUTCOMES)
        if size is not None:
            content = artifact_bytes(client, mlflow_id, OUTCOMES, size, outcomes.LARGEST)
            found[mlflow_id] = outcomes.read(content, f"{OUTCOMES} of MLflow run {mlflow_id}")
    return found


def read_answers(
    uri: str, mlflow_ids: Iterable[str], text_steps: int, token_steps: int
) -> Mapping[str, RunAnswers]:
    """MLflow run -> its texts at so many validations, evenly spread with the first and the last, and its tokens at its
    last `token_steps`; only runs that have any.

    Raises UserError if the store fails, or if a file is too large or not what it should be.
    """
    address.require_store(uri)
    found = {}
    try:
        client = open_store(uri)
        for mlflow_id in mlflow_ids:
            sizes = artifact_sizes(client, mlflow_id, ANSWERS)
            wanted = spread(sorted(name for name in sizes if name.startswith(_TEXTS)), text_steps)
            of_tokens = sorted(name for name in sizes if name.startswith(_TOKENS))
            last = of_tokens[-token_steps:] if token_steps else []
            own = RunAnswers(
                _files(client, mlflow_id, wanted, sizes, texts.LARGEST, texts.read),
                _files(client, mlflow_id, last, sizes, tokens.LARGEST, tokens.read),
            )
            if own.texts or own.tokens:
                found[mlflow_id] = own
    except (MlflowException, SQLAlchemyError) as error:
        raise unreadable(uri, error) from error
    return found


def spread(names: Sequence[T], most: int) -> list[T]:
    """At most `most` of them, evenly spread, with the first and the last."""
    if len(names) <= most:
        return list(names)
    if most < 2:
        return list(names[-most:]) if most else []
    places = [round(number * (len(names) - 1) / (most - 1)) for number in range(most)]
    return [names[place] for place in places]


def _files(
    client: MlflowClient,
    mlflow_id: str,
    names: Sequence[str],
    sizes: Mapping[str, int],
    largest: int,
    read: Callable[[bytes, str], T],
) -> tuple[T, ...]:
    return tuple(
        read(
            artifact_bytes(client, mlflow_id, name, sizes[name], largest), f"{name} of MLflow run {mlflow_id}"
        )
        for name in names
    )
