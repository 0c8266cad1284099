"""Messages to a webhook: a run has early signs of a collapse, collapses, is stopped, fails; or a launch has ended.

A separate process beside the launcher, or beside a job that nobody waits for, reads the status of the runs and sends:
no run waits for the webhook. A run sends a message once for each reason: the claim, an empty file in its folder, comes
before the message, and is taken back only if the message certainly did not arrive. Standard library only.
"""

import contextlib
import html
import json
import os
import select
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

from cppo_lab import schema
from cppo_lab.errors import UserError, say
from cppo_lab.files import redacted
from cppo_lab.runs.folder import Cause, is_held
from cppo_lab.runs.spool import early_signs
from cppo_lab.runs.state import Queued, RunFolder, counts, state_of
from cppo_lab.spec import digest

VARIABLE = "CPPO_NOTIFY_URL"  # how the process and jobs get the address, which no file or command line has
EVERY_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 300.0
ANSWER_SECONDS = 5.0  # for each part of an answer
SEND_SECONDS = 10.0  # for the whole of it
LAST_SECONDS = 15.0  # that the end of a launch waits for the last messages
EARLY_SIGNS = "early signs"  # an event beside the states
_TOLD = schema.FINISHED | {schema.FAILED, schema.STOPPED, EARLY_SIGNS}
SLACK, SLACK_HOST = "slack", "hooks.slack.com"
_KEYS = ("variants", "rule", "model", "seed", "step", "t_stop", "reason")  # of a status that a message has
_COMMAND = [sys.executable, "-P", "-c", "from cppo_lab.tracking.notify import main; main()"]


def webhook(configured: str | None) -> str:
    """The address of the webhook: `CPPO_NOTIFY_URL`, else the `configured` one; empty if there is none.

    Raises UserError, which does not have the address, unless it is that of a server, http(s)://HOST[:PORT]/....
    """
    url = os.environ.get(VARIABLE) or configured or ""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if url and not (
        valid and parts.username is None and url.isascii() and url.isprintable() and " " not in url
    ):
        raise UserError(
            f"notify.url (or {VARIABLE}) is not an address http(s)://HOST[:PORT]/PATH in ASCII without a user name: "
            "give that of a webhook (docs/tracking.md#messages)"
        )
    return url


@contextlib.contextmanager
def notifying(folders: Sequence[Path], launch: Sequence[Path], mark: str, waits: bool) -> Iterator[None]:
    """If a webhook is set, send messages on the runs in `folders` during the block, and at its end that those of the
    whole `launch`, called `mark`, have ended: always if its launcher `waits` for them, else if the folders say so.

    If the process that has the block is killed, messages go on until no run is being trained.
    """
    if not os.environ.get(VARIABLE):
        yield
        return
    # A new session, since Ctrl-C is for the owner.
    process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=2, text=True, start_new_session=True)
    assert process.stdin is not None
    names = [list(map(str, paths)) for paths in (folders, launch)]
    seconds = 0.0
    with contextlib.suppress(OSError):  # it has been killed
        process.stdin.write(json.dumps([*names, mark, waits, time.time()]) + "\n")
        process.stdin.flush()
    try:
        yield
        seconds = LAST_SECONDS
    except Exception:
        seconds = LAST_SECONDS
        raise
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.stdin.write("ended\n" if seconds else "")
            process.stdin.close()
            process.wait(seconds)


def main() -> None:
    """The sending process: its task is the first line of standard input, whose end is that of the owner's block."""
    folders, launch, mark, waits, since = json.loads(sys.stdin.readline())
    messages = _Messages(webhook(None), list(map(Path, folders)), since)
    messages.send_all(list(map(Path, launch)), mark, waits)


