"""The declared grid of a sweep, with which the runs in the store are compared."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ExpectedRun:
    """One run of a declared sweep.

    `run_id` is the hash of the run's resolved configuration, or None where only the name is known (the
    paper's runs): then `model`, `variant` and, if not None, `seed` identify the run.
    """

    run_id: str | None
    model: str
    variant: str
    seed: int | None

    def describe(self) -> str:
        """`variant on model, seed 0`, for messages."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.variant} on {self.model}{seed}"


@dataclass(frozen=True)
class Baseline:
    """What differences are taken to: the variant `name`; empty for the usual one. With `matched`, `name` is a variant
    of the sweep file with one value of each axis, and `matched` says to which of these each other variant is compared:
    to the one with its own values.
    """

    name: str = ""
    matched: Mapping[str, str] | None = None

    def of(self, variant: str) -> str | None:
        """What `variant` is compared with; None for a baseline itself, and where there is none at its values."""
        found = self.name if self.matched is None else self.matched.get(variant)
        return None if found == variant else found


USUAL = Baseline()


@dataclass(frozen=True)
class SweepGrid:
    """One sweep of a study: its name, its heading and the question it answers, and all its runs. `pairing`: whether its
    file says to compare runs seed by seed; None if it says nothing.
    """

    name: str
    title: str
    question: str
    expected: tuple[ExpectedRun, ...]
    baseline: Baseline = USUAL
    pairing: bool | None = None


@dataclass(frozen=True)
class AxisPlace:
    """Where one variant of a sweep is on the sweep's axes: `group` is its name without the values; a value is None on
    an axis that it does not have.
    """

    variant: str
    group: str
    values: tuple[str | int | float | bool | None, ...]


@dataclass(frozen=True)
class Axes:
    """The axes of a sweep, without seeds and models: their configuration keys, and where each variant is."""

    keys: tuple[str, ...] = ()
    places: tuple[AxisPlace, ...] = ()


NO_AXES = Axes()
