"""Messages to a webhook on this machine, which may be dead, slow, or send elsewhere."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.runs.folder import run_lock, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import services
from cppo_lab.tracking.services import notifying, webhook
from tests.conftest import TINY, Command, user_error
from tests.tracking.fake_server import FakeServer, fake_server
from tests.waiting import until

SECRET = "T0SECRET/B0SECRET"
LATER = 1e12  # than any launch
LAUNCH = ["launch", "quickstart", *TINY, "variant=cppo", "seed=0,1,2", "launcher=inline"]


@pytest.fixture
def receiver() -> Iterator[FakeServer]:
    """A webhook, which takes whatever comes."""
    with fake_server() as server:
        server.endpoint = ""
        yield server


def url(receiver: FakeServer) -> str:
    return f"{receiver.uri}/{SECRET}"


def bodies(receiver: FakeServer) -> list[dict[str, Any]]:
    return [json.loads(body) for body in receiver.received]


def events(receiver: FakeServer) -> list[str]:
    return [body["event"] for body in bodies(receiver)]


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three runs the first is done, the second collapses, the third fails."""

    def train(spec: RunSpec, recorder: Recorder, resources: object) -> Outcome:
        recorder.begin(None)
        recorder.log(1, {schema.validation_metric(schema.MEAN, 16): 0.5})
        if spec.seed == 2:
            raise RuntimeError("<!channel> lost & gone")
        return Outcome(schema.COLLAPSED, 1, "fell") if spec.seed else Outcome(schema.DONE, 4)

    monkeypatch.delenv(services.NOTIFY_VARIABLE, raising=False)
    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", lambda name: train)


NO_WEBHOOKS = [
    "ftp://h/x", "//h/x", "h", "http://", "http://h:99999/", "http://h:0/", "http://[x/", "https://me:pw@h/x",
    "https://token@h/x", "http://h/a b", "http://h/\n", "http://h/é",
]  # fmt: skip


@pytest.mark.parametrize("url", NO_WEBHOOKS)
def test_what_is_no_webhook_is_refused_and_not_shown(url: str) -> None:
    """By a launch: tests/hostile."""
    with user_error(r"notify\.url") as error:
        webhook(url)
    assert url == "h" or url not in str(error.value)


def test_each_end_that_matters_is_one_message(cppo: Command, receiver: FakeServer) -> None:
    cppo(*LAUNCH, f"notify.url={url(receiver)}", code=4)
    collapsed, failed, ended = bodies(receiver)
    run = collapsed["run_id"]
    assert collapsed == {
        "event": "collapsed",
        "run_id": run,
        "variants": "quickstart=cppo",
        **{"rule": "cppo", "model": "mini_base", "seed": 1, "step": 1, "t_stop": 4, "reason": "fell"},
        "text": f"run {run} (quickstart=cppo, mini_base, seed 1) collapsed at step 1: fell",
    }
    assert failed["text"].endswith("seed 2) failed at step 1: RuntimeError: <!channel> lost & gone")
    assert ended == {
        **{"event": "ended", "done": 2, "failed": 1, "left": 0},
        "text": "all runs of the launch have ended: 2 done, 1 failed, 0 left",
    }
    # A retry that fails for the same reason has been told of; its end is new.
    cppo("retry", *LAUNCH[1:], f"notify.url={url(receiver)}", "--failed", code=4)
    assert events(receiver)[3:] == ["ended"]
    cppo(*LAUNCH, code=4)
    assert len(receiver.received) == 4


def test_early_signs_are_told_once_a_run_and_then_its_end(folder: Path, receiver: FakeServer) -> None:
    status = {"run_id": folder.name, "status": "running", "updated": 9.0, "step": 5, "best": 0.5}
    messages = services._Messages(url(receiver), [folder], 1.0)
    write_status(folder, {**status, "status": "failed", "updated": 0.5})  # of an earlier launch
    assert messages.of_runs() and not receiver.received
    for score in (0.5, 0.02, 0.01, 0.5):
        write_status(folder, {**status, "score": score})
        assert messages.of_runs()
    [signs] = bodies(receiver)
    assert (signs["event"], signs["step"]) == ("early signs", 5)
    assert "early signs at step 5: early signs of a collapse: score 2.0 %" in signs["text"]
    write_status(folder, {**status, "status": "stopped", "reason": "signs", "score": 0.5})
    assert messages.of_runs() and messages.folders == []
    assert events(receiver) == ["early signs", "stopped"]


