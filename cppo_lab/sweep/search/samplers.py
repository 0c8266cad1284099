"""Optuna's samplers and pruners by their names in a search file."""

import hashlib
import warnings

from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import Trial

from cppo_lab.sweep.declared import Scalar
from cppo_lab.sweep.search.declare import Choices, Parameter
from cppo_lab.sweep.search.space import Tuning


def suggest(trial: Trial, key: str, parameter: Parameter, whole: bool) -> Scalar:
    """The trial's value of a parameter, drawn once; an integer if `whole`."""
    if isinstance(parameter, Choices):
        return trial.suggest_categorical(key, parameter.choices)
    low, high, step = parameter.low, parameter.high, parameter.step
    if whole:
        return trial.suggest_int(key, int(low), int(high), step=int(step or 1), log=parameter.log)
    return trial.suggest_float(key, low, high, step=step, log=parameter.log)


def make_sampler(tuning: Tuning, number: int) -> BaseSampler:
    """The sampler of the point of trial `number`.

    Seeded by the trial number: workers never draw the same points, and an adopted trial draws its own point again.
    """
    spec = tuning.search.search.sampler
    seed = int.from_bytes(hashlib.sha256(f"{spec.seed} {number}".encode()).digest()[:4], "big")
    if spec.name == "random":
        return RandomSampler(seed=seed)
    if spec.name == "nsga2":
        return NSGAIISampler(population_size=spec.startup, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        # Running trials count as bad, so that parallel workers do not choose the same point.
        return TPESampler(n_startup_trials=spec.startup, seed=seed, constant_liar=True)


def make_pruner(tuning: Tuning) -> BasePruner:
    """The pruner. The steps of a trial run through its seeds one after the other."""
    spec, run = tuning.search.search.pruner, tuning.base.run
    if spec.name == "median":
        return MedianPruner(n_startup_trials=spec.startup, n_warmup_steps=spec.warmup_steps)
    if spec.name == "hyperband":
        return HyperbandPruner(
            min_resource=max(run.validation.every, spec.warmup_steps),
            max_resource=run.training.t_stop * len(tuning.seeds),
        )
    return NopPruner()
