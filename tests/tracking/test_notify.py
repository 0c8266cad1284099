"""Messages to a webhook on this machine, which may be dead, slow, or send elsewhere."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.files import redacted
from cppo_lab.runs import attempt as attempts
from cppo_lab.runs.folder import held, read_status, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import notify
from cppo_lab.tracking.notify import notifying, webhook
from tests.conftest import TINY, Command
from tests.waiting import until

SECRET = "T0SECRET/B0SECRET"
LAUNCH = ["launch", "quickstart", *TINY, "variant=cppo", "seed=0,1,2", "launcher=inline"]


class Receiver(ThreadingHTTPServer):
    """A webhook: it keeps what it gets, and answers with `code`, after the event `go` if it is slow."""

    daemon_threads = True

    def __init__(self, code: int = 200, location: str = "", slow: bool = False) -> None:
        self.code, self.location, self.go = code, location, threading.Event()
        self.bodies: list[dict[str, Any]] = []
        if not slow:
            self.go.set()
        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{SECRET}"


class Answer(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.go.wait()
        self.send_response(self.server.code)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def receive() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def make(*arguments: Any, **others: Any) -> Receiver:
        made.append(Receiver(*arguments, **others))
        return made[-1]

    yield make
    for receiver in made:
        receiver.go.set()
        receiver.shutdown()
        receiver.server_close()


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three runs the first is done, the second collapses, the third fails."""

    def train(spec: RunSpec, recorder: Recorder, resources: object) -> Outcome:
        recorder.begin(None)
        recorder.log(1, {schema.validation_metric(schema.MEAN, 16): 0.5})
        if spec.seed == 2:
            raise RuntimeError("<!channel> lost & gone")
        return Outcome(schema.COLLAPSED, 1, "fell") if spec.seed else Outcome(schema.DONE, 4)

    monkeypatch.delenv(notify.VARIABLE, raising=False)
    monkeypatch.setattr(attempts, "load_core", lambda name: train)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://h/x", "//h/x", "h", "http://", "http://h:99999/", "http://h:0/", "http://[x/"),
        *("https://me:pw@h/x", "https://token@h/x", "http://h/a b", "http://h/\n", "http://h/é"),
    ],
)
def test_what_is_no_webhook_is_refused_and_not_shown(url: str) -> None:
    """By a launch: tests/hostile."""
    with pytest.raises(UserError, match=r"notify\.url") as error:
        webhook(url)
    assert url == "h" or url not in str(error.value)


def test_each_end_that_matters_is_one_message(cppo: Command, receive: Callable[..., Receiver]) -> None:
    receiver = receive()
    cppo(*LAUNCH, f"notify.url={receiver.url}", code=4)
    collapsed, failed, ended = receiver.bodies
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
    cppo("retry", *LAUNCH[1:], f"notify.url={receiver.url}", "--failed", code=4)
    assert [body["event"] for body in receiver.bodies[3:]] == ["ended"]
    cppo(*LAUNCH, code=4)
    assert len(receiver.bodies) == 4


def test_early_signs_are_told_once_a_run_and_then_its_end(
    tmp_path: Path, receive: Callable[..., Receiver]
) -> None:
    folder, receiver = tmp_path / ("a" * 12), receive()
    folder.mkdir()
    status = {"run_id": folder.name, "status": "running", "updated": 9.0, "step": 5, "best": 0.5}
    messages = notify._Messages(receiver.url, [folder], 1.0)
    for score in (0.5, 0.02, 0.01, 0.5):
        write_status(folder, {**status, "score": score})
        assert messages.of_runs()
    [signs] = receiver.bodies
    assert (signs["event"], signs["step"]) == ("early signs", 5)
    assert "early signs at step 5: early signs of a collapse: score 2.0 %" in signs["text"]
    write_status(folder, {**status, "status": "stopped", "reason": "signs", "score": 0.5})
    assert messages.of_runs() and messages.folders == []
    assert [body["event"] for body in receiver.bodies] == ["early signs", "stopped"]


def test_slack_has_its_form_and_nobody_is_called(cppo: Command, receive: Callable[..., Receiver]) -> None:
    receiver = receive()
    cppo(*LAUNCH, f"notify.url='{receiver.url}#slack'", code=4)
    assert [list(body) for body in receiver.bodies] == [["text"]] * 3
    assert receiver.bodies[1]["text"].endswith("RuntimeError: &lt;!channel&gt; lost &amp; gone")


