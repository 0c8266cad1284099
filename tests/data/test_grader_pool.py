"""Hostile answers and killed children: one bad grade each, and the next grade is right."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.data import grading
from cppo_lab.data.grading import GraderPool, Verdict, close_pools, grade
from tests.conftest import user_error
from tests.waiting import CEILING_SECONDS, is_alive, until

LIMIT = 0.3  # of what does not end by itself; easy answers take as long as this machine needs for them
HANGING = "9^{9^{9^9}}"
EASY = ("Answer: \\frac{84}{2}", "\\frac{42}{1}", 1.0)

pytestmark = pytest.mark.usefixtures("patient_grading")


Make = Callable[[str], object]


def processes(pool: GraderPool) -> list[int]:
    """Process ids of the children that are not grading."""
    return [child.process.pid for child in pool._idle]


@pytest.fixture
def pool() -> Iterator[GraderPool]:
    """Of one child, which takes as long as it needs; closed at the end, and the child with it."""
    pool = GraderPool(CEILING_SECONDS, workers=1)
    yield pool
    pids = processes(pool)
    pool.close()
    assert not pool._idle and not any(map(is_alive, pids))


def child_of(pool: GraderPool) -> int:
    """The process of a pool of one child, after a right answer that is put to math-verify."""
    assert pool.grade("\\frac{2}{4}", True, "0.5") == "right"
    [pid] = processes(pool)
    return pid


HOSTILE = {
    "a power of gigabytes": "Answer: 2^{2^{34}}",
    "an integral": "Answer: \\int_0^1 e^{e^{x^x}} dx",
    "nested fractions": "Answer: " + "\\frac{" * 120 + "1" + "}{2}" * 120,
    "open parentheses": "Answer: " + "(" * 900,
    "unclosed boxes": "\\boxed{" * 100_000,
    "null bytes": "Answer: " + "\0" * 1_000_000 + "42",
    "a regex bomb of an answer": "Answer: " + "a" * 400 + "!" * 400,
    "a regex bomb of spaces": "final answer" + " " * 900 + "is",
    "an equation without end": "Answer: " + "=".join("abcdefghijklmnopqrstuvwxyz" * 15),
    "half surrogates": "Answer: " + "\ud800" * 900,
    "half a fraction": "Answer: \\frac{1",
    "a matrix": "Answer: \\begin{pmatrix}" + "1&" * 300 + "\\end{pmatrix}",
    "a polynomial": "Answer: (x+y+z+1)^{500}(x-y)^{500}",
}


@pytest.fixture(scope="module")
def _pools() -> Iterator[None]:
    yield
    close_pools()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_costs_one_grade(name: str, _pools: None) -> None:
    for response, truth, right in (EASY, (HOSTILE[name], "\\sqrt{42}", 0.0), EASY):
        assert grade(response, truth, LIMIT, workers=1).right == right


@pytest.mark.parametrize(
    "response, truth, timeout",
    [
        (f"Answer: {HANGING}", "\\sqrt{42}", 1.0),
        ("Answer: " + "7" * 1_001, "7", 0.0),
        ("Answer: 7", "7" * 1_001, 0.0),
    ],
    ids=["hanging", "a long answer", "a long truth"],
)
def test_the_limit_holds_and_is_told(response: str, truth: str, timeout: float, _pools: None) -> None:
    result = grade(response, truth, LIMIT, workers=1)
    assert (result.right, result.timeout, result.error) == (0.0, timeout, 1.0 - timeout)


def test_hostile_and_normal_answers_side_by_side(made_child: Make) -> None:
    """Math-verify itself hangs in the test above."""
    hanging = f"    if {HANGING.encode()} in asked:\n        signal.pause()\n"
    made_child(
        f"{READY}while asked := link.recv_bytes():\n{hanging}    say({{'right': True, 'last': False}})\n"
    )
    pool = GraderPool(LIMIT, workers=2)
    verdicts: dict[int, Verdict] = {}

    def ask(place: int) -> None:
        verdicts[place] = pool.grade(HANGING if place % 3 == 0 else "\\frac{2}{4}", True, "0.5")

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {place: "right" if place % 3 else "timeout" for place in range(6)}
    assert len(pool._idle) <= 2
    pool.close()
    assert pool._idle == []


def test_a_child_killed_in_the_middle_of_a_grade_is_replaced(
    pool: GraderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = child_of(pool)
    os.kill(pid, signal.SIGSTOP)  # so that the grade is under way when the child is killed
    asked, read = threading.Event(), grading._Child._read

    def reading(child: Any, deadline: float) -> dict[str, Any] | None:
        asked.set()
        return read(child, deadline)

    monkeypatch.setattr(grading._Child, "_read", reading)
    verdicts: list[Verdict] = []
    thread = threading.Thread(target=lambda: verdicts.append(pool.grade("\\frac{2}{4}", True, "0.5")))
    thread.start()
    assert asked.wait(CEILING_SECONDS)
    os.kill(pid, signal.SIGKILL)
    thread.join(CEILING_SECONDS)
    assert verdicts == ["right"] and not is_alive(pid)


def test_a_child_limits_its_own_memory_and_ignores_interrupts() -> None:
    pool = GraderPool(LIMIT, workers=1, memory_bytes=1 << 30)
    pid = child_of(pool)
    limits = Path(f"/proc/{pid}/limits").read_text()
    [memory] = [line for line in limits.splitlines() if line.startswith("Max address space")]
    assert memory.split()[3:5] == [str(1 << 30)] * 2
    os.kill(pid, signal.SIGINT)
    assert child_of(pool) == pid
    pool.close()


def test_a_child_stays_although_its_owner_is_large(pool: GraderPool) -> None:
    ballast = bytearray(b"x") * (600 << 20)
    assert child_of(pool) == child_of(pool)
    del ballast


# Children in place of ours, without math-verify; they leave their process ids in PIDS beside their code.
PIDS = "child.py.pids"
LINKED = """import json, os, signal, sys
from multiprocessing.connection import Connection
print(os.getpid(), file=open(f"{__file__}.pids", "a"))
link = Connection(int(sys.argv[1]))
say = lambda message: link.send_bytes(json.dumps(message).encode())
"""
READY = f"{LINKED}say({{'ready': True}})\n"
ANSWERING = READY + "while link.recv_bytes():\n    say({'right': True, 'last': %s})\n"


@pytest.fixture
def made_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    """The code of the children of pools from now on."""
    monkeypatch.setattr(grading, "CHILD", tmp_path / "child.py")
    return grading.CHILD.write_text


@pytest.mark.parametrize(
    "death, times, fault",
    [
        (signal.SIGSEGV, 1, "error"),
        (signal.SIGKILL, 2, "error"),
        (signal.SIGXCPU, 1, "timeout"),  # the kernel was faster than the clock
    ],
)
def test_an_answer_that_kills_its_child_is_given_up(
    pool: GraderPool, made_child: Make, tmp_path: Path, death: int, times: int, fault: str
) -> None:
    note = f"open({str(tmp_path / 'deaths')!r}, 'a').write('x')\n"
    made_child(f"{READY}link.recv_bytes()\n{note}os.kill(os.getpid(), {int(death)})\n")
    assert pool.grade("1", True, "1") == fault
    assert (tmp_path / "deaths").read_text() == "x" * times


def test_a_grader_that_cannot_start_is_said_loudly(pool: GraderPool, made_child: Make) -> None:
    for code, said in (
        *[("import sys; sys.exit(1)", "did not start")] * 2,  # the place of the first child is not lost
        (f"{LINKED}say({{'missing': 'math_verify'}})", r"'math_verify' is needed .*pip install math-verify"),
    ):
        made_child(code)
        with user_error(said):
            pool.grade("1", True, "1")
    for arguments in ((0.0, 1), (float("nan"), 1), (1.0, 0)):
        with user_error("give a limit above 0"):
            GraderPool(*arguments)


@pytest.mark.parametrize("last", [False, True])
def test_a_child_that_says_that_it_ends_is_replaced(pool: GraderPool, made_child: Make, last: bool) -> None:
    made_child(ANSWERING % last)
    assert (child_of(pool) != child_of(pool)) is last


def test_a_child_that_is_already_dead_when_it_is_asked_is_replaced(
    pool: GraderPool, made_child: Make
) -> None:
    made_child(ANSWERING % False)
    pid = child_of(pool)
    os.kill(pid, signal.SIGKILL)
    until("the child has ended", lambda: not is_alive(pid))
    assert child_of(pool) != pid


def test_a_child_that_only_closes_its_connection_is_killed(
    pool: GraderPool, made_child: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made_child(f"{READY}link.recv_bytes()\nlink.close()\nsignal.pause()\n")
    wait = subprocess.Popen.wait

    def impatient(process: Any, timeout: float | None = None) -> int:
        if timeout is not None:
            raise subprocess.TimeoutExpired(process.args, timeout)
        return wait(process)

    monkeypatch.setattr(subprocess.Popen, "wait", impatient)
    assert pool.grade("1", True, "1") == "error"
    asked = [int(line) for line in (tmp_path / PIDS).read_text().split()][:2]
    assert len(asked) == 2 and not any(map(is_alive, asked))


def test_a_child_that_takes_too_long_is_killed(made_child: Make, tmp_path: Path) -> None:
    made_child(f"{READY}link.recv_bytes()\nsignal.pause()\n")
    pool = GraderPool(LIMIT, workers=1)
    assert pool.grade("1", True, "1") == "timeout"
    assert not is_alive(int((tmp_path / PIDS).read_text().split()[0]))
    pool.close()


def test_a_child_that_the_system_refuses_does_not_take_a_place(
    pool: GraderPool, made_child: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_child(ANSWERING % False)

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        for _ in range(2):
            with pytest.raises(BlockingIOError):
                pool.grade("1", True, "1")
    assert child_of(pool)


# Waits for as long as it lives, and tells when it waits for a child.
OWNER = f"""
import sys
from cppo_lab.data import grading
read = grading._Child._read

def patient_read(child, deadline):
    print("waits", flush=True)
    return read(child, deadline + {CEILING_SECONDS})

grading._Child._read = patient_read
pool = grading.GraderPool(1.0, workers=1)
assert pool.grade("\\\\frac{{2}}{{4}}", True, "0.5") == "right"
print(pool._idle[0].process.pid, flush=True)
if sys.argv[1] == "busy":
    pool.grade({HANGING!r}, True, "1")
else:
    sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_no_child_outlives_its_owner(state: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout
    said = [owner.stdout.readline() for _ in range(3)]
    assert said[:2] == ["waits\n"] * 2  # for its start, for the easy answer
    pid = int(said[2])
    if state == "busy":
        assert owner.stdout.readline() == "waits\n"
    else:
        assert is_alive(pid)
    owner.kill()
    owner.communicate()
    # A busy child is ended by its limit on processor time: 1 s and a margin of 2 s.
    until("the child has ended", lambda: not is_alive(pid))
