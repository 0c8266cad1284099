"""--replace: killed at any point, the old result or the new one counts, and the next launch goes on."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.core_records import CHECKPOINT
from cppo_lab.cores import loop
from cppo_lab.launch.queues import repair
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs import attempt as run_module
from cppo_lab.runs.folder import ASIDE, set_aside
from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import FINISHED, TINY, TINY_LINE, Command, working_in, write
from tests.jobs import job, run_of
from tests.recorded import history, mlflow_client, mlflow_run, mlflow_runs, sent
from tests.tracking.test_upload import Killed, dying

ONE = f"quickstart {TINY_LINE} seed=0 variant=cppo training.collapse_share=0 launcher=inline"
SCORE = schema.validation_metric(schema.MEAN)


def code(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("cppo_lab.sweep.launch.code_version", lambda: version)


def test_results_of_other_code_are_kept_unless_replace(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    code(monkeypatch, "0.1.0+old")
    assert "made by other code" not in cppo(f"launch {ONE}").err
    [old] = mlflow_runs()
    code(monkeypatch, "0.1.0+new")
    kept = (
        "1 finished run was made by other code (0.1.0+old): kept; `cppo launch --replace` trains them again"
    )
    assert kept in cppo(f"launch {ONE}").err
    assert [run.info.run_id for run in mlflow_runs()] == [old.info.run_id]

    said = cppo(f"launch {ONE} --replace")
    assert f"mlflow runs restore --run-id {old.info.run_id}" in said.out
    assert "1 to train" in said.err
    [new] = mlflow_runs()
    assert new.data.tags[schema.TAG_CODE_VERSION] == "0.1.0+new"
    assert new.data.tags[schema.TAG_REPLACED] == old.info.run_id != new.info.run_id
    assert schema.TAG_REPLACES not in new.data.tags
    assert new.data.metrics[SCORE] == old.data.metrics[SCORE]  # the same configuration: the same numbers
    assert len(mlflow_runs(view=ViewType.ALL)) == 2

    assert "0 to train" in cppo(f"launch {ONE} --replace").err  # by the same code: nothing to do
    mlflow_client().restore_run(old.info.run_id)
    cppo(f"launch {ONE}")
    assert len(mlflow_runs()) == 2  # what a user brought back stays


def test_a_finished_run_is_retrained_on_demand(cppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same code: an interrupted attempt goes on, and the old result counts until the new one is there."""
    cppo(f"launch {ONE}")
    [old] = mlflow_runs()
    run_id = old.data.tags[schema.TAG_RUN_ID]
    again = f"retry {ONE} --run {run_id}"
    finished_alone = (
        f"--run {run_id} is done: only runs that are neither done nor running can be retried; --finished"
    )
    assert finished_alone in cppo(again, code=2).err
    named_alone = "--finished with --failed: name finished runs with --run ID"
    assert named_alone in cppo(f"retry {ONE} --failed --finished", code=2).err
    said = cppo(f"{again} --finished --dry-run").out
    assert "would train 1 of 1 runs, 1 of them again" in said
    assert [line.split()[-1] for line in said.splitlines() if line.startswith(run_id)] == ["done"]
    save = loop.save_checkpoint

    def save_and_end(*arguments: Any) -> None:
        save(*arguments)
        raise KeyboardInterrupt

    with patch("cppo_lab.cores.loop.save_checkpoint", save_and_end):
        cppo(f"{again} --finished", code=130)
    assert "1 done" in cppo(f"launch {ONE}").err
    begin = Mock(wraps=Recorder.begin)
    monkeypatch.setattr("cppo_lab.runs.recorder.Recorder.begin", lambda self, step: begin(self, step))
    cppo(f"{again} --finished")
    assert [call.args[1] for call in begin.call_args_list] == [2]
    [new] = mlflow_runs()
    assert new.data.tags[schema.TAG_REPLACED] == old.info.run_id != new.info.run_id


SPEC = run_of("training.collapse_share=0", TINY)
TAGS = {schema.TAG_CODE_VERSION: "old", schema.sweep_tag("s"): "cppo"}


@pytest.fixture(scope="module")
def trained_once(shared_path: Path) -> Path:
    """A working folder with a result whose files are still in the run's folder."""
    with working_in(shared_path):
        first = job(SPEC, shared_path / "runs", tracking_uri(), TAGS)
        first.run()
        (first.folder / "best_checkpoint").mkdir()
        (first.folder / "best_checkpoint" / "weights").write_bytes(b"of the old result")
        (first.folder / CHECKPOINT).write_bytes(b"of the old result")  # killed before it could remove it
        sent(first.folder)
    return shared_path


@pytest.fixture
def finished(workspace: Path, trained_once: Path) -> TrainingJob:
    """A job that is to replace a result of other code."""
    shutil.copytree(trained_once, workspace, dirs_exist_ok=True)
    [old] = mlflow_runs()
    tags = TAGS | {schema.TAG_CODE_VERSION: "new"}
    return job(SPEC, workspace / "runs", tracking_uri(), tags, replaces=(old.data.tags[schema.TAG_RECORD],))


