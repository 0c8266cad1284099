"""Do repeated validation seeds make the errors of two evaluations dependent? The embedded core's own trainer.

Three runs (DPPO with two seeds, CPPO) are validated with the seed that all validations repeat, with a seed of each
evaluation's own, and `aligned`: token t of answer j to a problem takes the same random number in every evaluation, as
with verl's seed of each request. The embedded core draws for the answers that still run, so its numbers come out of
step as soon as an answer ends elsewhere. phi: the correlation of answers with the same random numbers, given both
chances of being right (`analysis/statistics/problems.py`), for neighbouring validations, for validations five
apart, for two seeds and for two methods at the same step.

    python benchmarks/validation_seeds.py [--quick] [--model NAME]

The last line is JSON, see `common.py`.
"""

import tempfile
from collections import defaultdict
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from common import Rows, arguments, finish, show

from cppo_lab.analysis.statistics.problems import draw_correlation
from cppo_lab.core_records import Resources
from cppo_lab.cores.mini import model as sampling
from cppo_lab.cores.mini.tasks import Problems
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.sweep.compose import compose

RUNS = ("rule=dppo seed=0", "rule=dppo seed=1", "rule=cppo seed=0")
SEEDS = ("repeated", "aligned", "fresh")
FRESH = 1_000_003  # far from every validation seed
# A short warm start on a task that is learned at once: answers are both right and wrong.
QUICK = [
    "data.operations=2",
    "data.spellings=20",
    "rollout.max_response_length=8",
    "data.validation_problems=10",
    "model.warm_start.steps=100",
    "model.warm_start.target_accuracy=null",
    "validation.every=1",
]
Graded = np.ndarray  # [validations, P, k] bool


def graded(trainer: Trainer, seed: int, aligned: bool) -> np.ndarray:
    """One validation, answer by answer [P, k], with random numbers from `seed`."""
    spec, problems = trainer.spec, Problems.cat(trainer.validation_sets.values())
    # Aligned: answers that have ended go on taking random numbers.
    with patch.object(sampling, "COMPACT_BELOW", 0.0 if aligned else sampling.COMPACT_BELOW):
        rollout = sampling.sample(
            trainer.model,
            problems.prompts,
            trainer.tokenizer,
            copies=spec.validation.samples,
            max_response_length=spec.rollout.max_response_length,
            temperature=spec.validation.temperature,
            top_p=1.0
            if aligned
            else spec.validation.top_p,  # drawing from a nucleus may take several numbers
            generator=torch.Generator().manual_seed(seed),
        )
    answers = problems.answers.repeat_interleave(spec.validation.samples, 0)
    rewards = trainer.task.rewards(rollout.responses, rollout.lengths, answers)
    return (rewards > 0).view(-1, spec.validation.samples).numpy()


def trained(trainer: Trainer, number: int, validations: int) -> dict[str, Graded]:
    """The validations of one run, but that of the warm start, by kind of seed."""
    rows: dict[str, list[np.ndarray]] = defaultdict(list)
    repeated = trainer.spec.data.validation_seed
    for validation in range(1, validations + 1):
        for _ in range(trainer.spec.validation.every):
            trainer.step()
        seeds = dict(zip(SEEDS, (repeated, repeated, FRESH * (1 + number) + validation), strict=True))
        for kind, seed in seeds.items():
            rows[kind].append(graded(trainer, seed, kind == "aligned"))
    return {kind: np.stack(row) for kind, row in rows.items()}


def correlations(runs: list[dict[str, Graded]]) -> Rows:
    """(kind of pair, phi by kind of seed): means over the pairs."""
    columns: dict[str, dict[str, float]] = defaultdict(dict)
    for seeds in SEEDS:
        first, second, other = (run[seeds] for run in runs)
        pairs = {
            "neighbouring validations": (first[:-1], first[1:]),
            "five validations apart": (first[:-5], first[5:]),
            "two seeds": (first, second),
            "two methods": (first, other),
        }
        for kind, (ours, theirs) in pairs.items():
            phis = [phi.value for a, b in zip(ours, theirs, strict=True) if (phi := draw_correlation(a, b))]
            if phis:
                columns[kind][f"phi, {seeds}"] = float(np.mean(phis))
    yield from columns.items()


def main() -> None:
    """Prints the table, then the JSON line."""
    model = {"default": "mini_small_base", "help": "of conf/model, the embedded core's"}
    options = arguments(__doc__, "two validations of models that know little", model=model)
    torch.set_num_threads(1)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        resources = Resources(Path(folder), Path(folder), device="cpu")
        for number, chosen in enumerate(RUNS):
            words = [
                *chosen.split(),
                f"model={options.model}",
                "core=mini",
                *(QUICK if options.quick else []),
            ]
            trainer = Trainer(compose(words).run, resources)  # type: ignore[arg-type]
            runs.append(trained(trainer, number, 2 if options.quick else 10))
    phi = show(f"correlation of answers with the same draw, {options.model}", correlations(runs), 1, 3)
    figures = {"phi_fresh": phi.at["neighbouring validations", "phi, fresh"]}
    finish(figures, {"*": ""}, at_most={"phi_fresh": 0.05}, quick=options.quick)


if __name__ == "__main__":
    main()
