"""`cppo launch --until-decided`: real studies on the exact core that end early, late and not at all."""

import json
from pathlib import Path

import pytest

from cppo_lab.cli import main

SWEEP = """
title: Fast and slow
question: Does the larger learning rate end above?
models: {{exact: [exact_early]}}
variants:
  fast: {{rule: dppo}}
  slow: {{rule: dppo, optim.learning_rate: {slow}}}
axes: {{seed: [0, 1, 2, 3, 4, 5, 6]}}
hypotheses:
  above:
    {{claim: fast ends above slow, better: [fast], than: [slow], smallest: {smallest}, sequential: true,
     test_seeds: [3, 0, 1, 2, 4, 5]}}
"""
SHORT = ("training.t_stop=2", "validation.every=1", "launcher=inline")


def launched(
    workspace: Path, capsys: pytest.CaptureFixture[str], slow: str, smallest: float, *more: str
) -> tuple[int, str, int]:
    """Exit code, what was said, and the runs that have a record."""
    (workspace / "mine.yaml").write_text(SWEEP.format(slow=slow, smallest=smallest), encoding="utf-8")
    code = main(["launch", "mine.yaml", *SHORT, "--until-decided", *more])
    said = capsys.readouterr()
    return code, said.out + said.err, len(list((workspace / "runs").glob("*/spool")))


def test_a_clear_difference_ends_the_study_at_its_first_look(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, runs = launched(workspace, capsys, "1.0e-6", 1.0, "--dry-run")
    assert code == 0 and runs == 0 and "would train 8 of 8 runs" in said
    code, said, runs = launched(workspace, capsys, "1.0e-6", 1.0)
    assert code == 0 and runs == 8
    assert "fast ends above slow: supported. It holds:" in said
    assert "Sequential: decided after 4 of 6 seeds, 1 look." in said
    # Again: nothing is left to train, and the answer is the same.
    code, again, runs = launched(workspace, capsys, "1.0e-6", 1.0)
    assert code == 0 and runs == 8 and "0 to train" in again and "decided after 4 of 6 seeds" in again


def test_a_study_that_nothing_decides_takes_a_seed_at_a_time_up_to_its_limit(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twins = "0.0201"
    code, said, runs = launched(workspace, capsys, twins, 0.000001, "--max-seeds", "5")
    assert code == 0 and runs == 10 and "open after 5 of 6 seeds, 2 looks." in said
    code, said, runs = launched(workspace, capsys, twins, 0.000001)
    assert code == 0 and runs == 12 and "open after 6 of 6 seeds, 3 looks." in said


def test_a_claim_that_is_judged_once_is_refused(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.SWEEP", SWEEP.replace("sequential: true,", ""))
    code, said, _ = launched(workspace, capsys, "1.0e-6", 1.0)
    assert code == 2
    assert "above is judged once: state `sequential: true` before its first run" in said


def test_runs_that_fail_end_the_study_with_one_answer(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr("cppo_lab.cores.exact.trainer._train", fails)
    (workspace / "mine.yaml").write_text(SWEEP.format(slow="1.0e-6", smallest=1.0), encoding="utf-8")
    code = main(["launch", "mine.yaml", *SHORT, "--until-decided", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == answer["exit_code"] == 4 and {run["state"] for run in answer["runs"]} == {
        "failed",
        "missing",
    }
