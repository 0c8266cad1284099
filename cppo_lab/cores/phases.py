"""The time of each part of a step, and peak memory: lines of `verl_phases.jsonl` in the run's folder.

Written by a core whose record has `preflight`. A preflight reads the timers `step` (with the checkpoint), `testing`
(the validation), `save_checkpoint` and `update_weights` (from trainer to engine); others are kept. The names are
verl's. Memory is in 2^30 bytes, of the trainer's process on one device and of the host.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cppo_lab.files import open_append, replace_file

FILE = "verl_phases.jsonl"
MACHINE = "verl_machine.json"  # what the run's processes saw of the machines and the engine once all of them were up
_MEMORY = ("max_memory_allocated_gb", "max_memory_reserved_gb", "cpu_memory_used_gb")


@dataclass(frozen=True)
class Phases:
    """One step; step 0 is the validation before the first."""

    step: int
    seconds: Mapping[str, float]
    memory: Mapping[str, float] = field(default_factory=dict)


def append(folder: Path, step: int, seconds: Mapping[str, float], metrics: Mapping[str, float]) -> None:
    """Add the line of `step`; `metrics` are all of verl's, of which those on memory are kept."""
    memory = {
        name: max(values)
        for name in _MEMORY
        if (values := [value for key, value in metrics.items() if key.endswith(name)])
    }
    with open_append(folder / FILE) as file:
        file.write(json.dumps({"step": step, "seconds": dict(seconds), "memory": memory}) + "\n")


def write_machine(folder: Path, seen: Mapping[str, float | str]) -> None:
    """Write what is known of the machine; names and values are for people."""
    replace_file(folder / MACHINE, json.dumps(dict(seen)))


def read_machine(folder: Path) -> dict[str, float | str]:
    """What `write_machine` wrote; {} if the run did not get that far."""
    path = folder / MACHINE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def read(folder: Path) -> list[Phases]:
    """The complete lines, in the order in which they were written."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [Phases(**json.loads(line)) for line in lines if line.endswith("\n")]
