"""What an attempt does to its own process."""

import contextlib
import io
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from cppo_lab import schema
from cppo_lab.errors import Interrupted, UserError, describe, find_interruption, handle_signals
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import prepare_process
from cppo_lab.runs.folder import IDENTITY, read_status
from cppo_lab.runs.machine import Environment
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.spool import newest_record
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import FINISHED
from tests.jobs import job
from tests.recorded import upload_ended


@pytest.mark.parametrize("given", [None, "1", ""])
def test_a_run_sees_the_devices_it_was_given(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """And multiplies in float32, whatever an image has set."""
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("OMP_PROC_BIND", "close")  # of the user's shell: every run would be on the same core
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # what submitit's local executor sets
    prepare_process(3, given)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == given
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_PROC_BIND"]) == ("3", "false")
    assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" not in os.environ


@pytest.mark.parametrize(
    "error, line",
    [(ValueError("\x1b[2Jbad\nmore"), r"ValueError: \x1b[2Jbad"), (KeyboardInterrupt(), "KeyboardInterrupt")],
)
def test_a_reason_is_one_line(error: BaseException, line: str) -> None:
    assert describe(error) == line


@pytest.mark.parametrize(
    "number, text",
    [
        (signal.SIGTERM, "terminated by SIGTERM"),
        (signal.SIGUSR2, r"terminated by SIGUSR2 \(time limit or preemption\)"),
    ],
)
def test_a_signal_is_an_interruption_and_a_second_one_changes_nothing(number: int, text: str) -> None:
    handle_signals()
    with pytest.raises(Interrupted, match=f"^{text}$"):
        signal.raise_signal(number)
    for other in (signal.SIGTERM, signal.SIGUSR2):
        signal.raise_signal(other)


@pytest.fixture
def training(tiny_spec: RunSpec, workspace: Path) -> TrainingJob:
    """The job of a run in the working folder."""
    return job(tiny_spec, workspace / "runs", tracking_uri())


def how_it_ended(training: TrainingJob) -> tuple[str, str]:
    """Status and reason of its run."""
    status = read_status(training.attempts[0].folder)
    return str(status["status"]), str(status["reason"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_checkpoint_is_written_is_an_interruption_too(
    number: signal.Signals, training: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.save, cut off, raises a RuntimeError of its own."""
    save, cut = torch.save, list[object]()

    class CutOff(io.BytesIO):
        """A checkpoint's file, in the middle of whose writing the signal comes."""

        def write(self, data: Any) -> int:
            written = super().write(data)
            if not cut:
                cut.append(self)
                signal.raise_signal(number)
            return written

    def save_cut_off(value: Any, file: Any) -> None:
        is_checkpoint = isinstance(value, dict) and "run_id" in value  # else the weights of a warm start
        save(value, CutOff() if is_checkpoint else file)

    monkeypatch.setattr("torch.save", save_cut_off)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Interrupted):
        training.run()
    assert len(cut) == 1
    status, reason = how_it_ended(training)
    assert status == schema.PARTIAL
    assert reason.startswith(f"interrupted: terminated by {number.name}")


def test_a_continued_run_keeps_its_sweeps_and_its_parent(
    training: TrainingJob, tiny_spec: RunSpec, no_training: None
) -> None:
    """Also where the launcher gives it none of them again, as `cppo tune` does, or is of another sweep."""
    [attempt] = training.attempts
    begun = {schema.sweep_tag("first"): "a", schema.sweep_tag("second"): "b", schema.TAG_PARENT: "trial"}
    Recorder(tiny_spec, begun, attempt.folder).interrupt("killed")
    replace(training, attempts=(replace(attempt, tags={schema.sweep_tag("second"): "c"}),)).run()
    assert read_status(attempt.folder)["variants"] == "first=a;second=c"
    record = newest_record(attempt.folder)
    assert record and record.begin.tags[schema.TAG_PARENT] == "trial"


def test_a_run_that_cannot_begin_its_record_has_failed_and_says_why(
    training: TrainingJob, workspace: Path
) -> None:
    (workspace / "runs").mkdir()
    (workspace / "runs" / IDENTITY).touch()
    with pytest.raises(UserError, match="identity is damaged"):
        training.run()
    status, reason = how_it_ended(training)
    assert status == schema.FAILED
    assert "identity is damaged: remove it" in reason


NO_OUTCOMES = [
    None,
    "done",
    Outcome("finished", 4),
    Outcome(schema.DONE, None),
    Outcome(schema.DONE, 4, None),
]


@pytest.mark.parametrize("outcome", NO_OUTCOMES)
def test_what_is_no_outcome_is_no_result(
    outcome: Any, training: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", lambda _: Mock(return_value=outcome))
    with pytest.raises(UserError):
        training.run()
    status, reason = how_it_ended(training)
    assert status == schema.FAILED
    assert f"core 'mini' ends its run with {outcome!r}: it must be" in reason


def test_a_run_whose_datasets_fail_says_why(training: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cppo_lab.runs.attempt.load_part", lambda *_: Mock(side_effect=RuntimeError("no licence"))
    )
    with pytest.raises(RuntimeError):
        training.run()
    assert how_it_ended(training) == (schema.FAILED, "RuntimeError: no licence")


def test_a_signal_while_the_record_begins_is_recorded(
    training: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> Environment:
        signal.raise_signal(signal.SIGTERM)
        return Environment({}, [])

    monkeypatch.setattr("cppo_lab.runs.attempt.environment", told)
    with pytest.raises(Interrupted):
        training.run()
    said = "interrupted: terminated by SIGTERM before its first step"
    assert how_it_ended(training) == (schema.PARTIAL, said)


@pytest.mark.parametrize("end, status", [(FINISHED, schema.DONE), (ValueError("bad"), schema.FAILED)])
def test_a_signal_while_the_end_is_recorded_does_not_change_it(
    end: Outcome | Exception, status: str, training: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.runs.recorder._keep_output", lambda *_: signal.raise_signal(signal.SIGTERM))
    train = Mock(side_effect=[end])
    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", lambda _: train)
    with contextlib.nullcontext() if end is FINISHED else pytest.raises(ValueError, match="bad"):
        training.run()
    assert how_it_ended(training)[0] == status
    with pytest.raises(Interrupted):  # the launcher's next run, which was told to end as well
        training.run()


def test_a_signal_in_the_last_words_only_hurries_them(
    training: TrainingJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run has ended and its store is away: a launcher's SIGTERM must not make an interruption of it."""
    tries: list[str] = []

    def away(*_: object) -> str:
        if not tries:
            signal.raise_signal(signal.SIGTERM)
        tries.append("nobody answers")
        return tries[-1]

    monkeypatch.setattr("cppo_lab.tracking.uploader.HURRY_SECONDS", 0.0)
    monkeypatch.setattr("cppo_lab.tracking.uploader.upload_once", away)
    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", lambda _: Mock(return_value=FINISHED))
    with pytest.raises(Interrupted):  # afterwards: it was held
        replace(training, uri="http://127.0.0.1:9").run()
    upload_ended()
    assert "`cppo sync` uploads it" in capsys.readouterr().err
    assert how_it_ended(training)[0] == schema.DONE


@pytest.mark.parametrize("code, number", [(int(signal.SIGTERM), signal.SIGTERM), (1, None)])
def test_the_exit_by_which_rays_handler_ends_its_start_is_an_interruption(
    code: int, number: int | None
) -> None:
    error = RuntimeError("Ray's processes have ended")
    error.__cause__ = SystemExit(code)
    assert getattr(find_interruption(error), "number", None) == number
