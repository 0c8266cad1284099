"""A search small enough for tests, and what a test wants to know of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial

from cppo_lab.runs.folder import is_locked
from cppo_lab.runs.spool import read_rows
from cppo_lab.search import worker
from cppo_lab.search.space import Tuning, resolve
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.file import load_sweep
from cppo_lab.tracking.page import Point
from tests.conftest import TINY

# A search names its models elsewhere.
_KEYS = [text.replace("=", ": ", 1) for text in TINY if not text.startswith("model=")]
SETTINGS = {"rule": "cppo", **yaml.safe_load("\n".join(_KEYS))}


SEARCH = """
title: T
question: Q?
models: [mini_base]
seeds: [0]
search:
  trials: 4
  parameters:
    rule.delta_b: {low: 0.002, high: 0.05, log: true}
    rule.w_min: {low: 0.4, high: 1.0, step: 0.05}
  objectives: [final_score]
  sampler: {name: tpe, seed: 0, startup: 4}
  pruner: {name: none}
"""


def search_values(**changes: Any) -> dict[str, Any]:
    """The content of a search file; `changes` go into its section `search`."""
    values: dict[str, Any] = yaml.safe_load(SEARCH) | {"settings": SETTINGS}
    values["search"] |= changes
    return values


def write_search(values: dict[str, Any], path: str = "tune.yaml") -> str:
    """Write a search file into the working folder; its path."""
    Path(path).write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def made_tuning(values: dict[str, Any] | None = None, *overrides: str, **options: Any) -> Tuning:
    """A validated search. It writes `tune.yaml` into the working folder."""
    search = load_sweep("./" + write_search(values or search_values()))
    return resolve(search, overrides, **options)


def optunas(study: str = "tune-mini_base") -> list[FrozenTrial]:
    """The trials of a study as Optuna counts them."""
    return optuna.load_study(study_name=study, storage="sqlite:///optuna.db").get_trials()


def waiting_behind(step: int) -> set[Path]:
    """The folders of runs that have recorded a step and wait behind it."""
    return {
        lock.parent
        for lock in Path("runs").glob("*/lock")
        if is_locked(lock.parent) and [row.step for row in read_rows(lock.parent)][-1:] == [step]
    }


Score = Callable[[RunSpec, int], float]


def constant(spec: RunSpec, step: int) -> float:
    """A run whose score rises with the position weight, step by step."""
    return spec.rule.w_min * (1 + step) / 10


def training(
    score: Score = constant, trained: list[RunSpec] | None = None
) -> Callable[[worker.Run, worker.See], list[Point]]:
    """What stands for training: a run that has these scores, noted in `trained`."""

    def train(run: worker.Run, see: worker.See) -> list[Point]:
        spec, points = run.attempt.spec, list[Point]()
        if trained is not None:
            trained.append(spec)
        for step in range(0, spec.training.t_stop + 1, spec.validation.every):
            points.append(Point(step, score(spec, step), 1_700_000_000_000 + step))
            see(points, True)
        return points

    return train
