"""Reads the answers of a report's runs from the store: outcomes, texts and tokens (`cppo_lab.answers`)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cppo_lab.answers import reading
from cppo_lab.answers.outcomes import OUTCOMES, Outcomes
from cppo_lab.answers.reading import FolderFiles
from cppo_lab.answers.texts import Texts
from cppo_lab.answers.tokens import RecordedTokens
from cppo_lab.tracking import address

MOST_RUNS = 300  # answers of a larger sweep are not read: its page shows no single runs

T = TypeVar("T")


@dataclass(frozen=True)
class RunAnswers:
    """The texts and tokens that one run kept of some of its validated steps, by step."""

    texts: tuple[Texts, ...]
    tokens: tuple[RecordedTokens, ...]


def read_outcomes(
    uri: str, artifacts: Mapping[str, str], *, of_any_number: bool = False
) -> dict[str, Outcomes]:
    """MLflow run -> its outcomes, for the runs that have them. Empty for more than MOST_RUNS runs, unless
    `of_any_number`.

    `artifacts`: MLflow run -> the URI of its artifacts. Artifacts on this machine are read without querying the store.
    Raises UserError if the store fails, or if a file is too large or not what it should be.
    """
    if not artifacts or (len(artifacts) > MOST_RUNS and not of_any_number):
        return {}
    from cppo_lab.tracking.read import StoredFiles, open_store  # MLflow

    client, outcomes = open_store(uri), {}
    for mlflow_id, artifact_uri in artifacts.items():
        folder = address.artifact_folder(artifact_uri, uri)
        if folder is not None and not (folder / OUTCOMES).exists():
            continue
        files = StoredFiles(client, mlflow_id) if folder is None else FolderFiles(folder)
        if (of_run := reading.read_outcomes(files)) is not None:
            outcomes[mlflow_id] = of_run
    return outcomes


def read_answers(
    uri: str, mlflow_ids: Iterable[str], text_steps: int, token_steps: int
) -> Mapping[str, RunAnswers]:
    """MLflow run -> its texts at up to `text_steps` validations, evenly spaced and including the first and the last,
    and its tokens at the last `token_steps`. Runs without either are left out.

    Raises UserError if the store fails, or if a file is too large or not what it should be.
    """
    from cppo_lab.tracking.read import StoredFiles, open_store  # MLflow

    address.require_store(uri)
    client, answers = open_store(uri), {}
    for mlflow_id in mlflow_ids:
        files = StoredFiles(client, mlflow_id)
        last = reading.steps_with(files, "tokens")[-token_steps:] if token_steps else []
        texts = [
            reading.read_texts(files, step) for step in spread(reading.steps_with(files, "texts"), text_steps)
        ]
        tokens = [reading.read_tokens(files, step) for step in last]
        run = RunAnswers(tuple(filter(None, texts)), tuple(filter(None, tokens)))
        if run.texts or run.tokens:
            answers[mlflow_id] = run
    return answers


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of the items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[-most:]) if most else []
    places = [round(number * (len(items) - 1) / (most - 1)) for number in range(most)]
    return [items[place] for place in places]
