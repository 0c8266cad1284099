"""`cppo watch` and `cppo logs`."""

import io
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.monitor import logs
from cppo_lab.monitor.status import Label, RunStatus
from cppo_lab.monitor.watch import watch
from cppo_lab.runs.folder import write_status
from cppo_lab.runs.lock import held, holder
from cppo_lab.store.address import tracking_uri
from cppo_lab.tracking.sync import Sent
from tests.test_cli_status import run_id, told


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LABEL = Label("mini", "cppo", "mini_base", 0)


def stages(*looks: Sequence[str]) -> list[list[RunStatus]]:
    why = {"failed": "ValueError: bad"}
    return [
        [RunStatus(run_id(i), LABEL, state, why.get(state, "")) for i, state in enumerate(look)]
        for look in looks
    ]


def test_one_line_for_each_change_until_nothing_runs_or_waits() -> None:
    looks = iter(
        stages(["queued", "running"], ["running", "running"], ["running", "running"], ["done", "failed"])
    )
    out = io.StringIO()
    found = watch(lambda: next(looks), 0.01, out)
    assert [one.state for one in found] == ["done", "failed"]
    assert out.getvalue().splitlines() == [
        "2 runs: 1 running, 1 queued",
        f"{run_id(0)} cppo/mini_base/seed 0: running",
        f"{run_id(0)} cppo/mini_base/seed 0: done",
        f"{run_id(1)} cppo/mini_base/seed 0: failed: ValueError: bad",
    ]


def test_a_terminal_is_drawn_anew_and_shows_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((40, 8)))
    looks = iter(stages(["done"] * 20 + ["running"], ["done"] * 21))
    out = Terminal()
    watch(lambda: next(looks), 0.01, out)
    first, second = out.getvalue().split("\x1b[H")[1:]
    assert "21 runs: 20 done, 1 running" in first
    assert run_id(20) in first.splitlines()[3]  # the one that runs is on top
    assert first.splitlines()[-2].startswith("and 18 more")
    assert len(first.splitlines()) <= 8
    assert "21 runs: 21 done" in second


def test_the_end_is_told_to_a_command_without_a_shell(
    workspace: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, state in enumerate(["done", "collapsed", "failed", "partial"]):
        folder = workspace / "runs" / run_id(number)
        folder.mkdir(parents=True)
        write_status(folder, told(state))
    script = workspace / "tell"
    numbers = "$CPPO_DONE|$CPPO_FAILED|$CPPO_LEFT"
    script.write_text(f'#!/bin/sh\necho "$1|$CPPO_SWEEP|{numbers}|safe=$PYTHONSAFEPATH."\nexit 3\n')
    script.chmod(0o755)
    assert main(["watch", "--notify", f"{script} 'a b; $(id)'"]) == 4
    said = capfd.readouterr()
    assert "a b; $(id)||2|1|1|safe=." in said.out
    assert "the command of --notify ended with status 3" in said.err
    for name in ("2", "3"):
        write_status(workspace / "runs" / run_id(int(name)), told("done"))
    assert main(["watch"]) == 0


def test_logs_of_every_launcher(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = workspace / "runs"
    first = runs / run_id(0xABCD) / "attempts"
    first.mkdir(parents=True)
    (first / "11_0_log.out").write_text("local\n")
    (first / "11_0_log.err").write_text("a warning\n")
    os.utime(first / "11_0_log.out", (1, 1))
    with Ledger(runs) as ledger:
        token = ledger.claim([run_id(0xABCE), run_id(0xABCD)])
        ledger.submitted(token, 70)
        folder = ledger.folder_of(token)
    folder.mkdir(parents=True)
    (folder / "70_1_0_log.out").write_text("in Slurm\n")
    assert main(["logs", run_id(0xABCD)]) == 0
    assert capsys.readouterr().out == "in Slurm\n"
    assert main(["logs", run_id(0xABCD), "--all"]) == 0
    text = capsys.readouterr().out
    assert text.index("local") < text.index("a warning") < text.index("in Slurm")

    assert main(["logs", run_id(0xABCE)]) == 2  # its job has not started
    assert "it has no output and no training step" in capsys.readouterr().err
    (runs / run_id(0xABCE)).mkdir()
    (runs / run_id(0xABCE) / "traceback.txt").write_text("Traceback: here\n")
    assert main(["logs", run_id(0xABCE)]) == 0
    assert capsys.readouterr().out == "Traceback: here\n"
    assert main(["logs", "00000000"]) == 2
    assert "is a prefix of 2 ids" in capsys.readouterr().err
    assert main(["logs", "ffff"]) == 2
    assert "no run with this prefix" in capsys.readouterr().err


def test_following_ends_with_the_run_and_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is the test's own: a run prints while its follower sleeps."""
    log = tmp_path / run_id(1) / "attempts" / "1_0_log.out"
    log.parent.mkdir(parents=True)
    pieces = [b"", b"one\n", b"tw\xc3", b"\xb6\nlast\n"]  # a character in two pieces; then the run ends
    slept: list[float] = []
    shown: list[str] = []
    out = io.StringIO()

    def sleep(seconds: float) -> None:
        shown.append(out.getvalue())
        with log.open("ab") as file:
            file.write(pieces[len(slept)])
        slept.append(seconds)

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: sum(slept))
    monkeypatch.setattr(logs, "time", clock)
    monkeypatch.setattr(logs, "LOOK_SECONDS", 1.5 * logs.POLL_SECONDS)  # at every other piece
    logs.follow(tmp_path, run_id(1), lambda: len(slept) < len(pieces), out)
    assert shown == ["", "", "one\n", "one\n"]  # a line as soon as it is whole
    assert out.getvalue() == "one\ntwö\nlast\n"


def test_who_holds_a_lock_is_known(tmp_path: Path) -> None:
    assert holder(tmp_path / "run") is None
    with held(tmp_path / "run"):
        where = holder(tmp_path / "run")
        assert where is not None
        assert where[1] == os.getpid()
    assert holder(tmp_path / "run") is None


def test_an_outage_is_one_line_of_sync_and_its_end_another(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = UserError("the tracking store does not answer")
    looks: Iterator[BaseException | Sent] = iter([away, away, Sent(2, 30), Sent(), KeyboardInterrupt()])

    def send(*_: object) -> Sent:
        if isinstance(look := next(looks), BaseException):
            raise look
        return look

    monkeypatch.setattr("cppo_lab.tracking.sync.send", send)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert main(["sync", "--watch"]) == 130
    said = capsys.readouterr()
    assert said.err.count(f"cppo: {away}; trying again") == 1
    assert said.out.splitlines() == [f"30 points of 2 runs uploaded to {tracking_uri()}"]
