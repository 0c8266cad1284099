"""Speed of the embedded core: sampled and trained tokens per second, and what a trust-region rule costs.

The ratio compares one training step under `cppo` (Top-K divergence, position weights, prefix budget) with the same
step under `grpo`, on the same rollouts in the same run.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from cppo_lab.cores.base import Resources
from cppo_lab.cores.mini.trainer import Batch, Trainer
from cppo_lab.sweep.compose import compose

TARGETS = {"cppo_update_over_grpo_update": 1.25}  # at most


def update_seconds(trainer: Trainer, batch: Batch) -> float:
    """Wall time of the minibatch updates on `batch`."""
    started = time.perf_counter()
    trainer.update(batch)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions (under a minute on 2 cores)")
    repeats = 8 if parser.parse_args().quick else 40
    with tempfile.TemporaryDirectory() as folder:
        resources = Resources(Path(folder), device="cpu")
        # Speed does not depend on how good the start is.
        short = ["model.warm_start.steps=150"]
        trainers = {
            rule: Trainer(compose([f"rule={rule}", *short]).run, resources) for rule in ("grpo", "cppo")
        }
        times: dict[str, list[float]] = {rule: [] for rule in trainers}
        sampled, tokens = 0.0, 0.0
        for repeat in range(repeats + 1):
            started = time.perf_counter()
            batch = trainers["grpo"].collect()
            if repeat:
                sampled += time.perf_counter() - started
                tokens += float(batch.rollout.lengths.sum())
            for rule, trainer in trainers.items():
                seconds = update_seconds(trainer, batch)
                if repeat:  # the first round warms caches up
                    times[rule].append(seconds)
        trained = float(batch.rollout.lengths[batch.keep].sum())
    ratio = statistics.median(c / g for c, g in zip(times["cppo"], times["grpo"], strict=True))
    figures = {
        "sampled_tokens_per_second": round(tokens / sampled),
        "trained_tokens_per_second": round(trained / times["cppo"][-1]),
        "cppo_update_over_grpo_update": round(ratio, 3),
    }
    met = all(figures[name] <= limit for name, limit in TARGETS.items())
    print(json.dumps({"name": "mini_core", "figures": figures, "targets": TARGETS, "met": met}))


if __name__ == "__main__":
    main()
