"""`cppo logs`: a line for each training step, of any core, and what was printed."""

import io
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab import schema
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs.folder import write_status
from cppo_lab.runs.spool import Begin, StepEvent, open_spool
from cppo_lab.sweep import status
from tests.conftest import Command

RUN, OTHER = "00000000abcd", "00000000abce"
METRICS = {"train/reward": 0.5, "rule/masked_fraction": 0.021, "perf/step_seconds": 1.25}
BEGIN = Begin("a", "cppo-verl", "a run", 1, {}, {})


def step(number: int, score: float | None = None) -> StepEvent:
    scores = {} if score is None else {schema.validation_metric(schema.MEAN): score}
    return StepEvent(number, 1000, (METRICS if number else {}) | scores)


def test_a_line_for_each_step(workspace: Path, cppo: Command) -> None:
    folder = workspace / "runs" / RUN
    (folder / "attempts").mkdir(parents=True)
    write_status(folder, {"status": "done", "t_stop": 10})
    spool = open_spool(folder)
    for line in (BEGIN, step(0, 0.25), step(1), step(10, 0.4375)):
        spool.add(line)
    spool.close()
    lines = [
        "step  0/10  score  25.0 %",
        "step  1/10                  reward  0.500  masked   2.10 %  seconds     1.25 s",
        "step 10/10  score  43.8 %  reward  0.500  masked   2.10 %  seconds     1.25 s",
    ]
    path = folder / "attempts" / "7_0_log.out"
    for text, more in (("", []), ("printed\n", [f"==> {path} <==", "printed"])):
        path.write_text(text)
        assert cppo(f"logs {RUN[:9]}").out.splitlines() == [*lines, *more]


def test_output_of_every_launcher(workspace: Path, cppo: Command) -> None:
    runs = workspace / "runs"
    with Ledger(runs) as ledger:
        ledger.submitted(token := ledger.claim([OTHER, RUN]), 70)
        in_slurm = ledger.folder_of(token) / "70_1_0_log.out"
    local = runs / RUN / "attempts" / "11_0_log.out"
    texts = {local: "local\n", local.with_suffix(".err"): "a warning\n", in_slurm: "in Slurm\n"}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    os.utime(local, (1, 1))
    assert cppo(f"logs {RUN}").out == "in Slurm\n"
    listed = "".join(f"==> {path} <==\n{text}" for path, text in texts.items())
    assert cppo(f"logs {RUN} --all").out == listed
    # Its job has not started.
    assert "it has no output and no training step" in cppo(f"logs {OTHER}", code=2).err
    assert "is a prefix of 2 ids" in cppo(f"logs {RUN[:8]}", code=2).err  # one has no folder


def test_following_ends_with_the_run_and_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is the test's own: a run prints and trains while its follower sleeps."""
    log = tmp_path / RUN / "attempts" / "1_0_log.out"
    log.parent.mkdir(parents=True)
    write_status(tmp_path / RUN, {"status": "running", "t_stop": 3})
    spool = open_spool(tmp_path / RUN)
    spool.add(BEGIN)
    pieces = [b"", b"one\n", b"tw\xc3", b"\xb6\nlast\n"]  # a character in two pieces; then the run ends
    slept: list[float] = []
    shown: list[str] = []
    out = io.StringIO()

    def sleep(seconds: float) -> None:
        shown.append(out.getvalue())
        with log.open("ab") as file:
            file.write(pieces[len(slept)])
        spool.add(StepEvent(len(slept), 1000, {}))
        slept.append(seconds)

    monkeypatch.setattr(
        "cppo_lab.sweep.status.time", SimpleNamespace(sleep=sleep, monotonic=lambda: sum(slept))
    )
    monkeypatch.setattr(
        "cppo_lab.sweep.status.LOOK_SECONDS", 1.5 * status.POLL_SECONDS
    )  # at every other piece
    status.follow_logs(tmp_path, RUN, lambda: len(slept) < len(pieces), out)
    first = "step 0/3\none\nstep 1/3\n"  # a line as soon as it is whole
    assert shown == ["", "step 0/3\n", first, f"{first}step 2/3\n"]
    assert out.getvalue() == f"{first}step 2/3\ntwö\nlast\nstep 3/3\n"