def test_a_launch_that_fails_has_told_of_its_runs(
    folder: Path, receiver: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(services.NOTIFY_VARIABLE, url(receiver))
    with pytest.raises(KeyError), services.notifying([folder], [folder], "mark", waits=True):
        write_status(folder, {"run_id": folder.name, "status": "failed", "updated": LATER})
        raise KeyError
    assert events(receiver) == ["failed", "ended"]
    assert "failed before its first step: " in bodies(receiver)[0]["text"]


def test_slack_has_its_form_and_nobody_is_called(folder: Path, receiver: FakeServer) -> None:
    write_status(folder, {"status": "failed", "reason": "<!channel> lost & gone", "updated": LATER})
    services._Messages(f"{url(receiver)}#slack", [folder], 0.0).of_runs()
    [body] = bodies(receiver)
    assert list(body) == ["text"] and body["text"].endswith(": &lt;!channel&gt; lost &amp; gone")


def test_the_address_is_nowhere(
    workspace: Path, receiver: FakeServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver.status = 500
    assert main([*LAUNCH, f"notify.url={url(receiver)}"]) == 4
    monkeypatch.setenv(services.NOTIFY_VARIABLE, url(receiver))
    assert main(["retry", *LAUNCH[1:], "--failed"]) == 4
    said = capfd.readouterr()
    assert "the webhook of notify.url does not take messages: HTTP 500" in said.err
    assert "SECRET" not in said.out + said.err
    for path in workspace.rglob("*"):
        assert not path.is_file() or b"SECRET" not in path.read_bytes(), path


def test_a_redirect_is_refused(receiver: FakeServer) -> None:
    with fake_server() as other:
        receiver.headers = {"Location": url(other)}
        for receiver.status in (301, 302, 303, 307, 308):
            assert services.post(url(receiver), b"{}") == f"HTTP {receiver.status}"
        assert other.received == []


def test_a_dead_webhook_loses_no_message_and_a_slow_one_delays_no_run(
    workspace: Path, receiver: FakeServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*LAUNCH, "notify.url=http://127.0.0.1:9"]) == 4
    assert "does not take messages: ConnectionRefusedError" in capfd.readouterr().err
    assert not list(workspace.glob("runs/*/notified-*"))
    receiver.slow = True
    monkeypatch.setattr("cppo_lab.tracking.services.NOTIFY_LAST_SECONDS", 0.5)  # in which the launch gives up
    assert main(["retry", *LAUNCH[1:], "--failed", f"notify.url={url(receiver)}"]) == 4
    # No answer: it may have arrived, and is not sent again. The launch has not waited for the next one.
    until("the message is there", lambda: receiver.received)
    assert len(receiver.received) == len(list(workspace.glob("runs/*/notified-*"))) == 1


def test_messages_go_on_when_the_launcher_is_killed(folder: Path, receiver: FakeServer) -> None:
    program = (
        "import sys, time; from pathlib import Path; from cppo_lab.tracking.services import notifying\n"
        "with notifying([Path(sys.argv[1])], [Path(sys.argv[1])], 'm', True):\n"
        "    print(flush=True); time.sleep(600)\n"
    )
    environment = {**os.environ, services.NOTIFY_VARIABLE: url(receiver)}
    with run_lock(folder):
        owner = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)], env=environment, stdout=subprocess.PIPE
        )
        assert owner.stdout.readline()
        [process] = psutil.Process(owner.pid).children()

        def ignores() -> bool:
            """What Slurm sends to all processes of a job."""
            status = Path(f"/proc/{process.pid}/status").read_text()
            mask = int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16)
            return all(mask >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGUSR2))

        until("it has begun", ignores)
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
        write_status(folder, {"status": "failed", "reason": "late", "updated": LATER})
    until("the message is there", lambda: len(receiver.received) == 1)
    assert bodies(receiver)[0]["reason"] == "late"


def test_of_two_senders_one_sends(folder: Path, receiver: FakeServer) -> None:
    senders = [services._Messages(url(receiver), [folder], 0.0) for _ in range(8)]
    write_status(folder, {"status": "failed", "reason": "x", "updated": LATER})
    threads = [threading.Thread(target=sender.of_runs) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receiver.received) == 1


def test_jobs_that_nobody_waits_for_tell_the_end_once_from_the_folders(
    workspace: Path, receiver: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(services.NOTIFY_VARIABLE, url(receiver))
    launch = [workspace / "runs" / (letter * 12) for letter in "abcd"]
    for folder in launch:
        folder.mkdir(parents=True)
    ends: list[dict[str, Any]] = [
        {"status": "done"},
        {"status": "partial", "reason": "interrupted", "cause": "signal"},  # its job may be requeued
        {"status": "", "reason": "the first 3 runs of the launch failed alike"},
        {"status": "failed", "reason": "x"},
    ]
    for folder, end in zip(launch, ends, strict=True):
        with notifying([folder], launch, "m", waits=False):
            write_status(folder, {**end, "updated": LATER})
    assert events(receiver) == ["failed"]
    for _ in range(2):
        with notifying([launch[1]], launch, "m", waits=False):
            write_status(launch[1], {"status": "collapsed", "reason": "y", "updated": LATER})
    assert events(receiver) == ["failed", "collapsed", "ended"]
    assert bodies(receiver)[-1]["text"].endswith(": 2 done, 1 failed, 1 left")
