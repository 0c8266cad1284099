"""`cppo launch --until-decided`: real studies on the exact core that end early, late and not at all."""

from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from tests.conftest import Command

SWEEP = """
title: Fast and slow
question: Does the larger learning rate end above?
models: {exact: [exact_early]}
variants:
  fast: {rule: dppo}
  slow: {rule: dppo, optim.learning_rate: 1.0e-6}
axes: {seed: [0, 1, 2, 3, 4, 5, 6]}
hypotheses:
  above:
    {claim: fast ends above slow, better: [fast], than: [slow], smallest: 1.0, sequential: true,
     test_seeds: [3, 0, 1, 2, 4, 5]}
"""
TWINS = SWEEP.replace("1.0e-6", "0.0201").replace("smallest: 1.0", "smallest: 0.000001")
LAUNCH = "launch mine.yaml --until-decided training.t_stop=2 validation.every=1 launcher=inline"


@pytest.fixture(autouse=True)
def mine(workspace: Path) -> Path:
    """The file of the sweep, of which a test may write another."""
    (workspace / "mine.yaml").write_text(SWEEP)
    return workspace / "mine.yaml"


def recorded() -> int:
    """How many runs have a record."""
    return len(list(Path("runs").glob("*/spool")))


def test_a_clear_difference_ends_the_study_at_its_first_look(cppo: Command, undrawn: None) -> None:
    assert "would train 8 of 8 runs" in cppo(LAUNCH, "--dry-run").out
    assert recorded() == 0
    said = "\n".join(cppo(LAUNCH))
    assert "fast ends above slow: supported. It holds:" in said
    assert "Sequential: decided after 4 of 6 seeds, 1 look." in said and recorded() == 8
    # Again: nothing is left to train, and the answer is the same.
    again = "\n".join(cppo(LAUNCH))
    assert "0 to train" in again and "decided after 4 of 6 seeds" in again and recorded() == 8
    # Seeds after the decision are no gap of its report; the one that tests nothing is.
    report = "report mine.yaml training.t_stop=2 validation.every=1"
    assert "2 of 10 runs have no result" in cppo(report, code=2).err
    cppo(f"{report} seed=0,1,2,3,4,5")
    # Nor of its archive, nor of what is watched.
    decided = "training.t_stop=2 validation.every=1 seed=0,1,2,3,4,5"
    assert "some.zip: 8 of 8 runs" in cppo(f"archive mine.yaml --out some.zip {decided}").out
    cppo(f"watch mine.yaml {decided}")
    cppo(f"watch mine.yaml {decided},6", code=1)
    page = Path("reports/build/mine/index.html").read_text()
    assert "decided after 4 of 6 seeds" in page and "Incomplete" not in page
    Path("all.yaml").write_text("title: All\nquestion: Which?\nsweeps: [./mine.yaml]\n")
    cppo(report.replace("mine", "all") + " core=exact seed=0,1,2,3,4,5")


def test_a_study_that_nothing_decides_takes_a_seed_at_a_time_up_to_its_limit(
    cppo: Command, mine: Path
) -> None:
    mine.write_text(TWINS)
    # The store has runs of another sweep.
    cppo(f"{LAUNCH.replace('mine.yaml --until-decided', 'quickstart_exact')} variant=cppo seed=0")
    assert "open after 5 of 6 seeds, 2 looks." in "\n".join(cppo(LAUNCH, "--max-seeds", "5"))
    assert recorded() == 11
    assert "open after 6 of 6 seeds, 3 looks." in "\n".join(cppo(LAUNCH))
    assert recorded() == 13


def test_a_claim_that_is_judged_once_is_refused(cppo: Command, mine: Path) -> None:
    mine.write_text(SWEEP.replace("sequential: true,", ""))
    said = cppo(LAUNCH, code=2).err
    assert "above is judged once: state `sequential: true` before its first run" in said


@patch("cppo_lab.cores.exact.trainer.train_runs", Mock(side_effect=RuntimeError("no luck")))
def test_runs_that_fail_end_the_study_with_one_answer(cppo: Command) -> None:
    said = cppo(LAUNCH, "--json", code=4)
    assert (said.answer["exit_code"], {state for state, _ in said.states}) == (4, {"failed", "missing"})
