"""Answer files on their way to MLflow: as artifacts, as a table, and back; broken, hostile and missing ones."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow.exceptions import MlflowException

from cppo_lab.answers import texts
from cppo_lab.answers.records import FolderFiles, read_outcomes, read_texts, read_tokens, steps_with
from cppo_lab.errors import StoreAway
from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.read import StoredFiles, stored_files
from cppo_lab.tracking.upload import TABLE, TABLE_TAG, answers_table
from tests.answers import made
from tests.conftest import FINISHED, user_error
from tests.recorded import mlflow_client, mlflow_run
from tests.tracking.conftest import Attempt

RESPONSE = "<script>alert(1)</script> \u202e\x1b[31m" * 3


def record_answers(recorder: Recorder) -> None:
    """Of the steps 0, 10 and 20 of a run, which has not ended."""
    made.record(recorder, lambda step: [made.sample(step=step, response=RESPONSE)], 0, 10, 20)


def test_the_store_has_the_files_byte_by_byte_and_texts_are_a_table_of_mlflows(
    folder: Path, tiny_spec: RunSpec, attempt: Attempt
) -> None:
    """As its own client reads one that `log_table` has written. A broken file stops neither."""
    recorder = attempt()
    record_answers(recorder)
    (folder / texts.texts_name(10)).write_bytes(b"nothing of ours")
    recorder.finish(FINISHED)
    run, client = mlflow_run(folder), mlflow_client()
    local, stored = FolderFiles(folder), stored_files(tracking_uri(), "mini", tiny_spec.run_id)
    assert stored.mlflow_id == run.info.run_id
    assert stored.names() == local.names() and len(local.names()) == 6
    for name in local.names():
        assert stored.content(f"answers/{name}", 10**9) == local.content(f"answers/{name}", 10**9)
    for files in (local, stored):
        outcomes, sampled, tokens = read_outcomes(files), read_texts(files, 20), read_tokens(files, 20)
        assert outcomes.steps.tolist() == [0, 10, 20]
        assert (steps_with(files, "texts"), steps_with(files, "tokens")) == ([0, 10, 20], [10, 20])
        assert sampled.samples[0].step == 20
        assert len(tokens.token) == 14
        assert read_texts(files, 5) is None and read_tokens(files, 0) is None
    with user_error(f"texts-000010.jsonl.gz of MLflow run {run.info.run_id} has no"):
        read_texts(stored, 10)
    with user_error("more than the 5 allowed"):
        stored.content("answers/outcomes.npz", 5)
    assert json.loads(run.data.tags[TABLE_TAG]) == [{"path": TABLE, "type": "table"}]
    table = client.load_table(run.info.experiment_id, TABLE, run_ids=[run.info.run_id])
    assert (table["step"].tolist(), table["response"][0]) == ([20, 0], RESPONSE)


def test_a_table_is_bounded_and_has_the_newest(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_answers(attempt())
    whole = json.loads(answers_table(folder) or b"")
    assert [row[0] for row in whole["data"]] == [20, 10, 0]
    monkeypatch.setattr("cppo_lab.tracking.upload.LARGEST_TABLE", len(json.dumps(whole["data"][0])) + 10)
    monkeypatch.setattr("cppo_lab.tracking.upload.LONGEST_CELL", 20)
    [newest] = json.loads(answers_table(folder) or b"")["data"]
    assert newest[0] == 20
    assert "characters are left out here" in newest[whole["columns"].index("response")]


def test_a_link_in_place_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "answers").symlink_to(tmp_path)
    with user_error("remove it"):
        FolderFiles(folder).names()
    assert answers_table(folder) is None


def test_artifacts_that_cannot_be_read_are_no_missing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store does not answer, or the place of its artifacts: listing them fails, or fetching one of them."""

    fail = Mock(side_effect=MlflowException("bucket 'b' is away"))
    whole = SimpleNamespace(path="answers/outcomes.npz", file_size=3, is_dir=False)
    repositories = {
        "lost": SimpleNamespace(list_artifacts=fail),
        "listed": SimpleNamespace(list_artifacts=lambda *_: [whole], download_artifacts=fail),
    }
    monkeypatch.setattr("cppo_lab.tracking.read.get_artifact_repository", lambda uri, **_: repositories[uri])
    client: Any = SimpleNamespace(tracking_uri="")
    away = "the artifacts of MLflow run f00 cannot be read: bucket 'b' is away: "
    for ask, message in (
        (StoredFiles(client, "f00", "lost").names, away),
        (lambda: StoredFiles(client, "f00", "listed").content("answers/outcomes.npz", 10), away),
        (
            lambda: stored_files("http://127.0.0.1:1", "mini", "0" * 12),
            "store http://127.0.0.1:1 cannot be read: it does not answer: Connection refused: ",
        ),
    ):
        with pytest.raises(StoreAway, match=message):
            ask()
