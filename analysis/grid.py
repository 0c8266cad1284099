"""What a sweep should hold: the grid that the runs in the store are held against."""

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
    """One sweep of a study: its name, its heading and the question it answers, and all its runs."""

    name: str
    title: str
    question: str
    expected: tuple[ExpectedRun, ...]