# Where it is killed: instead of a call of this number, or behind it where that is not just before the next.
PLACES: list[tuple[Any, str, int, bool]] = [
    (Path, "rename", 0, False),
    (Path, "rename", 1, False),
    (Recorder, "_start", 0, False),
    (Recorder, "begin", 0, False),
    (Recorder, "log", 1, False),
    (loop, "save_checkpoint", 0, False),
    (loop, "save_checkpoint", 0, True),
    (loop, "save_checkpoint", 1, False),
    (Recorder, "finish", 0, False),
    (run_module, "remove_checkpoints", 0, False),
    (MlflowClient, "delete_run", 0, False),
    (MlflowClient, "delete_run", 0, True),
]


@pytest.mark.parametrize("holder, name, survived, after", PLACES)
def test_killed_at_any_point(
    finished: TrainingJob, monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, survived: int, after: bool
) -> None:
    """One of the two results counts at every moment, whole and by itself; the next attempt ends with the new one."""
    [attempt] = finished.attempts
    [mark], [old] = attempt.replaces, mlflow_runs()
    with monkeypatch.context() as patch:
        patch.setattr(
            "cppo_lab.runs.recorder.Recorder.fail", lambda *_: None
        )  # a killed process records nothing
        patch.setattr(holder, name, dying(getattr(holder, name), iter(range(survived)), after))
        with pytest.raises(Killed):
            replace(finished, uploads=False).run()
            sent(finished.folder)
    data = read_sweep(finished.uri, "cppo-mini", "s")
    assert list(data.runs["status"]) == [schema.DONE]
    steps = data.metrics[data.metrics["metric"] == SCORE]["step"]
    assert list(steps) == [0, 2, 4]  # of one run alone

    repair(attempt.runs, [attempt.run_id], finished.uri)
    finished.run()
    repair(attempt.runs, [attempt.run_id], finished.uri)
    [result] = [run for run in mlflow_runs() if run.info.status == "FINISHED"]
    assert result.data.tags[schema.TAG_CODE_VERSION] == "new"
    assert result.data.tags[schema.TAG_REPLACED] == old.info.run_id
    assert list(history(result, "train/reward")) == [1, 2, 3, 4]
    aside = finished.folder / ASIDE / mark
    assert (aside / "best_checkpoint" / "weights").read_bytes() == b"of the old result"
    assert {"spool", "config.json"} <= {path.name for path in aside.iterdir()}
    assert not (finished.folder / "best_checkpoint").exists()


def test_files_set_aside_stay_below_the_folder(tmp_path: Path) -> None:
    """What an attempt has left that is not on record makes way."""
    folder = tmp_path / "runs" / "a"
    for text in ("of the result", "junk of an attempt that is not on record"):
        names = ("lock", "verl_trainer.lock", "attempts/log", "metrics.jsonl", "spool/1.jsonl")
        write(folder, dict.fromkeys(names, text))
        set_aside(folder, "../../etc")
        assert {path.name for path in folder.iterdir()} == {"attempts", "lock", "verl_trainer.lock", ASIDE}
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    aside = {path.name: path.read_text() for path in (folder / ASIDE).rglob("*") if path.is_file()}
    assert aside == dict.fromkeys(("metrics.jsonl", "1.jsonl"), "of the result")


@pytest.mark.parametrize("request_name", ["delete_run", "search_runs"])
def test_what_the_store_does_not_delete_now_is_deleted_by_the_next_launch(
    workspace: Path, tiny_spec: RunSpec, capsys: pytest.CaptureFixture[str], request_name: str
) -> None:
    def result(**tags: str) -> Run:
        """The MLflow run of a result that is recorded and sent."""
        recorder = Recorder(tiny_spec, tags, workspace / "runs" / tiny_spec.run_id, continues=False)
        recorder.finish(FINISHED)
        return mlflow_run(recorder.folder)

    old = result()
    mark, real = old.data.tags[schema.TAG_RECORD], getattr(MlflowClient, request_name)

    def busy(client: MlflowClient, *arguments: Any, **named: Any) -> Any:
        if old.info.run_id in arguments or any(mark in str(argument) for argument in arguments):
            raise MlflowException("database is locked")
        return real(client, *arguments, **named)

    with patch.object(MlflowClient, request_name, busy):
        new = result(**{schema.TAG_REPLACES: mark})
        said = capsys.readouterr().err
        assert "replaced results are still there, the next launch removes them: " in said
        assert "database is locked" in said
        assert {run.info.run_id for run in mlflow_runs()} == {old.info.run_id, new.info.run_id}
    assert repair(workspace / "runs", [tiny_spec.run_id], tracking_uri()) == []
    [remaining] = mlflow_runs()
    assert remaining.info.run_id == new.info.run_id
    assert remaining.data.tags[schema.TAG_REPLACED] == old.info.run_id
