"""What a run logs and prints is on file at once, whatever the disk does meanwhile; no store is asked."""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest

from cppo_lab import files, schema
from cppo_lab.launch.queues import record_dead_ends
from cppo_lab.runs.folder import (
    TRACEBACK,
    AlreadyRunning,
    Cause,
    read_status,
    run_lock,
    set_aside,
    write_status,
)
from cppo_lab.runs.recorder import Recorder, captured_output, record_end
from cppo_lab.runs.spool import End, RunRows, StepEvent, lines, newest_record, read_rows
from cppo_lab.runs.state import CAUSE_TEXTS, Queued
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.history import HISTORY, unpack
from tests.conftest import FINISHED
from tests.jobs import job
from tests.recorded import ended, mlflow_client, mlflow_run, mlflow_runs, sent
from tests.runs.test_folder import full


@pytest.fixture
def recorder(workspace: Path, tiny_spec: RunSpec) -> Recorder:
    return Recorder(tiny_spec, {}, workspace / "runs" / tiny_spec.run_id)


ENDS = [  # how; MLflow's status and ours, reason, cause
    (lambda run: run.finish(Outcome(schema.DONE, 3)), "FINISHED", "done", "", ""),
    (lambda run: run.finish(Outcome(schema.COLLAPSED, 3, "score fell")), "FINISHED", "collapsed", "score fell", ""),
    (lambda run: run.fail("ValueError: bad", "Traceback"), "FAILED", "failed", "ValueError: bad", Cause.ERROR),
    (lambda run: run.interrupt("by it"), "KILLED", "partial", "interrupted: by it at step 3", Cause.SIGNAL),
    # It died, and others write its end.
    (lambda run: record_dead_ends(run.folder.parent, [run.folder.name], Queued()), "KILLED", "partial",
     f"interrupted: {CAUSE_TEXTS[Cause.DIED]} at step 3", Cause.DIED),
]  # fmt: skip


def test_attempts_of_which_one_trained_several_runs_share_their_time(
    workspace: Path, tiny_spec: RunSpec
) -> None:
    write_status(workspace, {"status": "partial", "seconds": 100.0, "machine_seconds": 40.0})
    recorder = Recorder(tiny_spec, {}, workspace)
    recorder.together = 4
    recorder._began -= 1000  # of this attempt
    recorder.finish(FINISHED)
    status = read_status(workspace)
    assert 1100 <= status["seconds"] < 1200
    assert status["machine_seconds"] - 40 == pytest.approx((status["seconds"] - 100) / 4)


@pytest.mark.parametrize("end, mlflow, status, reason, cause", ENDS)
def test_how_a_run_ended_is_in_its_status_its_spool_and_the_store(
    recorder: Recorder, end: Callable[[Recorder], object], mlflow: str, status: str, reason: str, cause: str
) -> None:
    folder = recorder.folder
    recorder._started += 36_000  # since then the clock has been set back
    recorder.log(3, {"train/reward": 0.5})
    end(recorder)
    if cause != Cause.DIED:  # nothing after its end changes it: a signal or a fault before its process ends
        recorder.fail("SystemExit: terminated by SIGTERM", "traceback")
        recorder.interrupt("terminated by SIGTERM")
    assert {path.name for path in folder.parent.parent.iterdir()} == {"runs"}  # no store is made or asked for
    end_of_record, written = newest_record(folder).end, read_status(folder)
    assert (end_of_record.status, end_of_record.reason, end_of_record.step) == (status, reason, 3)
    assert (written["status"], written["reason"], written["cause"]) == (status, reason, cause)
    assert 0 <= written["seconds"] < 3600
    assert [path.read_text() for path in folder.glob(TRACEBACK)] == ["Traceback"] * (status == "failed")
    finished = status in schema.FINISHED
    assert not (finished and record_end(folder, schema.PARTIAL, "a result is never interrupted"))
    step = None if finished else "3"
    assert ended(mlflow_run(folder)) == (mlflow, status, step, reason or None)


@patch("cppo_lab.runs.recorder.STATUS_SECONDS", 0.0)
def test_a_step_that_is_trained_again_is_on_file_once_and_not_shown(
    recorder: Recorder, tiny_spec: RunSpec
) -> None:
    for step in range(4):
        recorder.log(step, {"train/reward": 0.5})
    recorder.interrupt("killed")
    again = Recorder(tiny_spec, {}, recorder.folder)
    again.begin(1)
    shown = []
    for step in range(5):
        again.log(step, {"train/reward": 0.7})
        status = read_status(recorder.folder)
        shown.append((status["step"], status["first_step"]))
    assert shown == [(3, None)] * 4 + [(4, 4)]  # its pace, too, is that of new steps
    steps = [line for line in lines(recorder.folder) if isinstance(line, StepEvent)]
    rewards = [(line.step, line.metrics["train/reward"]) for line in steps]
    assert rewards == [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5), (4, 0.7)]


