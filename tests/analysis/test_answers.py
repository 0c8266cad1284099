"""Reading what runs kept of their answers from a store's artifacts."""

from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from cppo_lab.analysis import reader
from cppo_lab.analysis.reader import read_answers, read_outcomes
from cppo_lab.answers import outcomes, texts, tokens
from cppo_lab.answers.outcomes import OUTCOMES
from cppo_lab.answers.texts import Texts, texts_name
from cppo_lab.answers.tokens import tokens_name
from cppo_lab.errors import UserError
from cppo_lab.tracking.history import StoredRun
from cppo_lab.tracking.read import stored_run
from tests.answers import made
from tests.reports.made_answers import log_file

STEPS = tuple(range(0, 60, 10))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """A run with everything, one with nothing, and one with a broken file."""
    folder = tmp_path_factory.mktemp("answers")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri)
    experiment = client.create_experiment("x", artifact_location=Path(folder / "artifacts").as_uri())
    ids = [client.create_run(experiment).info.run_id for _ in range(3)]
    log_file(client, ids[0], OUTCOMES, outcomes.write(made.outcomes()))
    for step in STEPS:
        log_file(client, ids[0], texts_name(step), texts.write(Texts(step, (made.sample(step=step),))))
        log_file(client, ids[0], tokens_name(step), tokens.write(made.tokens(step=step)))
    log_file(client, ids[2], OUTCOMES, b"PK no such file")
    return uri, ids


def stored(uri: str, *mlflow_ids: str) -> list[StoredRun]:
    return [stored_run(MlflowClient(uri).get_run(each)) for each in mlflow_ids]


def test_outcomes_of_the_runs_that_have_them(
    store: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From their folders, or from the store if they are elsewhere."""
    uri, (whole, _bare, broken) = store
    here = stored(uri, *store[1])
    elsewhere = [replace(run, artifact_uri="mlflow-artifacts:/0/elsewhere") for run in here]
    for runs, name in (
        (elsewhere, f"{OUTCOMES} of MLflow run {broken}"),
        (here, rf"{broken}/artifacts/{OUTCOMES}"),
    ):
        found = read_outcomes(uri, runs[:2])
        assert list(found) == [whole]
        assert found[whole].right.tolist() == made.outcomes().right.tolist()
        with pytest.raises(UserError, match=f"{name}.*delete that file"):
            read_outcomes(uri, runs[2:])
    monkeypatch.setattr(reader, "MOST_RUNS", 1)  # a larger sweep is not read
    assert reader._sweep_data(uri, "", "", here[:2], None).outcomes == {}


def test_texts_are_spread_over_the_run_and_tokens_are_its_last(store: tuple[str, list[str]]) -> None:
    uri, (whole, bare, _) = store
    found = read_answers(uri, [whole, bare], text_steps=3, token_steps=2)
    assert list(found) == [whole]
    assert [texts.step for texts in found[whole].texts] == [0, 20, 50]
    assert [tokens.step for tokens in found[whole].tokens] == [40, 50]
    (last,) = read_answers(uri, [whole], text_steps=1, token_steps=0).values()
    assert ([texts.step for texts in last.texts], last.tokens) == ([50], ())


def test_a_file_that_is_too_large_is_not_fetched(
    store: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "LARGEST", 10)
    with pytest.raises(UserError, match="more than the 10 allowed"):
        read_answers(store[0], store[1][:1], 1, 1)
