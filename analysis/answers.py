"""Reads the answers of a report's runs from the store: outcomes, texts and tokens (`cppo_lab.answers`)."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

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
    if len(artifacts) > MOST_RUNS and not of_any_number:
        return {}
    of_run, found = _stored_files(uri), {}
    for mlflow_id, artifact_uri in artifacts.items():
        folder = address.artifact_folder(artifact_uri)
        if folder is not None and not (folder / OUTCOMES).exists():
            continue
        files = of_run(mlflow_id) if folder is None else FolderFiles(folder)
        if (outcomes := reading.read_outcomes(files)) is not None:
            found[mlflow_id] = outcomes
    return found


def read_answers(
    uri: str, mlflow_ids: Iterable[str], text_steps: int, token_steps: int
) -> Mapping[str, RunAnswers]:
    """MLflow run -> its texts at up to `text_steps` validations, evenly spaced and including the first and the last,
    and its tokens at the last `token_steps`. Runs without either are left out.

    Raises UserError if the store fails, or if a file is too large or not what it should be.
    """
    address.require_store(uri)
    of_run, found = _stored_files(uri), {}
    for mlflow_id in mlflow_ids:
        files = of_run(mlflow_id)
        last = reading.steps_with(files, "tokens")[-token_steps:] if token_steps else []
        texts = [
            reading.read_texts(files, step) for step in spread(reading.steps_with(files, "texts"), text_steps)
        ]
        tokens = [reading.read_tokens(files, step) for step in last]
        own = RunAnswers(
            tuple(one for one in texts if one is not None), tuple(one for one in tokens if one is not None)
        )
        if own.texts or own.tokens:
            found[mlflow_id] = own
    return found


def _stored_files(uri: str) -> Callable[[str], reading.AnswerFiles]:
    """MLflow run -> its answer files in the store. The store is opened on first use, because importing MLflow takes
    seconds.
    """
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # one bar per file

    @cache
    def client() -> Any:
        from cppo_lab.tracking.read import open_store

        return open_store(uri)

    def of_run(mlflow_id: str) -> reading.AnswerFiles:
        from cppo_lab.tracking.read import StoredFiles

        return StoredFiles(client(), mlflow_id)

    return of_run


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of the items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[-most:]) if most else []
    places = [round(number * (len(items) - 1) / (most - 1)) for number in range(most)]
    return [items[place] for place in places]
