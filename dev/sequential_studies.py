"""Whole sequential studies on the exact core, judged as a report judges them: false verdicts, seeds taken, intervals.

    python -m dev.sequential_studies [--studies 1000] [--csv FILE]

Each study trains two arms of a small process with SEEDS seeds that no other study has, and judges `the first is above
the second` after each seed from the fourth on, until a look decides it; an advantage below SMALLEST counts as none. Two
truths: `twins` (one rule; the second arm has other seeds, so there is no difference) and `different` (the second arm
has other seeds and the learning rate SLOW). The true lead is the mean over all pairs of all studies.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.analysis.points import RUN_COLUMNS, SweepData, points_frame
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.analysis.statistics.verdicts import Verdict, VerdictOutcome, judge
from cppo_lab.cores.exact.trainer import histories_together
from cppo_lab.spec import ExactRun
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking.history import from_columns

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    [spec] = [run.spec for run in make_plan(load_sweep("quickstart_exact"), SMALL).runs]
    assert isinstance(spec, ExactRun), "the sweep is of the exact core"
    verdicts: dict[str, list[Verdict]] = {"twins": [], "different": []}
    leads: dict[str, list[float]] = {truth: [] for truth in verdicts}
    for batch in range(0, given.studies, TOGETHER):
        first, second = (FIRST + SEEDS * (2 * batch + TOGETHER * arm) for arm in range(2))
        arms = trained(spec, first, RATE), trained(spec, second, RATE), trained(spec, second, SLOW)
        for ours, *others in zip(*arms, strict=True):
            for truth, theirs in zip(verdicts, others, strict=True):
                board = board_of(ours, theirs)
                verdicts[truth].append(judge(CLAIM, board, run_values(board)))
                leads[truth] += [a[1] - b[1] for a, b in zip(ours, theirs, strict=True)]
        if batch + TOGETHER < given.studies and (batch // TOGETHER) % 25 != 24:
            continue
        table = pd.DataFrame([summary(truth, of, leads[truth]) for truth, of in verdicts.items()])
        print(table.T.to_string(header=False, float_format=lambda value: f"{value:.2f}"), flush=True)
        if given.csv:
            table.to_csv(given.csv, index=False, float_format="%.4g", lineterminator="\n")


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
    rows, points, expected = [], [], []
    start = pd.Timestamp(2026, 1, 1, tz="UTC")
    for arm, curves in zip(ARMS, arms, strict=True):
        for seed, curve in enumerate(curves):
            name = f"{arm} {seed}"
            rows.append(
                (name, name, arm, "dppo", MODEL, "exact", seed, 1, schema.DONE, "", name, start, start, "")
            )
            columns = {SCORE: (list(curve), list(curve.values()), [0] * len(curve))}
            points.append((name, from_columns(columns)))
            expected.append(ExpectedRun(name, MODEL, arm, seed))
    frame = pd.DataFrame(rows, columns=list(RUN_COLUMNS)).astype({"seed": "Int64", "t_stop": "Int64"})
    return score_sweep(SweepData("studies", "studies", frame, points_frame(points)), expected)


def summary(truth: str, verdicts: Sequence[Verdict], leads: Sequence[float]) -> dict[str, object]:
    """How the studies of one truth ended: percent, and points for differences."""
    lead = float(np.mean(leads))
    ended = [each.comparisons[0].estimate for each in verdicts]
    ends = [(e.low, e.high, e.value) for e in ended if e and e.low is not None and e.high is not None]
    shares = {
        str(outcome): 100 * float(np.mean([each.outcome is outcome for each in verdicts]))
        for outcome in VerdictOutcome
    }
    looked = [each.looked for each in verdicts]
    return {
        "truth": truth,
        "studies": len(verdicts),
        "lead": 100 * lead,
        "deviation": 100 * float(np.std(leads)),
        **shares,
        "interval below 0": 100 * float(np.mean([high < 0 for _, high, _ in ends])),
        "interval holds the lead": 100 * float(np.mean([low <= lead <= high for low, high, _ in ends])),
        "estimate": 100 * float(np.mean([value for _, _, value in ends])),
        "seeds": float(np.mean(looked)),
        "ended before the last": 100 * float(np.mean([count < SEEDS for count in looked])),
    }


if __name__ == "__main__":
    main()
