"""The results of preflights: `runs/preflight` has a folder for each kind of run."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cppo_lab.errors import UserError
from cppo_lab.files import replace_file
from cppo_lab.runs.tags import flatten
from cppo_lab.spec import LayoutSpec, RunSpec
from cppo_lab.spec.job import layout_tag
from cppo_lab.spec.run import digest

FOLDER, FILE = "preflight", "measured.json"


def kind_of(spec: RunSpec) -> dict[str, str]:
    """The logged parameters that determine a run's time and memory on a layout; equal for runs of the same kind."""
    return flatten(
        {
            "model": spec.model.model_dump(mode="json"),
            "batch": spec.batch.model_dump(mode="json"),
            "rollout": {"max_response_length": spec.rollout.max_response_length},
        }
    )


def folder_of(spec: RunSpec, layout: LayoutSpec, runs: Path) -> Path:
    """The folder of the preflight of this kind of run."""
    kind = kind_of(spec) | {"data": spec.data.name, "layout": layout_tag(layout)}
    name = digest(json.dumps(kind, sort_keys=True))
    return runs / FOLDER / f"{spec.model.name}-{layout.name}-{name}"


@dataclass(frozen=True)
class Step:
    """A training step. Seconds; tokens per second of all devices; lengths in tokens."""

    step: int
    seconds: float
    rollout: float
    update: float
    weights: float  # the transfer to the rollout engine
    other: float  # grading, advantages, waiting; of the first step after a start also warm-up
    sampled_per_second: float = 0.0
    trained_per_second: float = 0.0
    response_length: float = 0.0
    topk_megabytes: float = 0.0
    logprob_error: float | None = (
        None  # mean of abs(mu / pi - 1) before the policy has moved far; None: no update
    )


@dataclass(frozen=True)
class PreflightResult:
    """What a preflight found. Seconds, and 2^30 bytes; None where a part was not reached or not measured."""

    model: str
    layout: str
    devices: int
    run_id: str  # of the run whose settings were tried
    steps: tuple[Step, ...] = ()
    start: float | None = None  # until verl begins its first step or validation
    resume: float | None = None  # the same, with a checkpoint to load
    validation: float | None = None
    checkpoint: float | None = None
    memory: Mapping[str, float] = field(default_factory=dict)
    machine: Mapping[str, float | str] = field(default_factory=dict)  # of `phases.MACHINE`
    error: str = ""  # the error, and the part in which it occurred

    def write(self, folder: Path) -> None:
        """Write the result to `folder`."""
        replace_file(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")


def read(folder: Path) -> PreflightResult | None:
    """What the preflight in `folder` measured; None if there was none.

    Raises UserError for a file that is not one of ours.
    """
    try:
        values: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        steps = tuple(Step(**step) for step in values.pop("steps"))
        return PreflightResult(**values, steps=steps)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{folder / FILE} is damaged ({error}): remove {folder}") from None
