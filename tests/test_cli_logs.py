"""`cppo logs`: a line for each training step, of any core, and what was printed."""

import io
import threading
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.monitor.logs import follow
from cppo_lab.runs.events import Begin, StepEvent
from cppo_lab.runs.folder import write_status
from cppo_lab.runs.spool import open_spool
from tests.waiting import until

RUN = "0123456789ab"


def step(number: int, score: float | None = None) -> StepEvent:
    metrics = (
        {"train/reward": 0.5, "rule/masked_fraction": 0.021, "perf/step_seconds": 1.25} if number else {}
    )
    return StepEvent(
        number, 1000, metrics | ({} if score is None else {schema.validation_metric(schema.MEAN): score})
    )


def test_a_line_for_each_step(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = workspace / "runs" / RUN
    folder.mkdir(parents=True)
    write_status(folder, {"status": "done", "t_stop": 10})
    spool = open_spool(folder)
    for line in (Begin("a", "cppo-verl", "a run", 1, {}, {}), step(0, 0.25), step(1), step(10, 0.4375)):
        spool.add(line)
    spool.close()
    assert main(["logs", RUN[:6]]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "step  0/10  score  25.0 %",
        "step  1/10                  reward  0.500  masked   2.10 %  seconds     1.25 s",
        "step 10/10  score  43.8 %  reward  0.500  masked   2.10 %  seconds     1.25 s",
    ]
    (folder / "attempts").mkdir()
    (folder / "attempts" / "7_0_log.out").write_text("what it printed\n")
    assert main(["logs", RUN]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[2][:10], lines[-1]) == ("step 10/10", "what it printed")


def test_steps_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / RUN
    folder.mkdir()
    write_status(folder, {"status": "running", "t_stop": 2})
    spool, out, lives = open_spool(folder), io.StringIO(), threading.Event()
    lives.set()
    thread = threading.Thread(target=follow, args=(tmp_path, RUN, lives.is_set, out))
    thread.start()
    try:
        spool.add(Begin("a", "cppo-exact", "a run", 1, {}, {}))
        for number in (0, 1):
            spool.add(step(number))
            until(f"step {number}", lambda number=number: f"step {number}/2" in out.getvalue())
        assert "step 2/2" not in out.getvalue()
    finally:
        spool.add(step(2))
        lives.clear()
        thread.join()
    assert [line[:8] for line in out.getvalue().splitlines()] == ["step 0/2", "step 1/2", "step 2/2"]
