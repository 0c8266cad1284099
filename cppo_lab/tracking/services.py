"""What runs send to other services than the tracking store: messages to a webhook (a run has early signs of a collapse,
collapses, is stopped, fails; or a launch has ended), and a mirror of configurations and points, no files, in Trackio or
Weights & Biases.

Each is a separate process beside a launcher, or beside a job that nobody waits for, which reads the folders of the runs
and sends: no run and no upload waits for a service.

A run sends a message once for each reason: the claim, an empty file in its folder, comes before the message, and is
taken back only if the message certainly did not arrive. Messages need the standard library only.

The mirror, which nothing reads, says which step it has last, and earlier steps are not sent again; so steps evaluated
after a run's end are left out, and times are those of sending. W&B in offline mode cannot say it: what was not
completed is then written whole, as another offline run with the same id.
"""

import contextlib
import contextvars
import fcntl
import html
import importlib.util
import io
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.parse import urlsplit

from cppo_lab import schema
from cppo_lab.errors import UserError, in_time, one_line, say
from cppo_lab.files import open_lock, redacted
from cppo_lab.runs.folder import Cause, is_locked
from cppo_lab.runs.spool import (
    NOTES,
    SPOOL_FOLDER,
    Begin,
    End,
    Line,
    Shipped,
    StepEvent,
    files,
    read_lines,
    save_shipped,
    shipping,
    unsent,
)
from cppo_lab.runs.state import Queued, RunFolder, counts, state_of
from cppo_lab.runs.tags import BETWEEN
from cppo_lab.tracking.uploader import begin, beside, still_owned

MIRROR_VARIABLE = "CPPO_MIRROR"  # how the process and jobs get the name
TRACKIO, WANDB = "trackio", "wandb"
MIRRORS = (TRACKIO, WANDB)
EVERY_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 300.0  # between two looks at the runs
MIRROR_LAST_SECONDS = 60.0  # that the end of a launch waits for the rest
# How the process and jobs get the address, which no file or command line has
NOTIFY_VARIABLE = "CPPO_NOTIFY_URL"
ANSWER_SECONDS = 5.0  # for each part of an answer
SEND_SECONDS = 10.0  # for the whole of it
NOTIFY_LAST_SECONDS = 15.0  # that the end of a launch waits for the last messages
EARLY_SIGNS = "early signs"  # an event beside the states
_TOLD = schema.FINISHED | {schema.FAILED, schema.STOPPED, EARLY_SIGNS}
SLACK, SLACK_HOST = "slack", "hooks.slack.com"
_KEYS = ("variants", "rule", "model", "seed", "step", "t_stop", "reason")  # of a status that a message has


def mirror_name(configured: str | None = None) -> str:
    """The mirror: `CPPO_MIRROR`, else `configured`; empty if there is none.

    Raises UserError for an unknown mirror, and if its package is not installed.
    """
    name = os.environ.get(MIRROR_VARIABLE) or configured or ""
    if name and name not in MIRRORS:
        raise UserError(f"tracking.mirror (or {MIRROR_VARIABLE}) is {name!r}: choose {' or '.join(MIRRORS)}")
    if name and importlib.util.find_spec(name) is None:
        raise UserError(
            f"tracking.mirror={name} (or {MIRROR_VARIABLE}) needs the package {name}, which is not installed: "
            f"pip install {name}, or leave the mirror out"
        )
    return name


@contextlib.contextmanager
def mirroring(folders: Sequence[Path]) -> Iterator[None]:
    """Mirror the runs in `folders` during the block, if a mirror is set.

    If the process that has the block is killed, the mirror goes on until no run is being trained.
    """
    if not (name := os.environ.get(MIRROR_VARIABLE)):
        yield
        return
    code = "from cppo_lab.tracking.services import mirror_main; mirror_main()"
    with beside(code, [name, *map(str, folders)], MIRROR_LAST_SECONDS) as process:
        yield
    if process.poll() is None:
        say(
            f"mirror {name} has not taken everything yet: `{MIRROR_VARIABLE}={name} cppo sync` sends the rest"
        )


