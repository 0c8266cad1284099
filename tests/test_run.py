"""What an attempt does to its own process."""

import os
import signal

import pytest

from cppo_lab.run import Attempt, Interrupted, _prepare_process, _terminate, describe
from cppo_lab.spec import RunSpec


@pytest.mark.parametrize(("given", "seen"), [(None, None), ("1", "1"), ("", "")])
def test_a_run_sees_the_devices_it_was_given(
    tiny_spec: RunSpec,
    workspace: object,
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    seen: str | None,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # what submitit's local executor sets
    monkeypatch.setattr("signal.signal", lambda *_: None)
    attempt = Attempt(tiny_spec, runs=None, uri="", threads=3, visible_devices=given)  # type: ignore[arg-type]
    _prepare_process(attempt)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen
    assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("bad\nmore"), "ValueError: bad"), (KeyboardInterrupt(), "KeyboardInterrupt")],
)
def test_a_reason_is_one_line(error: BaseException, line: str) -> None:
    assert describe(error) == line


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGTERM, "terminated by SIGTERM"),
        (signal.SIGUSR2, r"terminated by SIGUSR2 \(time limit or preemption\)"),
    ],
)
def test_a_signal_is_an_interruption_and_a_second_one_changes_nothing(number: int, text: str) -> None:
    before = {other: signal.getsignal(other) for other in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        with pytest.raises(Interrupted, match=f"^{text}$"):
            _terminate(number, None)
        for other in before:
            os.kill(os.getpid(), other)
    finally:
        for other, handler in before.items():
            signal.signal(other, handler)
