"""The thresholds of `sweeps/exact.yaml` at which every rule moves the policy as far as DPPO, on seeds of no study.

    python -m dev.exact_selection [--seeds 8] [--file FILE.csv]      # docs/evidence/exact_selection.csv; CPU minutes

Uses `exact/movement` only, never the error. Searches for a rule's threshold rule.delta at which the log ratio of its
movement to DPPO's, averaged over processes and horizons, is 0 within 5 %. The first try is DPPO's threshold times
the mean position weight. The file has a row for every try on every process, with means over seeds and steps: the
movement, and that from the sampler's mismatch alone; the mean D of the tokens that enter the updates; the masked share
of the tokens with a learning signal. `chosen` takes the nearest or interpolates; a test compares the sweep's thresholds
with it.
"""

import argparse
import math
import multiprocessing
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cppo_lab.cores.exact.trainer import histories_together
from cppo_lab.errors import UserError
from cppo_lab.spec import ExactRun
from cppo_lab.sweep.file import Sweep, load_sweep
from cppo_lab.sweep.plan import make_plan

FILE = Path(__file__).parents[1] / "docs" / "evidence" / "exact_selection.csv"
SEEDS = range(100, 108)
REFERENCE, FREE = "dppo", "no_trust_region"  # the rule to match; the one without a threshold
NEAR = 0.05  # a mean log ratio of movements within this counts as equal
FAR = 0.1  # beyond this the nearest is rejected: where the budget limits a rule, its threshold changes little
TRIES = 3
MEANS = {
    "movement": "exact/movement",
    "movement_before": "exact/movement_before",
    "divergence": "rule/divergence_mean",
    "masked": "rule/masked_fraction",
}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the selection seeds")
    parser.add_argument("--file", type=Path, default=FILE)
    given = parser.parse_args()
    seeds = SEEDS[: given.seeds]
    reference = measured(REFERENCE, None, seeds)
    others = [(name, reference, seeds) for name in _sweep().variants if name not in (REFERENCE, FREE)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        tries = pool.starmap(searched, others, chunksize=1)
    rows = pd.concat([reference, measured(FREE, None, seeds), *tries])
    rows.to_csv(given.file, index=False, float_format="%.6g", lineterminator="\n")
    for name, delta in chosen(rows).items():
        print(f"{name}: rule.delta: {delta:g}")


def searched(variant: str, reference: pd.DataFrame, seeds: Sequence[int]) -> pd.DataFrame:
    """All thresholds tried for one rule: DPPO's over the mean weight first, then by the secant through the last two."""
    w_min = float(_sweep().variants[variant].get("rule.w_min", 1.0))  # type: ignore[arg-type]
    at = math.log(reference["delta"].iloc[0] * (1 + w_min) / 2)
    tries: list[pd.DataFrame] = []
    points: list[tuple[float, float]] = []  # log threshold, log ratio of movements
    for _ in range(TRIES):
        delta = float(f"{math.exp(at):.4g}")
        tries.append(measured(variant, delta, seeds))
        place, ratio = math.log(delta), log_ratio(tries[-1], reference)
        print(f"{variant}: rule.delta {delta:g}, log ratio of movements {ratio:+.4f}", flush=True)
        if abs(ratio) < NEAR:
            break
        slope = 0.5  # first guess: the slope of DPPO's own movement in its threshold
        if points and place != points[-1][0]:
            slope = (ratio - points[-1][1]) / (place - points[-1][0])
        points.append((place, ratio))
        at = place - max(-1.0, min(1.0, ratio / max(slope, 0.1)))
    return pd.concat(tries)


def _sweep() -> Sweep:
    sweep = load_sweep("exact")
    assert isinstance(sweep, Sweep)
    return sweep


def measured(variant: str, delta: float | None, seeds: Sequence[int]) -> pd.DataFrame:
    """One rule on all processes and horizons of the sweep; `delta` None: the sweep's own."""
    torch.set_num_threads(1)
    asked = ["core=exact", f"variant={variant}", f"seed={','.join(map(str, seeds))}"]
    specs: dict[tuple[str, int], list[ExactRun]] = defaultdict(list)
    for planned in make_plan(_sweep(), asked).runs:
        spec = planned.spec
        assert isinstance(spec, ExactRun)
        if delta is not None:
            spec = spec.model_copy(update={"rule": spec.rule.model_copy(update={"delta": delta})})
        specs[spec.model.name, spec.rollout.max_response_length].append(spec)
    rows = []
    for (model, horizon), runs in specs.items():
        steps = pd.DataFrame(
            [row for _, history in histories_together(runs) for step, row in history if step]
        )
        threshold = {"variant": variant, "delta": runs[0].rule.delta, "seeds": len(runs)}
        means = steps.reindex(columns=MEANS.values()).mean()
        rows.append({**threshold, "model": model, "horizon": horizon, **dict(zip(MEANS, means, strict=True))})
    return pd.DataFrame(rows)


def log_ratio(rows: pd.DataFrame, reference: pd.DataFrame) -> float:
    """Mean over processes and horizons of the log of a rule's movement over the reference's there."""
    movement, there = (table.set_index(["model", "horizon"])["movement"] for table in (rows, reference))
    return float(np.log(movement / there).mean())


def chosen(rows: pd.DataFrame) -> dict[str, float]:
    """Each rule's threshold, with 3 digits: the nearest tried, or between the nearest on both sides of DPPO's.

    Raises UserError if no try of a rule is near DPPO's movement.
    """
    reference = rows[rows["variant"] == REFERENCE]
    thresholds = {}
    for variant, tries in rows[~rows["variant"].isin([REFERENCE, FREE])].groupby("variant", sort=False):
        by_delta = tries.groupby("delta", sort=False)
        points = [(log_ratio(some, reference), math.log(delta)) for delta, some in by_delta]
        (near, at), *more = sorted(points, key=lambda point: abs(point[0]))
        beyond = next(((value, where) for value, where in more if value * near < 0), None)
        if abs(near) > NEAR and beyond is not None:
            at -= near * (beyond[1] - at) / (beyond[0] - near)
        elif abs(near) > FAR:
            raise UserError(f"{variant}: the nearest threshold tried moves {math.exp(near):.2f} times as far")
        thresholds[str(variant)] = float(f"{math.exp(at):.3g}")
    return thresholds


if __name__ == "__main__":
    main()