def test_a_record_that_ends_on_a_full_disk_has_its_end_once_there_is_room(
    recorder: Recorder, tiny_spec: RunSpec
) -> None:
    recorder.log(0, {"train/reward": 0.5})
    recorder.interrupt("killed")
    again = Recorder(tiny_spec, {}, recorder.folder)
    with patch("cppo_lab.runs.spool.os.write", Mock(side_effect=OSError(28, "No space left on device"))):
        again.begin(None)
    again.log(0, {"train/reward": 0.7})
    ends = [line for line in lines(recorder.folder) if isinstance(line, End)]
    assert [end.record for end in ends] == [recorder.record_name] * 2 and "from scratch" in ends[1].reason
    record = newest_record(recorder.folder)
    assert record.begin.record == again.record_name != recorder.record_name
    assert [row.metrics["train/reward"] for row in record.rows.values()] == [0.7]
    assert sent(recorder.folder) == 2
    assert sorted(run.info.status for run in mlflow_runs()) == ["KILLED", "RUNNING"]
    again.log(1, {"train/reward": 0.9})
    again.finish(Outcome(schema.DONE, 1))  # two records are in one file, and each has its points alone
    sent(recorder.folder)
    client, steps = mlflow_client(), {}
    for run in mlflow_runs():
        history = Path(client.download_artifacts(run.info.run_id, HISTORY)).read_bytes()
        packed = unpack(history, HISTORY)["train/reward"][0].tolist()
        stored = [point.step for point in client.get_metric_history(run.info.run_id, "train/reward")]
        steps[run.info.status] = (stored, packed)
    assert steps == {"KILLED": ([0], [0]), "FINISHED": ([0, 1], [0, 1])}


