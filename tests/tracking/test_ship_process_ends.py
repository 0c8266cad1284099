"""How the process that ships ends, and what it answers to a store's fault. With a real store: tests/servers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cppo_lab.tracking import ship_process
from cppo_lab.tracking.ship_process import ShipProcess

FIRST = json.dumps({"folder": "runs/0123456789ab", "uri": "sqlite:///x.db"}) + "\n"
# A process that ships, with stand-ins for the store and for MLflow, which takes seconds to load.
HEAD = """
import os, sys
from types import ModuleType
from cppo_lab.errors import UserError
faults = iter(())
def ship(folder, uri, client):
    if (fault := next(faults, None)) is not None:
        raise fault
for name, values in {
    "cppo_lab.tracking.client": {"STORE_FAULTS": (OSError,), "fault_line": str, "open_client": lambda uri: object()},
    "cppo_lab.tracking.upload": {"ship": ship},
}.items():
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(values)
from cppo_lab.tracking import ship_process
"""


class Shipping:
    """Starts such processes, and ends those that are left."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, prepare: str = "") -> "subprocess.Popen[str]":
        code = f"{HEAD}{prepare}\nship_process.main()\n"
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            with process:  # closes its pipes
                process.kill()


@pytest.fixture
def shipping() -> Iterator[Shipping]:
    found = Shipping()
    yield found
    found.end()


def ask(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


def test_it_ends_if_nobody_says_what_to_ship(shipping: Shipping) -> None:
    process = shipping()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait() == 0


def test_it_answers_every_request_with_the_fault_of_its_store_and_ends_with_its_input(
    shipping: Shipping,
) -> None:
    process = shipping(
        "faults = iter([UserError('the store is away'), OSError(28, 'No space left on device')])"
    )
    assert process.stdin is not None and process.stdout is not None
    ask(process, f"{FIRST}\n\n\n")
    said = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert said == ["the store is away", "[Errno 28] No space left on device", ""]
    process.stdin.close()
    assert process.wait() == 0


def test_it_ends_where_nobody_reads_its_answer(shipping: Shipping) -> None:
    process = shipping()
    assert process.stdout is not None
    process.stdout.close()
    ask(process, f"{FIRST}\n")
    assert process.wait() == 0


def test_it_ends_after_the_process_that_trains_though_others_keep_the_pipe_open(shipping: Shipping) -> None:
    process = shipping(
        "parents = iter([41, 41, 41])  # at its start and twice when nothing was asked; then init has it\n"
        "os.getppid = lambda: next(parents, 1)\n"
        "ship_process.PARENT_SECONDS = 0.01"
    )
    ask(process, FIRST)
    assert process.wait() == 0


def test_a_request_that_a_dead_process_never_read_is_no_fault_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship_process, "_COMMAND", ["/bin/sh", "-c", "exit 0"])
    process = ShipProcess(tmp_path, "sqlite:///x.db")
    process._process.wait()
    with pytest.raises(BrokenPipeError):
        process.ship()
    process.close()
    assert process._process.returncode == 0