def mirror_main() -> None:
    """The mirroring process."""
    name, *paths = begin()
    folders, mirror, pause, fault = [Path(path) for path in paths], Mirror(name), EVERY_SECONDS, ""
    owned = trains = True
    while trains:
        owned = still_owned(owned, pause)
        trains = owned or any(map(is_locked, folders))
        if not trains:
            signal.alarm(round(MIRROR_LAST_SECONDS))  # ends this process: a server may never answer
        try:
            mirror.update(folders)
            if not trains:
                mirror.close()
            pause, fault = EVERY_SECONDS, ""
        except UserError as error:
            if fault != (fault := str(error)):
                say(f"{fault}; training and the tracking store go on")
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


@dataclass
class _Copy:
    """What this process has sent of a run's folder."""

    lock: IO[str]  # held as long as the run is open: two processes would send each step twice
    offsets: dict[str, int] = field(default_factory=dict)  # by the name of a spool's file
    record: str = ""
    run: Any = None  # of the record, in the mirror; None before its beginning and after its end
    next_step: int = 0  # the first that the mirror does not have


class Mirror:
    """A connection to the mirror `name`. Its methods raise UserError if that, or its package, fails; they may be called
    again.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._copies: dict[Path, _Copy] = {}

    def update(self, folders: Sequence[Path]) -> None:
        """Send what the mirror lacks of the runs in `folders`, but for those that another process is sending."""
        with self._guarded():
            for folder in folders:
                copy = self._copies.get(folder)
                if copy is None and (not unsent(folder, self.name) or (copy := self._locked(folder)) is None):
                    continue
                for path in files(folder):
                    for line, end in read_lines(path, copy.offsets.get(path.name, 0)):
                        self._take(copy, line)
                        copy.offsets[path.name] = end
                if copy.run is None:
                    self._settle(folder, copy)

    def close(self) -> None:
        """End the runs that are open: they have everything that was read."""
        with self._guarded():
            for folder, copy in list(self._copies.items()):
                self._finish(copy, schema.PARTIAL)
                self._settle(folder, copy)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # the packages print
                yield
        except (Exception, SystemExit) as error:  # of any kind, whatever the package raises
            while self._copies:  # what the mirror has of them is asked again
                self._copies.popitem()[1].lock.close()
            line = one_line(str(error))[:500] or type(error).__name__
            raise UserError(
                f"mirror {self.name} fails: {line}: `{MIRROR_VARIABLE}={self.name} cppo sync` sends the rest later"
            ) from error

    def _locked(self, folder: Path) -> _Copy | None:
        lock = open_lock(folder / SPOOL_FOLDER / "mirror.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        self._copies[folder] = copy = _Copy(lock)
        return copy

    def _settle(self, folder: Path, copy: _Copy) -> None:
        """Note what the mirror has by now: its packages write in the background until a run's end."""
        with contextlib.suppress(OSError):  # there are none; they are not sent
            copy.offsets[NOTES] = (folder / SPOOL_FOLDER / NOTES).stat().st_size
        with shipping(folder):
            save_shipped(folder, self.name, Shipped(copy.offsets))
        self._copies.pop(folder).lock.close()

    def _take(self, copy: _Copy, line: Line) -> None:
        if isinstance(line, Begin):
            if copy.run is None or line.record != copy.record:
                self._finish(copy, schema.PARTIAL)
                self._begin(copy, line)
        elif isinstance(line, StepEvent) and copy.run is not None and line.step >= copy.next_step:
            copy.run.log(dict(line.metrics), step=line.step)
            copy.next_step = line.step + 1
        elif isinstance(line, End):
            self._finish(copy, line.status)

    def _begin(self, copy: _Copy, line: Begin) -> None:
        shared: dict[str, Any] = {
            "project": line.experiment,
            "group": line.name.rsplit(BETWEEN, 2)[0],  # its variant
            "config": {**line.params, **line.tags},
            "resume": "allow",
        }
        if self.name == WANDB:
            import wandb

            settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
            copy.run = wandb.init(
                **shared, id=line.record, name=line.name, reinit="create_new", settings=settings
            )
            first = copy.run.step
        else:
            import trackio

            # Trackio resumes by name. It ends the current run of its context, so each run has a context.
            quiet: dict[str, Any] = dict.fromkeys(("embed", "auto_log_cpu", "auto_log_gpu"), False)
            name = f"{line.name}{BETWEEN}{line.record[:8]}"
            copy.run = contextvars.Context().run(trackio.init, **shared, **quiet, name=name)
            first = copy.run._next_step  # it has no public name
        before = copy.next_step if line.record == copy.record else 0
        copy.record, copy.next_step = line.record, max(before, first)

    def _finish(self, copy: _Copy, status: str) -> None:
        if copy.run is not None:
            # As W&B's page shows it; Trackio has no states.
            copy.run.finish(
                **({"exit_code": int(status not in schema.FINISHED)} if self.name == WANDB else {})
            )
            copy.run = None


