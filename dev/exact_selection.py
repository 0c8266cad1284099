"""The thresholds of `sweeps/exact.yaml` at which every rule moves the policy as far as DPPO, on seeds of no study.

    python -m dev.exact_selection [--seeds 8] [--file FILE.csv]      # docs/evidence/exact_selection.csv; CPU minutes

Uses `exact/movement` only, never the error. Searches for a rule's threshold rule.delta at which the log ratio of its
movement to DPPO's, averaged over processes and horizons, is 0 within 5 %. The first try is DPPO's threshold times
the mean position weight. The file has every try; `chosen` takes the nearest or interpolates; a test compares the
sweep's thresholds with it.
"""

import argparse
import csv
import math
import multiprocessing
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
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


@dataclass(frozen=True)
class Tried:
    """One rule with one threshold on one process: means over seeds and steps."""

    variant: str
    delta: float
    seeds: int
    model: str
    horizon: int
    movement: float
    movement_before: float  # from the sampler's mismatch only
    divergence: float  # mean D of the tokens that enter the updates
    masked: float  # share of the tokens with a learning signal


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the selection seeds")
    parser.add_argument("--file", type=Path, default=FILE)
    given = parser.parse_args()
    seeds = SEEDS[: given.seeds]
    rows = [*measured(REFERENCE, None, seeds), *measured(FREE, None, seeds)]
    reference = [row for row in rows if row.variant == REFERENCE]
    others = [name for name in _sweep().variants if name not in (REFERENCE, FREE)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for searched_rows in pool.starmap(
            searched, [(name, reference, seeds) for name in others], chunksize=1
        ):
            rows += searched_rows
    with given.file.open("w", newline="") as out:
        writer = csv.DictWriter(out, [field.name for field in fields(Tried)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            values = asdict(row).items()
            writer.writerow({name: f"{v:.6g}" if isinstance(v, float) else v for name, v in values})
    for name, delta in chosen(rows).items():
        print(f"{name}: rule.delta: {delta:g}")


def searched(variant: str, reference: Sequence[Tried], seeds: Sequence[int]) -> list[Tried]:
    """All thresholds tried for one rule: DPPO's over the mean weight first, then by the secant through the last two."""
    w_min = float(_sweep().variants[variant].get("rule.w_min", 1.0))  # type: ignore[arg-type]
    at = math.log(reference[0].delta * (1 + w_min) / 2)
    rows: list[Tried] = []
    points: list[tuple[float, float]] = []  # log threshold, log ratio of movements
    for _ in range(TRIES):
        new = list(measured(variant, float(f"{math.exp(at):.4g}"), seeds))
        rows += new
        place, ratio = math.log(new[0].delta), log_ratio(new, reference)
        print(f"{variant}: rule.delta {new[0].delta:g}, log ratio of movements {ratio:+.4f}", flush=True)
        if abs(ratio) < NEAR:
            break
        slope = 0.5  # first guess: the slope of DPPO's own movement in its threshold
        if points and place != points[-1][0]:
            slope = (ratio - points[-1][1]) / (place - points[-1][0])
        points.append((place, ratio))
        at = place - max(-1.0, min(1.0, ratio / max(slope, 0.1)))
    return rows


def _sweep() -> Sweep:
    sweep = load_sweep("exact")
    assert isinstance(sweep, Sweep)
    return sweep


def measured(variant: str, delta: float | None, seeds: Sequence[int]) -> Iterator[Tried]:
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
    for (model, horizon), runs in specs.items():
        rows = [row for _, history in histories_together(runs) for step, row in history if step]
        metrics = ("exact/movement", "exact/movement_before", "rule/divergence_mean", "rule/masked_fraction")
        means = [np.mean([row[name] for row in rows if name in row] or [math.nan]) for name in metrics]
        threshold = runs[0].rule.delta
        assert threshold is not None
        yield Tried(variant, threshold, len(runs), model, horizon, *map(float, means))


def log_ratio(rows: Sequence[Tried], reference: Sequence[Tried]) -> float:
    """Mean over processes and horizons of the log of a rule's movement over the reference's there."""
    there = {(row.model, row.horizon): row.movement for row in reference}
    return float(np.mean([math.log(row.movement / there[row.model, row.horizon]) for row in rows]))


def chosen(rows: Sequence[Tried]) -> dict[str, float]:
    """Each rule's threshold, with 3 digits: the nearest tried, or between the nearest on both sides of DPPO's.

    Raises UserError if no try of a rule is near DPPO's movement.
    """
    reference = [row for row in rows if row.variant == REFERENCE]
    tries: dict[str, dict[float, list[Tried]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.variant not in (REFERENCE, FREE):
            tries[row.variant][row.delta].append(row)
    thresholds = {}
    for variant, by_delta in tries.items():
        points = [(log_ratio(some, reference), math.log(delta)) for delta, some in by_delta.items()]
        (near, at), *more = sorted(points, key=lambda point: abs(point[0]))
        beyond = next(((value, where) for value, where in more if value * near < 0), None)
        if abs(near) > NEAR and beyond is not None:
            at -= near * (beyond[1] - at) / (beyond[0] - near)
        elif abs(near) > FAR:
            raise UserError(f"{variant}: the nearest threshold tried moves {math.exp(near):.2f} times as far")
        thresholds[variant] = float(f"{math.exp(at):.3g}")
    return thresholds


def read(file: Path = FILE) -> list[Tried]:
    """Read the tries from the file."""
    kinds = {field.name: field.type for field in fields(Tried)}
    with file.open(newline="") as text:
        rows = csv.DictReader(text)
        return [Tried(**{name: kinds[name](value) for name, value in row.items()}) for row in rows]  # type: ignore[operator]


if __name__ == "__main__":
    main()
