"""The declared grid of a sweep, against which the runs in the store are compared."""

from collections.abc import Mapping
from dataclasses import dataclass

Value = str | int | float | bool | None  # of an axis


@dataclass(frozen=True)
class ExpectedRun:
    """One run of a declared sweep.

    `run_id` is the hash of the run's resolved configuration, or None if only the name is known (the
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
    """The variant that differences are taken from: `name`, or the default baseline if empty. With `matched`, `name` is
    a variant of the sweep file that itself has axis values, and `matched` maps each variant to the baseline variant
    with the same values.
    """

    name: str = ""
    matched: Mapping[str, str] | None = None

    def of(self, variant: str) -> str | None:
        """The baseline of `variant`; None for a baseline itself, and if there is none with its axis values."""
        baseline = self.name if self.matched is None else self.matched.get(variant)
        return None if baseline == variant else baseline


USUAL = Baseline()


@dataclass(frozen=True)
class SweepGrid:
    """One sweep of a study: its name, its heading and the question it answers, and all its runs. `pairing`: whether its
    file requests comparison seed by seed; None if it does not say.
    """

    name: str
    title: str
    question: str
    expected: tuple[ExpectedRun, ...]
    baseline: Baseline = USUAL
    pairing: bool | None = None


@dataclass(frozen=True)
class AxisPlace:
    """The position of one variant on the sweep's axes. `group` is its name without the axis values; a value is None on
    an axis that does not apply to it.
    """

    variant: str
    group: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Axes:
    """The axes of a sweep except seeds and models: their configuration keys, and each variant's position."""

    keys: tuple[str, ...] = ()
    places: tuple[AxisPlace, ...] = ()


NO_AXES = Axes()
