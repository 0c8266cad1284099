"""Whole sequential studies on the exact core, judged as a report judges them: false verdicts, seeds taken, intervals.

    python -m dev.sequential_studies > docs/evidence/sequential_studies.csv

STUDIES studies for each truth. Each trains two arms of a small process with SEEDS seeds that no other study has, and
judges `the first is above the second` after each seed from the fourth on, until a look decides it; an advantage below
SMALLEST counts as none. Two truths: `twins` (one rule; the second arm has other seeds, so there is no difference) and
`different` (the second arm has other seeds and the learning rate SLOW). The true lead is the mean over all pairs of all
studies.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.analysis.statistics.verdicts import Verdict, VerdictOutcome, judge
from cppo_lab.cores.exact.trainer import histories_together
from cppo_lab.spec import ExactRun
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from tests.analysis.made_sweeps import MadeRun, scored

STUDIES = 1000
SEEDS, FIRST = 12, 1_000_000  # of each study; no other study uses the seeds from FIRST on
RATE, SLOW = 0.16, 0.01  # learning rates, for one update
SMALLEST = 0.10
TOGETHER = 4  # studies that are trained together
MODEL, ARMS = "exact_early", ("first", "second")
SMALL = [
    *("variant=dppo", "seed=0", "rollout.max_response_length=8", "training.t_stop=1", "validation.every=1"),
    *("batch.prompts=4", "batch.responses=4", "batch.minibatch_prompts=4"),
]
SCORE = schema.validation_metric(schema.MEAN)
CLAIM = Claim(
    key="above",
    text="The first arm ends above the second",
    sweep="studies",
    kind=Kind.SUPERIORITY,
    tiers=(ARMS[:1], ARMS[1:]),
    seeds=tuple(range(SEEDS)),
    tests=frozenset((MODEL, arm, seed) for arm in ARMS for seed in range(SEEDS)),
    smallest=SMALLEST,
    sequential=True,
)
Curve = Mapping[int, float]  # step -> score


def main() -> None:
    """See the module's docstring."""
    torch.set_num_threads(1)
    [spec] = [run.spec for run in make_plan(load_sweep("quickstart_exact"), SMALL).runs]
    assert isinstance(spec, ExactRun), "the sweep is of the exact core"
    verdicts: dict[str, list[Verdict]] = {"twins": [], "different": []}
    leads: dict[str, list[float]] = {truth: [] for truth in verdicts}
    for batch in range(0, STUDIES, TOGETHER):
        first, second = (FIRST + SEEDS * (2 * batch + TOGETHER * arm) for arm in range(2))
        arms = trained(spec, first, RATE), trained(spec, second, RATE), trained(spec, second, SLOW)
        for ours, *others in zip(*arms, strict=True):
            for truth, theirs in zip(verdicts, others, strict=True):
                board = board_of(ours, theirs)
                verdicts[truth].append(judge(CLAIM, board, run_values(board)))
                leads[truth] += [a[1] - b[1] for a, b in zip(ours, theirs, strict=True)]
    table = pd.DataFrame([{"truth": truth} | summary(ends, leads[truth]) for truth, ends in verdicts.items()])
    table.to_csv(sys.stdout, index=False, float_format="%.4g", lineterminator="\n")


def trained(spec: ExactRun, start: int, rate: float) -> list[list[Curve]]:
    """The curves of one arm of TOGETHER studies, whose seeds begin with `start`, at a learning rate."""
    optim = spec.optim.model_copy(update={"learning_rate": rate})
    specs = [spec.model_copy(update={"optim": optim, "seed": start + i}) for i in range(SEEDS * TOGETHER)]
    curves: list[Curve] = [
        {step: row[SCORE] for step, row in rows if SCORE in row} for _, rows in histories_together(specs)
    ]
    return [curves[i : i + SEEDS] for i in range(0, len(curves), SEEDS)]


def board_of(*arms: Sequence[Curve]) -> Scoreboard:
    """The two arms as a scored sweep, as a store would give it."""
    runs = [
        MadeRun(arm, MODEL, seed, {schema.MEAN: curve}, t_stop=1, core="exact")
        for arm, curves in zip(ARMS, arms, strict=True)
        for seed, curve in enumerate(curves)
    ]
    board: Scoreboard = scored(runs, "studies")
    return board


def summary(verdicts: Sequence[Verdict], leads: Sequence[float]) -> dict[str, Any]:
    """How the studies of one truth ended: percent, and points for differences."""
    lead = float(np.mean(leads))
    ended = [verdict.comparisons[0].estimate for verdict in verdicts]
    low, high, value = np.array([(e.low, e.high, e.value) for e in ended if e and e.low is not None]).T
    outcomes = [verdict.outcome for verdict in verdicts]
    looked = np.array([verdict.looked for verdict in verdicts])
    return {
        "studies": len(verdicts),
        "lead": 100 * lead,
        "deviation": 100 * np.std(leads),
        **{str(outcome): 100 * outcomes.count(outcome) / len(outcomes) for outcome in VerdictOutcome},
        "interval below 0": 100 * np.mean(high < 0),
        "interval holds the lead": 100 * np.mean((low <= lead) & (lead <= high)),
        "estimate": 100 * np.mean(value),
        "seeds": np.mean(looked),
        "ended before the last": 100 * np.mean(looked < SEEDS),
    }


if __name__ == "__main__":
    main()