class _Messages:
    """What is to be said of runs `since` a time, and how it is sent."""

    def __init__(self, url: str, folders: list[Path], since: float) -> None:
        self.url, self.folders, self.since, self.fault = url, folders, since, ""

    def send_all(self, launch: Sequence[Path], mark: str, waits: bool) -> None:
        """Send messages until the owner has ended and none of its runs is being trained."""
        pause = EVERY_SECONDS
        while not select.select([sys.stdin], [], [], pause)[0]:
            pause = EVERY_SECONDS if self.of_runs() else min(2 * pause, LONGEST_PAUSE_SECONDS)
        ended = bool(sys.stdin.readline())
        while any(map(is_held, self.folders)):
            time.sleep(1.0)
        states = [_state(folder) for folder in launch] if self.of_runs() and ended else []
        if states and (waits or None not in states):
            numbers = counts(state or "" for state in states)
            text = "all runs of the launch have ended: {done} done, {failed} failed, {left} left".format(
                **numbers
            )
            self.send(launch[0], f"ended {mark}", {"event": "ended", **numbers}, text)

    def of_runs(self) -> bool:
        """Send what is new of the runs; False, at the first that could not be sent, if the webhook does not answer."""
        for folder in list(self.folders):
            status = dict(RunFolder(folder).status)
            signs = early_signs(status.get("score"), status.get("best"))
            if signs and status.get("status") == schema.RUNNING:
                status |= {"status": EARLY_SIGNS, "reason": signs}
            event, reason = status.get("status"), status.get("reason")
            if event not in _TOLD or status.get("updated", 0.0) < self.since:
                continue
            values = {"event": event, "run_id": folder.name} | {key: status.get(key) for key in _KEYS}
            text = "run {run_id} ({variants}, {model}, seed {seed}) {event} at step {step}: {reason}".format(
                **values
            )
            # Of early signs once a run, whatever its scores then are.
            what = event if event == EARLY_SIGNS else f"{event} {reason}"
            if event != schema.DONE and not self.send(folder, what, values, text):
                return False
            if event != EARLY_SIGNS:
                self.folders.remove(folder)
        return True

    def send(self, folder: Path, what: str, values: dict[str, Any], text: str) -> bool:
        """Send a message unless the claim for `what` is in the folder; False if it certainly did not arrive."""
        claim = folder / f"notified-{digest(what)}"
        try:
            claim.open("x").close()
        except OSError:  # another process sends it, or nothing can be written
            return True
        slack = urlsplit(self.url).hostname == SLACK_HOST or urlsplit(self.url).fragment == SLACK
        text = redacted(text)
        body = {"text": html.escape(text, quote=False)} if slack else {**values, "text": text}
        fault = post(self.url, json.dumps(body).encode())
        if fault and not self.fault:
            say(f"cppo: the webhook of notify.url does not take messages: {fault}")
        self.fault = fault
        if fault:
            claim.unlink(missing_ok=True)
        return not fault


def post(url: str, body: bytes) -> str:
    """Send a message; why it certainly did not arrive, else empty. Takes SEND_SECONDS at most."""
    faults: list[str] = []

    def work() -> None:
        try:
            headers = {"Content-Type": "application/json", "User-Agent": "cppo"}
            request = urllib.request.Request(url, body, headers)  # noqa: S310  `webhook` has checked it
            opener = urllib.request.build_opener(_NoRedirect)
            opener.open(request, timeout=ANSWER_SECONDS).close()
        except URLError as error:  # it could not connect, or the server refused
            code = getattr(error, "code", None)
            faults.append(f"HTTP {code}" if code else type(error.reason).__name__)
        except Exception as error:  # noqa: BLE001  no answer: it may have arrived
            say(f"cppo: the webhook of notify.url gave no answer: {type(error).__name__}")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SEND_SECONDS)
    return "".join(faults)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Another address than the user's gets no message."""

    def redirect_request(self, *_: object) -> None:
        return None


def _state(folder: Path) -> str | None:
    """The state of a run whose attempt has ended; None if it waits, trains, or may be requeued."""
    state = state_of(run := RunFolder(folder), Queued())
    over = {
        schema.PARTIAL: state.cause == Cause.CANCELLED,
        schema.MISSING: bool(state.reason) or run.cancelled,
    }
    return state.state if over.get(state.state, state.state != schema.RUNNING) else None