def test_what_a_full_disk_cannot_take_is_written_with_the_next_file(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it does not take until the end: tests/tracking/test_upload.py."""
    with patch.object(files, "replacing", full):
        recorder.artifact("a.json", {"a": 1})
        assert not recorder.file("b", b"\xff")
    assert capsys.readouterr().err.count("could not be written: [Errno 28] No space left") == 1
    assert recorder.file("c", b"")
    assert [(recorder.folder / name).read_bytes() for name in ("a.json", "b")] == [b'{"a": 1}', b"\xff"]


def test_scores_that_are_not_finite_are_recorded_as_they_are_and_compared_with_nothing(
    recorder: Recorder,
) -> None:
    score = schema.validation_metric(schema.MEAN, recorder.spec.validation.samples)
    for step, value in enumerate((math.inf, 0.25, math.nan, -math.inf)):
        recorder.log(step, {score: value, "train/loss": value})
    recorder.interrupt("by SIGTERM")
    metrics = [row.metrics for row in read_rows(recorder.folder)]
    assert [(str(row["train/loss"]), row.get("val/best")) for row in metrics] == [
        ("inf", None), ("0.25", 0.25), ("nan", None), ("-inf", None),
    ]  # fmt: skip
    seen = RunRows(recorder.folder)  # as those who watch see them
    assert (len([*seen.news()]), seen.scores) == (4, {1: 0.25})
    status = read_status(recorder.folder)
    assert (status["score"], status["best"], status["best_step"]) == (0.25, 0.25, 1)


def test_who_watches_a_run_sees_the_attempt_that_replaces_its_result(recorder: Recorder) -> None:
    score = schema.validation_metric(schema.MEAN, 16)
    for step in range(5):
        recorder.log(step, {score: 0.5})
    recorder.finish(Outcome(schema.DONE, 4))
    seen = RunRows(recorder.folder)
    assert ([row.step for row in seen.news()], seen.step) == ([0, 1, 2, 3, 4], 4)
    set_aside(recorder.folder, "old")  # its files have the names of the new ones
    again = Recorder(recorder.spec, {}, recorder.folder)
    for step in range(9):
        again.log(step, {score: 0.25})
        assert [row.step for row in seen.news()] == [step]
    assert (seen.step, {*seen.scores.values()}) == (8, {0.25})


@pytest.mark.parametrize("broken", ["config.json", "spool", "status.json.partial"])
def test_a_run_that_cannot_write_at_its_start_says_why(
    workspace: Path, tiny_spec: RunSpec, broken: str
) -> None:
    place = workspace / "runs" / tiny_spec.run_id / broken
    place.mkdir(parents=True)  # a folder stands where the file should
    if broken == "spool":
        place.rmdir()
        place.write_text("a file stands where the folder should")
    with pytest.raises(OSError, match=broken):
        job(tiny_spec, workspace / "runs", tracking_uri()).run()
    [failed] = [run for run in mlflow_runs() if run.info.status == "FAILED"]
    assert re.search("IsADirectory|NotADirectory|FileExists", failed.data.tags[schema.TAG_REASON])


def test_an_interrupted_run_whose_job_is_given_up_says_why(recorder: Recorder, tiny_spec: RunSpec) -> None:
    recorder.interrupt("by it")
    training = replace(job(tiny_spec, recorder.folder.parent, tracking_uri()), uploads=False)
    training.give_up("no requeue is left")
    said = "interrupted: by it before its first step; no requeue is left"
    assert newest_record(recorder.folder).end.reason == said


def test_names_that_the_schema_lacks_are_programming_errors(recorder: Recorder) -> None:
    for step, metrics, said in (
        (1, {"train/rewardd": 1.0}, r"train/rewardd.*schema\.METRICS"),
        (1, {"train/reward": np.float32(0.5)}, r"train/reward' of step 1 is .*0\.5.*: log float\(\.\.\.\)"),
        (1, {"train/reward": None}, "is None: log float"),
        ("1", {}, "step '1' is logged"),
        (-1, {}, "step -1 is logged"),
    ):
        with pytest.raises(ValueError, match=said):
            recorder.log(step, metrics)
    with pytest.raises(ValueError, match=r"cppo\.warm.*schema\.TAGS_OF_CORES"):
        recorder.tag("cppo.warm", "x")
    for name in ("../mine.json", "/tmp/mine.json", "config.json", "./status.json", "spool/0001.jsonl", ""):
        with pytest.raises(ValueError, match=f"file '{name}' of a run: the name must be relative"):
            recorder.artifact(name, {})


def test_no_file_of_a_failed_run_has_a_password(recorder: Recorder) -> None:
    error = "OperationalError: postgresql://ada:{}@db:5432/mlflow is away"
    text = "Traceback (most recent call last):\n  ...\n{}\n"
    recorder.fail(error.format(SECRET), text.format(error.format(SECRET)))
    contents = {path.name: path.read_text() for path in recorder.folder.rglob("*") if path.is_file()}
    assert [name for name, content in contents.items() if SECRET in content] == []
    assert contents[TRACEBACK] == text.format(error.format("***"))
    assert read_status(recorder.folder)["reason"] == error.format("***")


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
    for cut in (lambda: slurm.write_text(""), slurm.unlink):
        cut()
        assert len(captured_output(tmp_path, starts)) == 1


OWN = "import json; from cppo_lab.runs.recorder import own_output; print('before', flush=True);"
OWN += "own = own_output(); open('own.json', 'w').write(json.dumps(own)); print('after')"


def test_own_output(workspace: Path) -> None:
    def own(files: str) -> dict[str, int]:
        subprocess.run(["bash", "-c", f'exec {files}; "$0" -c "$1"', sys.executable, OWN], check=True)
        return json.loads(Path("own.json").read_text())

    out = workspace / "job.out"
    out.write_text("of another\n")
    starts = own(">> job.out 2> job.err")
    assert starts == {str(out): len("of another\nbefore\n"), str(workspace / "job.err"): 0}
    assert captured_output(workspace / "run", starts) == {"output/job.out.txt": b"after\n"}
    assert [*own(">> job.out 2>&1")] == [str(out)]
    for outputs in ("> >(cat) 2> /dev/null", "> gone 2> /dev/null; rm gone", ">&- 2>&-"):
        assert own(outputs) == {}


@pytest.mark.parametrize("taken", [False, True])
def test_a_trainer_whose_lock_was_removed_records_nothing_more(
    workspace: Path, tiny_spec: RunSpec, taken: bool
) -> None:
    """Whoever takes the new lock goes on with the record."""
    folder = workspace / "runs" / tiny_spec.run_id
    with run_lock(folder):
        recorder = Recorder(tiny_spec, {}, folder)
        recorder.log(0, {"train/reward": 0.0})
        (folder / "lock").unlink()
        with run_lock(folder) if taken else contextlib.nullcontext():
            before = read_status(folder), recorder.spool.path.read_bytes()
            with pytest.raises(AlreadyRunning, match=r"the lock of run .* was removed"):
                recorder.log(1, {"train/reward": 0.1})
            recorder.fail("its process goes on", "traceback")
            recorder.interrupt("by a test")
            recorder.finish(FINISHED)
            assert (read_status(folder), recorder.spool.path.read_bytes()) == before
