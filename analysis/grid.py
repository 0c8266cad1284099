"""The declared grid of a sweep, with which the runs in the store are compared."""

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
class SweepGrid:
    """One sweep of a study: its name, its heading and the question it answers, and all its runs; `baseline` is the
    variant that differences are taken to, empty for the usual one. `pairing`: whether its file says to compare runs
    seed by seed; None if it says nothing.
    """

    name: str
    title: str
    question: str
    expected: tuple[ExpectedRun, ...]
    baseline: str = ""
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
