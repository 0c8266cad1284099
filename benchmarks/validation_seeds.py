"""Do repeated validation seeds make the errors of two evaluations dependent? The embedded core's own trainer.

Three runs (DPPO with two seeds, CPPO) are validated with the seed that all validations repeat, with a seed of each
evaluation's own, and `aligned`: token t of answer j to a problem takes the same random number in every evaluation, as
with verl's seed of each request. The embedded core draws for the answers that still run, so its numbers come out of
step as soon as an answer ends elsewhere. phi: the correlation of answers with the same random numbers, given both
chances of being right (`analysis/statistics/problems.py`), for neighbouring validations, for validations five
apart, for two seeds and for two methods at the same step. least phi: the bound that counts alone give.

    python benchmarks/validation_seeds.py [--quick] [--model NAME]

The last line is JSON, see `summary/form.py`.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from summary.form import result
from summary.table import Rows, show

from cppo_lab.analysis.statistics.problems import draw_correlation, least_correlation
from cppo_lab.cores.base import Resources
from cppo_lab.cores.mini import sampler
from cppo_lab.cores.mini.sampler import Rollout, sample
from cppo_lab.cores.mini.tasks.problems import Problems
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.spec import MiniRun
from cppo_lab.sweep.compose import compose

RUNS = {"dppo, seed 0": ("dppo", 0), "dppo, seed 1": ("dppo", 1), "cppo, seed 0": ("cppo", 0)}
SEEDS = ("repeated", "aligned", "fresh")
FRESH = 1_000_003  # far from every validation seed
# A short warm start on a task that is learned at once: answers are both right and wrong.
QUICK = [
    *(
        "data.operations=2",
        "data.spellings=20",
        "rollout.max_response_length=8",
        "data.validation_problems=10",
    ),
    *("model.warm_start.steps=100", "model.warm_start.target_accuracy=null", "validation.every=1"),
]
Graded = np.ndarray  # [validations, P, k] bool


def graded(trainer: Trainer, seed: int, aligned: bool = False) -> np.ndarray:
    """One validation, answer by answer [P, k], with random numbers from `seed`."""
    spec, problems = trainer.spec, Problems.cat(trainer.validation_sets.values())
    rollout = (_sample_aligned if aligned else sample)(
        trainer.model,
        problems.prompts,
        trainer.tokenizer,
        copies=spec.validation.samples,
        max_response_length=spec.rollout.max_response_length,
        temperature=spec.validation.temperature,
        top_p=1.0 if aligned else spec.validation.top_p,  # drawing from a nucleus may take several numbers
        generator=torch.Generator().manual_seed(seed),
    )
    own = problems.repeat(spec.validation.samples)
    rewards = trainer.task.rewards(rollout.responses, rollout.lengths, own)
    return (rewards > 0).view(-1, spec.validation.samples).numpy()


def _sample_aligned(*args: Any, **kwargs: Any) -> Rollout:
    """`sample` in which answers that have ended go on taking random numbers."""
    with patch.object(sampler, "COMPACT_BELOW", 0.0):
        return sample(*args, **kwargs)


def trained(trainer: Trainer, number: int, validations: int) -> dict[str, Graded]:
    """The validations of one run with the repeated seed and with fresh ones."""
    assert isinstance(trainer.spec, MiniRun)
    found: dict[str, list[np.ndarray]] = {kind: [] for kind in SEEDS}
    for validation in range(validations + 1):
        if validation:
            for _ in range(trainer.spec.validation.every):
                trainer.step()
        repeated = trainer.spec.data.validation_seed
        found["repeated"].append(graded(trainer, repeated))
        found["aligned"].append(graded(trainer, repeated, aligned=True))
        found["fresh"].append(graded(trainer, FRESH * (1 + number) + validation))
    return {kind: np.stack(own) for kind, own in found.items()}


def pairs(evaluations: dict[str, Graded]) -> Iterator[tuple[str, Graded, Graded]]:
    """(kind of pair, one evaluation after another, and what each is compared with); the warm start is left out."""
    first, second, other = (own[1:] for own in evaluations.values())
    yield "neighbouring validations", first[:-1], first[1:]
    if len(first) > 5:
        yield "five validations apart", first[:-5], first[5:]
    yield "two seeds", first, second
    yield "two methods", first, other


def correlations(runs: dict[str, dict[str, Graded]]) -> Rows:
    """(kind of pair, phi by kind of seed): means over the pairs."""
    columns: dict[str, dict[str, float]] = {}
    for seeds in SEEDS:
        for kind, ours, theirs in pairs({name: own[seeds] for name, own in runs.items()}):
            each = [draw_correlation(a, b) for a, b in zip(ours, theirs, strict=True)]
            values = [one.value for one in each if one is not None]
            errors = [one.error for one in each if one is not None and one.error is not None]
            row = columns.setdefault(kind, {})
            row[f"phi, {seeds}"] = float(np.mean(values))
            row[f"error of one, {seeds}"] = float(np.mean(errors))
    for seeds in SEEDS:
        right = [own[seeds][1:].sum(axis=-1) for own in runs.values()]
        least = [least_correlation(own, runs["dppo, seed 0"][seeds].shape[-1]) for own in right]
        bound = float(np.mean([one.value for one in least if one is not None]))
        columns["neighbouring validations"][f"least phi, {seeds}"] = bound
    yield from columns.items()


def main() -> None:
    """Prints the table, then the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two validations of models that know little")
    parser.add_argument("--model", default="mini_small_base", help="of conf/model, the embedded core's")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        resources = Resources(Path(folder), Path(folder), device="cpu")
        runs = {}
        for number, (name, (rule, seed)) in enumerate(RUNS.items()):
            chosen = [f"rule={rule}", f"seed={seed}", f"model={arguments.model}", "core=mini"]
            chosen += QUICK if arguments.quick else []
            run = compose(chosen).run
            assert isinstance(run, MiniRun)
            runs[name] = trained(Trainer(run, resources), number, 2 if arguments.quick else 10)
    found = show(f"correlation of answers with the same draw, {arguments.model}", correlations(runs), 1, 3)
    near = found["neighbouring validations"]
    figures = {
        "phi_neighbours": near["phi, repeated"],
        "phi_methods": found["two methods"]["phi, repeated"],
        "phi_aligned": near["phi, aligned"],
        "phi_fresh": near["phi, fresh"],
    }
    print(
        result(
            "validation_seeds", figures, {"*": ""}, at_most={"phi_fresh": 0.05}, quick=arguments.quick
        ).line()
    )


if __name__ == "__main__":
    main()
