"""Answer files on their way to MLflow: as artifacts, as a table, and back; broken, hostile and missing ones."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from cppo_lab.answers import texts
from cppo_lab.answers.reading import FolderFiles, read_outcomes, read_texts, read_tokens, steps_with
from cppo_lab.answers.recording import Recording, StepAnswers
from cppo_lab.errors import StoreAway, UserError
from cppo_lab.runs import recorder as recorder_module
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.spool import newest_record
from cppo_lab.spec import AnswersSpec, RunSpec
from cppo_lab.tracking import upload as upload_module
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.read import StoredFiles, stored_files
from cppo_lab.tracking.upload import TABLE, TABLE_TAG, answers_table
from tests.answers import made
from tests.conftest import FINISHED
from tests.recorded import mlflow_run

KEPT = AnswersSpec(keep=True, problems=8, groups=2, megabytes=50.0)


@pytest.fixture
def folder(workspace: Path, tiny_spec: RunSpec) -> Path:
    path = workspace / "runs" / tiny_spec.run_id
    path.mkdir(parents=True)
    return path


def recorded(folder: Path, spec: RunSpec, last: int = 20) -> Recorder:
    """A run with answers at steps 0, 10, ..., which has not ended."""
    recorder = Recorder(spec, {}, folder)
    recorder.begin(None)
    recording = Recording(KEPT, folder, 3, recorder.file)
    recording.begin(None)
    for step in range(0, last + 1, 10):
        whole = made.outcomes(validations=1 + step // 10)
        one = made.outcomes(validations=1)
        one = type(one)(**{**vars(one), "steps": whole.steps[-1:]})
        samples = [made.sample(step=step, response="<script>alert(1)</script> \u202e\x1b[31m" * 3)]
        recording.add(StepAnswers(one, samples, made.tokens(step=step) if step else None))
        recorder.log(step, {"train/reward": step / 100})
    return recorder


def test_the_store_has_the_files_byte_by_byte(folder: Path, tiny_spec: RunSpec) -> None:
    recorded(folder, tiny_spec).finish(FINISHED)
    run = mlflow_run(folder)
    own, stored = FolderFiles(folder), StoredFiles(open_client(tracking_uri()), run.info.run_id)
    assert stored.names() == own.names()
    assert len(own.names()) == 6
    for name in own.names():
        assert stored.content(f"answers/{name}", 10**9) == own.content(f"answers/{name}", 10**9)
    found = stored_files(tracking_uri(), "mini", tiny_spec.run_id)
    assert found is not None and found.mlflow_id == run.info.run_id
    for files in (own, found):
        outcomes = read_outcomes(files)
        assert outcomes is not None and outcomes.steps.tolist() == [0, 10, 20]
        assert (steps_with(files, "texts"), steps_with(files, "tokens")) == ([0, 10, 20], [10, 20])
        text, token = read_texts(files, 20), read_tokens(files, 20)
        assert text is not None and text.samples[0].step == 20
        assert token is not None and len(token.token) == 14
        assert read_texts(files, 5) is None and read_tokens(files, 0) is None


def test_texts_are_a_table_of_mlflows(folder: Path, tiny_spec: RunSpec) -> None:
    """As its own client reads one that `log_table` has written."""
    recorded(folder, tiny_spec).finish(FINISHED)
    run, client = mlflow_run(folder), open_client(tracking_uri())
    assert json.loads(run.data.tags[TABLE_TAG]) == [{"path": TABLE, "type": "table"}]
    table = client.load_table(run.info.experiment_id, TABLE, run_ids=[run.info.run_id])
    assert table["step"].tolist() == [20, 10, 0]
    assert table["response"][0] == "<script>alert(1)</script> \u202e\x1b[31m" * 3
    assert {artifact.path for artifact in client.list_artifacts(run.info.run_id)} >= {TABLE, "answers"}


def test_a_table_is_bounded_and_has_the_newest(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(folder, tiny_spec)
    whole = json.loads(answers_table(folder) or b"")
    monkeypatch.setattr(upload_module, "LARGEST_TABLE", len(json.dumps(whole["data"][0])) + 10)
    monkeypatch.setattr(upload_module, "LONGEST_CELL", 20)
    found = json.loads(answers_table(folder) or b"")
    assert [row[0] for row in found["data"]] == [20]
    assert "characters are left out here" in found["data"][0][found["columns"].index("response")]


def test_a_run_without_answers_has_no_table(folder: Path, tiny_spec: RunSpec) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    recorder.log(0, {"train/reward": 0.0})
    recorder.finish(FINISHED)
    run = mlflow_run(folder)
    assert TABLE_TAG not in run.data.tags
    stored = stored_files(tracking_uri(), "mini", tiny_spec.run_id)
    assert stored is not None and stored.names() == [] and read_outcomes(stored) is None
    assert stored_files(tracking_uri(), "mini", "0" * 12) is None


def test_broken_files_stop_neither_shipping_nor_other_files(folder: Path, tiny_spec: RunSpec) -> None:
    recorder = recorded(folder, tiny_spec)
    (folder / texts.texts_name(10)).write_bytes(b"nothing of ours")
    recorder.finish(FINISHED)
    run = mlflow_run(folder)
    stored = StoredFiles(open_client(tracking_uri()), run.info.run_id)
    with pytest.raises(
        UserError, match=rf"answers/texts-000010.jsonl.gz of MLflow run {run.info.run_id} has no"
    ):
        read_texts(stored, 10)
    table = Path(open_client(tracking_uri()).download_artifacts(run.info.run_id, TABLE)).read_text()
    assert [row[0] for row in json.loads(table)["data"]] == [20, 0]
    with pytest.raises(UserError, match="more than the 5 allowed"):
        stored.content("answers/outcomes.npz", 5)


def test_a_link_in_place_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "answers").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="remove it"):
        FolderFiles(folder).names()
    assert answers_table(folder) is None


def test_a_file_that_a_full_disk_refuses_is_written_later(
    folder: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    write = recorder_module.replace_file

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recorder_module, "replace_file", full)
    recorder.file("answers/a", b"\xff1")
    recorder.file("answers/b", b"\xff2")
    assert capsys.readouterr().err.count("could not be written") == 1
    monkeypatch.setattr(recorder_module, "replace_file", write)
    recorder.file("answers/b", b"\xff3")
    assert (folder / "answers/a").read_bytes() == b"\xff1"
    assert (folder / "answers/b").read_bytes() == b"\xff3"
    monkeypatch.setattr(recorder_module, "replace_file", full)
    recorder.file("answers/b", b"\xff4")  # and the disk stays full
    recorder.log(0, {"train/reward": 0.0})
    recorder.finish(FINISHED)
    monkeypatch.setattr(recorder_module, "replace_file", write)
    assert newest_record(folder) is not None
    stored = StoredFiles(open_client(tracking_uri()), mlflow_run(folder).info.run_id)
    assert stored.content("answers/a", 99) == b"\xff1"
    assert stored.content("answers/b", 99) == b"\xff4"


def test_a_store_that_does_not_answer_is_said() -> None:
    with pytest.raises(StoreAway, match=r"tracking store http://127\.0\.0\.1:1 cannot be read: "):
        stored_files("http://127.0.0.1:1", "mini", "0" * 12)


def test_artifacts_that_cannot_be_read_are_no_missing_answers() -> None:
    """The store answers, and the place of its artifacts does not: listing them fails, or fetching one of them."""
    whole = SimpleNamespace(path="answers/outcomes.npz", file_size=3, is_dir=False)

    def fail(*_: object) -> Any:
        raise MlflowException("bucket 'b' is away")

    lost: Any = SimpleNamespace(list_artifacts=fail)
    listed: Any = SimpleNamespace(list_artifacts=lambda *_: [whole], download_artifacts=fail)
    said = r"the artifacts of MLflow run f00 cannot be read: bucket 'b' is away: "
    with pytest.raises(StoreAway, match=said):
        StoredFiles(lost, "f00").names()
    files = StoredFiles(listed, "f00")
    assert files.names() == ["outcomes.npz"]
    with pytest.raises(StoreAway, match=said):
        files.content("answers/outcomes.npz", 10)
