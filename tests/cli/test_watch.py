"""`cppo watch` and `cppo sync --watch`."""

import io
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import write_status
from cppo_lab.sweep.status import Label, RunStatus, watch
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.upload import Sent
from tests.cli.test_status import run_id, status_of
from tests.conftest import Command


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
    workspace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, state in enumerate(["done", "collapsed", "failed", "partial"]):
        folder = workspace / "runs" / run_id(number)
        folder.mkdir(parents=True)
        write_status(folder, status_of(state))
    script = workspace / "tell"
    numbers = "$CPPO_DONE|$CPPO_FAILED|$CPPO_LEFT"
    script.write_text(f'#!/bin/sh\necho "$1|$CPPO_SWEEP|{numbers}|safe=$PYTHONSAFEPATH."\nexit 3\n')
    script.chmod(0o755)
    assert main(["watch", "--notify", f"{script} 'a b; $(id)'"]) == 4
    said = capfd.readouterr()
    assert "a b; $(id)||2|1|1|safe=." in said.out
    assert "the command of --notify ended with status 3" in said.err
    for name in ("2", "3"):
        write_status(workspace / "runs" / run_id(int(name)), status_of("done"))
    assert main(["watch", "--notify", "true"]) == 0
    assert capfd.readouterr().err == ""


def test_an_outage_is_one_line_of_sync_and_its_end_another(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = UserError("the tracking store does not answer")
    looks: Iterator[BaseException | Sent] = iter([away, Sent(2, 30), Sent(), KeyboardInterrupt()])
    asked: Iterator[BaseException | list[Path]] = iter([away, list[Path]()])  # once it answers

    def next_of(answers: Iterator[object]) -> object:
        if isinstance(answer := next(answers), BaseException):
            raise answer
        return answer

    monkeypatch.setattr("cppo_lab.tracking.upload.forget_lost", lambda *_: next_of(asked))
    monkeypatch.setattr("cppo_lab.tracking.upload.upload", lambda *_: next_of(looks))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert "no run with this prefix" in cppo("sync --watch --run 0123", code=2).err
    said = cppo("sync --watch", code=130)
    assert said.err.count(f"cppo: {away}; trying again") == 1
    assert said.out.splitlines() == [f"30 points of 2 runs uploaded to {tracking_uri()}"]
