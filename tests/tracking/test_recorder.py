"""What a run logs and prints is on file at once, whatever the disk does meanwhile; no store is asked."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run

from cppo_lab import files as safe_open
from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import AlreadyRunning, held, read_status, write_status
from cppo_lab.runs.recorder import Recorder, captured_output, close_dead
from cppo_lab.runs.spool import newest_record, read_rows
from cppo_lab.runs.tags import flatten
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import ensure_experiment, open_client
from cppo_lab.tracking.read import attempts
from tests.conftest import FINISHED
from tests.jobs import job
from tests.recorded import mlflow_run, points


@pytest.fixture
def recorder(workspace: Path, tiny_spec: RunSpec) -> Recorder:
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    return Recorder(tiny_spec, {}, folder)


def recorded(recorder: Recorder) -> Run:
    return mlflow_run(recorder.folder)


def test_no_store_is_made_or_asked_for(recorder: Recorder, workspace: Path) -> None:
    recorder.begin(None)
    recorder.log(1, {"train/reward": 0.5})
    recorder.finish(FINISHED)
    assert {path.name for path in workspace.iterdir()} == {"runs"}
    assert [row.metrics for row in read_rows(recorder.folder)] == [{"train/reward": 0.5}]


def test_more_points_than_one_request_takes(recorder: Recorder) -> None:
    names = [metric.name for metric in schema.METRICS]
    for step in range(120):
        recorder.log(step, dict.fromkeys(names, float(step)))
    recorder.finish(FINISHED)
    recorded(recorder)
    for name in names:
        assert [point[:2] for point in points(recorder.folder, name)] == [(n, float(n)) for n in range(120)]


def test_a_collapse_is_a_result_with_its_reason(recorder: Recorder) -> None:
    recorder.log(3, {"train/reward": 0.0})
    recorder.finish(Outcome(schema.COLLAPSED, 3, "score fell"))
    run = recorded(recorder)
    assert run.info.status == "FINISHED"
    assert run.data.tags[schema.TAG_STATUS] == schema.COLLAPSED
    assert run.data.tags[schema.TAG_REASON] == "score fell"
    assert read_status(recorder.folder)["status"] == schema.COLLAPSED


def test_artifacts_reach_the_store(recorder: Recorder) -> None:
    recorder.artifact("diagnostics/positions.json", {"position": [1, 2]})
    recorded(recorder)
    recorder.artifact("diagnostics/positions.json", {"position": [1, 2, 3]})
    recorder.finish(FINISHED)
    run = recorded(recorder)
    path = open_client(tracking_uri()).download_artifacts(run.info.run_id, "diagnostics/positions.json")
    assert json.loads(Path(path).read_text()) == {"position": [1, 2, 3]}


def test_nothing_after_its_end_makes_a_finished_run_fail(recorder: Recorder) -> None:
    """A signal or a fault between the end of a run and that of its process."""
    recorder.finish(FINISHED)
    recorder.fail("SystemExit: terminated by SIGTERM", "traceback")
    recorder.interrupt("terminated by SIGTERM")
    run = recorded(recorder)
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
    assert schema.TAG_REASON not in run.data.tags
    assert read_status(recorder.folder)["status"] == schema.DONE


@pytest.mark.parametrize("broken", ["config.json", "spool", "status.json.partial"])
def test_a_run_that_cannot_write_at_its_start_says_why(
    workspace: Path, tiny_spec: RunSpec, broken: str
) -> None:
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    if broken == "spool":
        (folder / broken).write_text("a file stands where the folder should")
    else:
        (folder / broken).mkdir()  # a folder stands where the file should
    attempt = job(tiny_spec, workspace / "runs", tracking_uri())
    with pytest.raises(OSError, match=broken):
        attempt.run()
    experiment = open_client(tracking_uri()).get_experiment_by_name("cppo-mini")
    assert experiment is not None
    runs = open_client(tracking_uri()).search_runs([experiment.experiment_id])
    failed = [run for run in runs if run.info.status == "FAILED"]
    assert failed
    assert any(
        word in failed[0].data.tags[schema.TAG_REASON]
        for word in ("IsADirectory", "NotADirectory", "FileExists")
    )


def test_unknown_metric_is_a_programming_error(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match=r"train/rewardd.*schema\.METRICS"):
        recorder.log(1, {"train/rewardd": 1.0})


def test_failure_leaves_status_reason_and_traceback(recorder: Recorder) -> None:
    recorder.log(1, {"train/reward": 0.5})
    recorder.fail("ValueError: bad", "Traceback ...")
    run = recorded(recorder)
    assert run.info.status == "FAILED"
    assert run.data.tags[schema.TAG_REASON] == "ValueError: bad"
    assert run.data.tags[schema.TAG_STEP] == "1"
    assert [point[:2] for point in points(recorder.folder, "train/reward")] == [(1, 0.5)]
    assert read_status(recorder.folder)["reason"] == "ValueError: bad"
    path = open_client(tracking_uri()).download_artifacts(run.info.run_id, "traceback.txt")
    assert Path(path).read_text() == "Traceback ..."


REPLACING = safe_open.replacing


@contextlib.contextmanager
def full(path: Path) -> Iterator[Any]:
    """What `replacing` comes to on a full disk."""
    with REPLACING(path):
        raise OSError(28, "No space left on device")
    yield


def test_a_full_disk_does_not_hide_the_reason(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(safe_open, "replacing", full)
        recorder.fail("OSError: [Errno 28] No space left on device", "Traceback ...")
    run = recorded(recorder)
    assert run.info.status == "FAILED"
    assert "No space left" in run.data.tags[schema.TAG_REASON]


def test_the_end_of_an_attempt_that_died_is_written_by_others(recorder: Recorder) -> None:
    recorder.log(3, {"train/reward": 0.5})
    assert close_dead(recorder.folder, schema.PARTIAL, "interrupted: killed")
    run = recorded(recorder)
    assert (run.info.status, run.data.tags[schema.TAG_STEP]) == ("KILLED", "3")
    assert run.data.tags[schema.TAG_REASON] == "interrupted: killed"


def test_a_result_is_never_made_an_interruption(recorder: Recorder) -> None:
    recorder.finish(FINISHED)
    assert not close_dead(recorder.folder, schema.PARTIAL, "interrupted: killed")
    record = newest_record(recorder.folder)
    assert record is not None
    assert record.end is not None
    assert record.end.status == schema.DONE


def test_a_status_on_a_full_disk_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(tmp_path, {"step": 1, "reason": "a long one"})

    monkeypatch.setattr(safe_open, "replacing", full)
    write_status(tmp_path, {"step": 2})
    assert (read_status(tmp_path), len(list(tmp_path.iterdir()))) == ({"step": 2}, 1)
    (tmp_path / "status.json").unlink()
    with pytest.raises(OSError, match="No space left"):
        write_status(tmp_path, {"step": 3})
    assert list(tmp_path.iterdir()) == []


def test_half_written_status_reads_as_none(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"status": "runn')
    assert read_status(tmp_path) == {}


def test_flatten_leaves_out_what_does_not_apply() -> None:
    assert flatten({"a": {"b": 1, "c": None}, "d": [1, 2]}) == {"a.b": "1", "d": "[1, 2]"}


def test_deleted_experiment_is_named(workspace: Path) -> None:
    uri = tracking_uri()
    client = open_client(uri)
    client.delete_experiment(ensure_experiment(client, uri, "cppo-mini"))
    with pytest.raises(UserError, match="'cppo-mini' was deleted"):
        ensure_experiment(client, uri, "cppo-mini")


def test_attempts_of_an_empty_store(workspace: Path) -> None:
    assert attempts(open_client(tracking_uri()), "cppo-mini", ["abc"]) == {"abc": []}


SECRET = "s3cret"


def printed(folder: Path, name: str, text: str, age: int = 0) -> Path:
    path = folder / "attempts" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, errors="surrogateescape", newline="")
    os.utime(path, (1_700_000_000 - age,) * 2)
    return path


def test_short_output_is_whole_masked_and_in_order(tmp_path: Path) -> None:
    assert captured_output(tmp_path, {}) == {}
    printed(tmp_path, "9_0_log.out", f"postgresql://ada:{SECRET}@db/x\nuri=http://{SECRET}@h\n", age=100)
    printed(tmp_path, "10_0_log.err", "caf\udce9 \U0001f30d\n", age=50)
    printed(tmp_path, "10_0_log.out", "second\r\n", age=10)
    printed(tmp_path, "11_0_log.out", "")
    path = printed(tmp_path, "10_0_result.pkl", "not printed")
    path.with_name("12_0_log.out").symlink_to(path)
    assert list(captured_output(tmp_path, {str(path.with_name("12_0_log.out")): 0}).items()) == [
        ("output/9_0_log.out.txt", b"postgresql://ada:***@db/x\nuri=http://***@h\n"),
        ("output/10_0_log.err.txt", b"caf\xe9 \xf0\x9f\x8c\x8d\n"),
        ("output/10_0_log.out.txt", b"second\r\n"),
    ]


def test_long_output_keeps_head_and_tail(tmp_path: Path) -> None:
    text = "".join(f"line {i:06d}\n" for i in range(50_000))
    printed(tmp_path, "0_0_log.out", "short\n", age=9)
    paths = [printed(tmp_path, f"{job}_0_log.out", text, age=9 - job) for job in (1, 2)]
    short, *long = captured_output(tmp_path, {}, most_bytes=20_006).values()
    assert short == b"short\n"
    for content, path in zip(long, paths, strict=True):
        head, line, tail = re.split(r"\n\[\.\.\. (.*)\n", content.decode())
        assert text.startswith(head) and text.endswith(tail)
        assert 4900 < len(head) <= 5000 and 4900 < len(tail) <= 5000
        left = len(text) - len(head + tail)
        assert line == f"{left:,} of 600,000 bytes are left out here: see {path} ...]"


@pytest.mark.parametrize(
    "text", [" ".join([f"http://ada:{SECRET}@host"] * 100), f"http://{SECRET}@host" * 100]
)
def test_no_cut_goes_through_a_password(tmp_path: Path, text: str) -> None:
    """Wherever the cut falls, with spaces and without."""
    path = printed(tmp_path, "1_0_log.out", text)
    for most in range(20, 160):
        [content] = captured_output(tmp_path, {}, most_bytes=most).values()
        assert not re.search("cret|s3c?|ada:s", content.decode().replace(str(path), ""))


def test_other_files_begin_where_the_attempt_did(tmp_path: Path) -> None:
    slurm = tmp_path / "elsewhere" / "7_log.out"
    slurm.parent.mkdir()
    slurm.write_text("another run's\nours\n")
    starts = {str(slurm): len("another run's\n")}
    assert captured_output(tmp_path, starts) == {"output/7_log.out.txt": b"ours\n"}
    path = printed(tmp_path, "7_log.out", "of the launcher\n", age=60)
    assert captured_output(tmp_path, starts | {str(path): 3}) == {
        "output/7_log.out.txt": b"of the launcher\n",
        "output/1_7_log.out.txt": b"ours\n",
    }
    slurm.write_text("")  # cut off
    assert len(captured_output(tmp_path, starts)) == 1
    slurm.unlink()
    assert len(captured_output(tmp_path, starts)) == 1


OWN = "import json; from cppo_lab.runs.recorder import own_output; print('before', flush=True);"
OWN += "own = own_output(); open('own.json', 'w').write(json.dumps(own)); print('after')"


def test_own_output(workspace: Path) -> None:
    def own(files: str) -> dict[str, int]:
        subprocess.run(["bash", "-c", f'exec {files}; "$0" -c "$1"', sys.executable, OWN], check=True)
        return json.loads(Path("own.json").read_text())

    out, err = workspace / "job.out", workspace / "job.err"
    out.write_text("of another\n")
    starts = own(">> job.out 2> job.err")
    assert starts == {str(out): len("of another\nbefore\n"), str(err): 0}
    assert captured_output(workspace / "run", starts) == {"output/job.out.txt": b"after\n"}
    assert [*own(">> job.out 2>&1")] == [str(out)]
    for files in ("> >(cat) 2> /dev/null", "> gone 2> /dev/null; rm gone", ">&- 2>&-"):
        assert own(files) == {}


@pytest.mark.parametrize("taken", [False, True])
def test_a_trainer_whose_lock_was_removed_records_nothing_more(
    workspace: Path, tiny_spec: RunSpec, taken: bool
) -> None:
    """Whoever takes the new lock goes on with the record."""
    folder = workspace / "runs" / tiny_spec.run_id
    with contextlib.ExitStack() as locks:
        locks.enter_context(held(folder))
        recorder = Recorder(tiny_spec, {}, folder)
        recorder.begin(None)
        recorder.log(0, {"train/reward": 0.0})
        (folder / "lock").unlink()
        if taken:
            locks.enter_context(held(folder))
        before = read_status(folder), recorder.spool.path.read_bytes()
        with pytest.raises(AlreadyRunning, match=r"the lock of run .* was removed") as raised:
            recorder.log(1, {"train/reward": 0.1})
        recorder.fail(str(raised.value), "traceback")
        recorder.interrupt("by a test")
        recorder.finish(FINISHED)
        assert (read_status(folder), recorder.spool.path.read_bytes()) == before
