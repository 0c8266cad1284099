"""Plans of sweeps and jobs of training runs, as a launch makes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import Plan, make_plan


def planned(words: str | Sequence[str]) -> Plan:
    """The plan of a sweep, which is the first word, with overrides."""
    sweep, *overrides = words.split() if isinstance(words, str) else words
    return make_plan(load_sweep(sweep), overrides)


def run_of(words: str, start: Sequence[str] = ()) -> RunSpec:
    """The run of these overrides."""
    return compose([*start, *words.split()]).run


def job(
    spec: RunSpec, runs: Path, uri: str, tags: dict[str, str] | None = None, **values: Any
) -> TrainingJob:
    """The job of one attempt at a run; `values` are further fields of the attempt."""
    return TrainingJob((Attempt(spec, runs, tags=tags or {}, **values),), uri)
