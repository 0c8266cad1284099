"""A report beside the runs that it is of: uploaded once, with its verdicts in the sweep's description."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.store.address import tracking_uri
from cppo_lab.store.client import ensure_experiment, open_client
from cppo_lab.tracking import report_log
from cppo_lab.tracking.report_log import ReportLog, keep_report, verdict_markdown
from cppo_lab.tracking.sweep_note import SweepText, verdict_of

VERDICTS = (("undecided", "CPPO is best", "Open: +1.0 points | <b>"), ("supported", "The rest", "It holds."))


@pytest.fixture
def uri(workspace: Path) -> str:
    """A store with one run of sweep s."""
    uri = tracking_uri()
    client = open_client(uri)
    number = ensure_experiment(client, uri, "cppo-mini")
    tags = {schema.TAG_RUN_ID: "0" * 16, schema.sweep_tag("s"): "cppo", schema.TAG_STATUS: schema.DONE}
    client.set_terminated(client.create_run(number, tags=tags).info.run_id)
    return uri


def log_of(folder: Path, files: Mapping[str, bytes]) -> ReportLog:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    digests = {name: sha256(data).hexdigest() for name, data in files.items()}
    text = SweepText("s", "A title", "A question?")
    return ReportLog(text, folder, digests, VERDICTS, "core=mini: a miniature model", "figure_curves.png")


def parent(uri: str) -> Run:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("cppo-mini")
    assert experiment is not None
    (found,) = [
        run
        for run in client.search_runs([experiment.experiment_id])
        if schema.TAG_SWEEP_PARENT in run.data.tags
    ]
    return found


FILES = {"index.html": b"<p>", "figure_curves.png": b"png", "figure_curves.svg": b"<svg>"}


def test_page_figures_and_verdicts_are_with_the_sweep(uri: str, tmp_path: Path) -> None:
    assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r", FILES)) == 3
    run, client = parent(uri), MlflowClient(uri)
    listed = client.list_artifacts(run.info.run_id, "report")
    assert {one.path for one in listed} == {f"report/{name}" for name in FILES}
    note = run.data.tags[schema.TAG_NOTE]
    assert note.startswith("## A title\n")
    assert "runs: 1 (1 done)" in note
    verdict = verdict_of(note)
    assert "core&#61;mini" in verdict or "core=mini" in verdict
    assert "- **undecided**: CPPO is best. Open" in verdict
    assert "<b>" not in note
    assert f"run_uuid={run.info.run_id}" in verdict
    assert "figure_curves.png" in verdict


def test_what_did_not_change_is_not_uploaded_again(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_report(uri, "cppo-mini", log_of(tmp_path / "r", FILES))
    before = parent(uri).data.tags
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "set_tag", None)  # nothing is written either
        patched.setattr(MlflowClient, "log_artifact", None)
        assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r", FILES)) == 0
    assert parent(uri).data.tags == before
    uploaded = []
    monkeypatch.setattr(report_log, "log_report", lambda client, parent, files: uploaded.extend(files))
    assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r", FILES | {"index.html": b"<p>new"})) == 1
    assert [path.name for path in uploaded] == ["index.html"]
    assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r", FILES), again=True) == 3


def test_an_interrupted_upload_is_made_up_for(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(tmp_path / "r", FILES)
    with monkeypatch.context() as patched:
        patched.setattr(report_log, "log_report", interrupted)
        with pytest.raises(KeyboardInterrupt):
            keep_report(uri, "cppo-mini", log)
    assert keep_report(uri, "cppo-mini", log) == 3


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_study_has_a_run_of_its_own(uri: str, tmp_path: Path) -> None:
    study = replace(
        log_of(tmp_path / "r", FILES), sweep=SweepText("study", "All", "Why <i>?"), whole_study=True
    )
    keep_report(uri, "cppo-mini", study)
    run = parent(uri)
    assert run.data.tags[schema.TAG_SWEEP_PARENT] == "study"
    note = run.data.tags[schema.TAG_NOTE]
    assert "runs:" not in note
    assert "<i>" not in note
    assert "The rest. It holds." in verdict_of(note)


def test_many_claims_do_not_outgrow_the_description(tmp_path: Path) -> None:
    many = tuple(("undecided", f"Claim {number}", "word " * 40) for number in range(50))
    text = verdict_markdown(replace(log_of(tmp_path / "r", {}), verdicts=many), "![](figure)")
    assert len(text) < 2000
    assert "more, on the page" in text
    assert text.endswith("![](figure)")


@pytest.mark.parametrize("kept", ["[]", "{", "null", '{"index.html": 3}'])
def test_a_tag_that_says_nothing_means_that_nothing_is_there(uri: str, tmp_path: Path, kept: str) -> None:
    keep_report(uri, "cppo-mini", log_of(tmp_path / "r", FILES))
    MlflowClient(uri).set_tag(parent(uri).info.run_id, schema.TAG_REPORT, kept)
    assert keep_report(uri, "cppo-mini", log_of(tmp_path / "r", FILES)) == 3


def test_a_store_that_is_away_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError) as error:
        keep_report("http://mia:secret@127.0.0.1:9", "cppo-mini", log_of(tmp_path / "r", FILES))
    assert "127.0.0.1:9" in str(error.value)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_an_experiment_that_was_deleted_is_not_made_again(uri: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'nothing' is not in"):
        keep_report(uri, "nothing", log_of(tmp_path / "r", FILES))