def test_the_address_is_nowhere(
    workspace: Path,
    receive: Callable[..., Receiver],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    receiver = receive(500)
    assert main([*LAUNCH, f"notify.url={receiver.url}"]) == 4
    monkeypatch.setenv(notify.VARIABLE, receiver.url)
    assert main(["retry", *LAUNCH[1:], "--failed"]) == 4
    said = capfd.readouterr()
    assert "the webhook of notify.url does not take messages: HTTP 500" in said.err
    assert "SECRET" not in said.out + said.err
    for path in workspace.rglob("*"):
        assert not path.is_file() or b"SECRET" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("notify.url=http://h/x y", "notify.url=*** y"),
        ("override 'notify.url=\"http://h/x\"'", "override 'notify.url=\"***\"'"),
        ('"CPPO_NOTIFY_URL": "https://h/x"', '"CPPO_NOTIFY_URL": "***"'),
        ("see https://hooks.slack.com/services/T0/B0/xyz.", "see https://hooks.slack.com/***"),
        ("https://discord.com/api/webhooks/1/abc", "https://discord.com/api/webhooks/***"),
        ("notify.url is not set", "notify.url is not set"),
    ],
)
def test_addresses_of_webhooks_are_masked(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_redirect_is_refused(receive: Callable[..., Receiver]) -> None:
    for code in (301, 302, 303, 307, 308):
        assert notify.post(receive(code, (other := receive()).url).url, b"{}") == f"HTTP {code}"
        assert other.bodies == []


def test_a_dead_webhook_loses_no_message_and_a_slow_one_delays_no_run(
    workspace: Path,
    receive: Callable[..., Receiver],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    dead = receive()
    dead.shutdown()
    dead.server_close()
    assert main([*LAUNCH, f"notify.url={dead.url}"]) == 4
    assert "does not take messages: ConnectionRefusedError" in capfd.readouterr().err
    assert not list(workspace.glob("runs/*/notified-*"))
    slow = receive(slow=True)
    monkeypatch.setattr(notify, "LAST_SECONDS", 0.5)  # in which the launch gives up
    folders = [path.parent for path in workspace.glob("runs/*/spool")]
    assert main(["retry", *LAUNCH[1:], "--failed", f"notify.url={slow.url}"]) == 4
    [failed] = [folder for folder in folders if read_status(folder)["status"] == schema.FAILED]
    assert time.time() - read_status(failed)["updated"] < 60.0
    # No answer: it may have arrived, and is not sent again.
    until("the message is there", lambda: len(slow.bodies) == 1)
    assert len(list(failed.glob("notified-*"))) == 1


def test_messages_go_on_when_the_launcher_is_killed(
    workspace: Path, receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, folder = receive(), workspace / "runs" / ("a" * 12)
    program = (
        "import sys, time; from pathlib import Path; from cppo_lab.tracking.notify import notifying\n"
        "with notifying([Path(sys.argv[1])], [Path(sys.argv[1])], 'm', True):\n"
        "    print(flush=True); time.sleep(600)\n"
    )
    environment = {**os.environ, notify.VARIABLE: receiver.url}
    with held(folder):
        owner = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)], env=environment, stdout=subprocess.PIPE
        )
        assert owner.stdout is not None and owner.stdout.readline()
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
        write_status(folder, {"status": "failed", "reason": "late", "updated": time.time(), "rule": "cppo"})
    until("the message is there", lambda: len(receiver.bodies) == 1)
    assert receiver.bodies[0]["reason"] == "late"


def test_of_two_senders_one_sends(workspace: Path, receive: Callable[..., Receiver]) -> None:
    receiver, folder = receive(), workspace / "runs" / ("a" * 12)
    folder.mkdir(parents=True)
    senders = [notify._Messages(receiver.url, [folder], 0.0) for _ in range(8)]
    write_status(folder, {"status": "failed", "reason": "x", "updated": time.time()})
    threads = [threading.Thread(target=sender.of_runs) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receiver.bodies) == 1


def test_jobs_that_nobody_waits_for_tell_the_end_once_from_the_folders(
    workspace: Path, receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = receive()
    monkeypatch.setenv(notify.VARIABLE, receiver.url)
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
            write_status(folder, {**end, "updated": time.time()})
    assert [body["event"] for body in receiver.bodies] == ["failed"]
    for _ in range(2):
        with notifying([launch[1]], launch, "m", waits=False):
            write_status(launch[1], {"status": "collapsed", "reason": "y", "updated": time.time()})
    assert [body["event"] for body in receiver.bodies] == ["failed", "collapsed", "ended"]
    assert receiver.bodies[-1]["text"].endswith(": 2 done, 1 failed, 1 left")
