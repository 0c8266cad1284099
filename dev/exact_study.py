"""Train a sweep of the exact core, all seeds of a condition together, and say what came of it.

    python -m dev.exact_study train FOLDER [--part 1/2] [sweep and overrides: exact core=exact seed=0,1,2]
    python -m dev.exact_study report FOLDER

One file per condition; those that are there are not trained again. Two parts on two cores take half the time. The runs
have the numbers that `cppo launch` gives them (tests/cores/test_exact.py), and are not recorded in MLflow.
"""

import argparse
import dataclasses
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cppo_lab import schema
from cppo_lab.analysis.exact_study import (
    Condition,
    Curves,
    area_difference,
    ratios_by_horizon,
    summarise,
)
from cppo_lab.cores.exact.trainer import Metrics, train_together
from cppo_lab.reports.figures.exact_core import draw
from cppo_lab.spec import ExactRun
from cppo_lab.sweep.declare import load_sweep
from cppo_lab.sweep.plan import make_plan

KEPT = {
    "error": "exact/error",
    "movement": "exact/movement",
    "returns": "exact/return",
    "bound": "exact/bound",
    "product_bound": "exact/product_bound",
}
ONE, OTHER = "cppo", "dppo"
MATCHED = {"movement": False, "movement and return": True}  # what is equal, and whether the return is, too


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=["train", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", default="1/1", help="i/n: every n-th condition, from the i-th")
    parser.add_argument("sweep", nargs="*", default=["exact", "core=exact"])
    given = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    if given.task == "train":
        part, parts = map(int, given.part.split("/"))
        train(given.folder, given.sweep[0], given.sweep[1:], part, parts)
    else:
        report(given.folder)


def conditions(sweep: str, overrides: list[str]) -> dict[Condition, list[ExactRun]]:
    """The runs of a sweep by condition, seeds in order."""
    found: dict[Condition, list[ExactRun]] = defaultdict(list)
    for planned in make_plan(load_sweep(sweep), overrides).runs:
        spec = planned.spec
        assert isinstance(spec, ExactRun)
        (name,) = set(planned.variants.values())
        variant = name.split()[0]  # without the axes behind it
        horizon, rate = spec.rollout.max_response_length, spec.optim.learning_rate
        found[Condition(spec.model.name, variant, horizon, rate)].append(spec)
    return found


def train(folder: Path, sweep: str, overrides: list[str], part: int, parts: int) -> None:
    """Train what is missing of a part."""
    folder.mkdir(parents=True, exist_ok=True)
    for condition, specs in list(conditions(sweep, overrides).items())[part - 1 :: parts]:
        path = (
            folder
            / f"{condition.model}-{condition.variant}-{condition.horizon}-{condition.learning_rate}.npz"
        )
        if path.exists():
            continue
        started = time.process_time()
        histories = train_together(specs)
        seconds = time.process_time() - started
        steps = specs[0].training.t_stop
        arrays: dict[str, Any] = {
            name: np.stack([column([metric], rows, steps)[:, 0] for _, rows in histories])
            for name, metric in KEPT.items()
        }
        parts_of = [schema.position_metric("movement", i) for i in range(1, schema.POSITION_BINS + 1)]
        arrays["by_position"] = np.stack([column(parts_of, rows, steps) for _, rows in histories])
        partial = path.with_suffix(".part.npz")
        np.savez(
            partial,
            condition=np.array(json.dumps(dataclasses.asdict(condition))),
            seeds=np.array([spec.seed for spec in specs]),
            seconds=np.array(seconds),
            **arrays,
        )
        partial.replace(path)
        print(f"{path.stem}: {len(specs)} runs, {seconds / len(specs):.2f} s each", flush=True)


def column(metrics: list[str], rows: list[tuple[int, Metrics]], steps: int) -> np.ndarray:
    """Metrics of steps 1..steps, [step, metric]; NaN where the run had ended."""
    table = np.full((steps, len(metrics)), np.nan)
    for step, row in rows:
        if step:
            table[step - 1] = [row.get(metric, np.nan) for metric in metrics]
    return table


def report(folder: Path) -> None:
    """Write `summary.json` and the figure, and print the summary."""
    curves, seconds = {}, {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            condition = Condition(**json.loads(str(file["condition"])))
            arrays = {name: file[name] for name in (*KEPT, "by_position")}
            curves[condition] = Curves(tuple(file["seeds"].tolist()), **arrays)
            seconds[condition] = float(file["seconds"])
    found = {condition: summarise(one) for condition, one in curves.items()}
    models = sorted({condition.model for condition in curves})
    ratios = {
        name: {model: ratios_by_horizon(curves, model, ONE, OTHER, by_return) for model in models}
        for name, by_return in MATCHED.items()
    }
    areas = {
        condition: area_difference(one, curves[dataclasses.replace(condition, variant=OTHER)])
        for condition, one in curves.items()
        if condition.variant == ONE
    }
    summary: dict[str, Any] = {
        "seeds": min(len(one.seeds) for one in curves.values()),
        "cpu_seconds": sum(seconds.values()),
        "conditions": [
            {**dataclasses.asdict(c), **dataclasses.asdict(found[c]), "cpu_seconds": seconds[c]}
            for c in found
        ],
        "ratios": {
            name: {
                model: {
                    "by_horizon": {str(t): dataclasses.asdict(one) for t, one in by.items()},
                    "slope_in_log_horizon": dataclasses.asdict(slope),
                }
                for model, (by, slope) in own.items()
            }
            for name, own in ratios.items()
        },
        "area_difference": [{**dataclasses.asdict(c), **dataclasses.asdict(one)} for c, one in areas.items()],
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    shown = {name: {model: by for model, (by, _) in own.items()} for name, own in ratios.items()}
    draw(curves, found, shown).savefig(folder / "exact.svg")
    print_table(summary)


def print_table(summary: dict[str, Any]) -> None:
    """The summary as a table for the terminal."""
    print(f"{summary['seeds']} seeds, {summary['cpu_seconds']:.0f} CPU seconds")
    for row in summary["conditions"]:
        print(
            f"{row['model']:15}{row['variant']:26}T={row['horizon']:<6}lr={row['learning_rate']:<6g}"
            f"|Delta| {row['error']:.5f}  movement {row['movement']:.4f}  return {row['area']:.3f}  "
            f"falls {row['falls']:.3f}  bound x{row['bound_ratio']:.3g}  product x{row['product_ratio']:.3g}"
        )
    for where, model, found in ((w, m, f) for w, own in summary["ratios"].items() for m, f in own.items()):
        cells = [
            f"T={t} {r['value']:.2f} [{r['low']:.2f}, {r['high']:.2f}]"
            for t, r in found["by_horizon"].items()
        ]
        slope = found["slope_in_log_horizon"]
        print(f"{model}: |Delta|, {ONE}/{OTHER} at equal {where}: {'; '.join(cells)}")
        print(f"  slope in log T {slope['value']:+.3f} [{slope['low']:+.3f}, {slope['high']:+.3f}]")
    for row in summary["area_difference"]:
        print(
            f"return, {ONE} - {OTHER}: {row['model']} T={row['horizon']} lr={row['learning_rate']:g}: "
            f"{row['value']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"
        )


if __name__ == "__main__":
    main()