def webhook(configured: str | None) -> str:
    """The address of the webhook: `CPPO_NOTIFY_URL`, else `configured`; empty if there is none.

    Raises UserError, which does not have the address, unless it is that of a server, http(s)://HOST[:PORT]/....
    """
    url = os.environ.get(NOTIFY_VARIABLE) or configured or ""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if url and not (
        valid and parts.username is None and url.isascii() and url.isprintable() and " " not in url
    ):
        raise UserError(
            f"notify.url (or {NOTIFY_VARIABLE}) is not an address http(s)://HOST[:PORT]/PATH in ASCII without a user "
            "name: give that of a webhook (docs/tracking.md#messages)"
        )
    return url


@contextlib.contextmanager
def notifying(folders: Sequence[Path], launch: Sequence[Path], mark: str, waits: bool) -> Iterator[None]:
    """If a webhook is set, send messages on the runs in `folders` during the block, and at its end that those of the
    whole `launch`, called `mark`, have ended: always if its launcher `waits` for them, else if the folders say so.

    If the process that has the block is killed, messages go on until no run is being trained.
    """
    if not os.environ.get(NOTIFY_VARIABLE):
        yield
        return
    names = [list(map(str, paths)) for paths in (folders, launch)]
    code = "from cppo_lab.tracking.services import notify_main; notify_main()"
    with beside(code, [*names, mark, waits, time.time()], NOTIFY_LAST_SECONDS):
        yield


def notify_main() -> None:
    """The sending process."""
    folders, launch, mark, waits, since = begin()
    messages = _Messages(webhook(None), list(map(Path, folders)), since)
    messages.send_all(list(map(Path, launch)), mark, waits)


class _Messages:
    """What is to be said of runs `since` a time, and how it is sent."""

    def __init__(self, url: str, folders: list[Path], since: float) -> None:
        self.url, self.folders, self.since, self.fault = url, folders, since, ""

    def send_all(self, launch: Sequence[Path], mark: str, waits: bool) -> None:
        """Send messages until the owner has ended and none of its runs is being trained."""
        pause = EVERY_SECONDS
        while still_owned(True, pause):
            pause = EVERY_SECONDS if self.of_runs() else min(2 * pause, LONGEST_PAUSE_SECONDS)
        ended = bool(sys.stdin.readline())
        while any(map(is_locked, self.folders)):
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
            signs = schema.early_signs(status.get("score"), status.get("best"))
            if signs and status.get("status") == schema.RUNNING:
                status |= {"status": EARLY_SIGNS, "reason": signs}
            event, reason = status.get("status"), status.get("reason")
            if event not in _TOLD or status.get("updated", 0.0) < self.since:
                continue
            values = {"event": event, "run_id": folder.name} | {key: status.get(key) for key in _KEYS}
            where = "before its first step" if values["step"] is None else f"at step {values['step']}"
            text = "run {run_id} ({variants}, {model}, seed {seed}) {event} {where}: {reason}".format(
                **values, where=where
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
        claim = folder / f"notified-{schema.digest(what)}"
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
    headers = {"Content-Type": "application/json", "User-Agent": "cppo"}
    request = urllib.request.Request(url, body, headers)  # noqa: S310  `webhook` has checked it
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        in_time(lambda: opener.open(request, timeout=ANSWER_SECONDS).close(), SEND_SECONDS)
    except URLError as error:  # it could not connect, or the server refused
        code = getattr(error, "code", None)
        return f"HTTP {code}" if code else type(error.reason).__name__
    except Exception as error:  # noqa: BLE001  no answer: it may have arrived
        say(f"cppo: the webhook of notify.url gave no answer: {type(error).__name__}")
    return ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Another address than the user's gets no message."""

    def redirect_request(self, *_: object) -> None:
        return None


def _state(folder: Path) -> str | None:
    """The state of a run whose attempt has ended; None if it waits, trains, or may be requeued."""
    state = state_of(run := RunFolder(folder), Queued())
    if state.state == schema.PARTIAL:
        over = state.cause == Cause.CANCELLED
    elif state.state == schema.MISSING:
        over = bool(state.reason) or run.cancelled
    else:
        over = state.state != schema.RUNNING
    return state.state if over else None
