"""Following a run's record while it is written: only the rows since the last call."""

from collections.abc import Iterator
from pathlib import Path

from cppo_lab.runs.events import Begin, StepEvent
from cppo_lab.runs.scores import Scores, summarise
from cppo_lab.runs.spool import files, read_lines
from cppo_lab.schema import MEAN, parse_validation_metric


def score_of(row: StepEvent) -> float | None:
    """The score of a row that has a validation: the mean over the benchmarks."""
    for name, value in row.metrics.items():
        parsed = parse_validation_metric(name)
        if parsed is not None and parsed[0] == MEAN:
            return value
    return None


class RunRows:
    """The steps of the newest record in a run's folder.

    `scores` are those of its validations by step, `times` are (step, when it was recorded) of the first and the last
    step since `since`; both in seconds since the epoch.
    """

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.folder, self.since = folder, since
        self.scores: dict[int, float] = {}
        self.times: list[tuple[int, float]] = []
        self.step: int | None = None
        self._record = ""
        self._places: dict[Path, int] = {}
        self._steps: set[int] = set()

    def news(self) -> Iterator[StepEvent]:
        """The rows since the last call, oldest first; a step counts once, as the tracking store has it."""
        for path in files(self.folder):
            for line, place in read_lines(path, self._places.get(path, 0)):
                self._places[path] = place
                if isinstance(line, Begin) and line.record != self._record:
                    self._record, self.scores, self.times, self.step = line.record, {}, [], None
                    self._steps = set()
                elif isinstance(line, StepEvent) and line.step not in self._steps:
                    self._take(line)
                    yield line

    def _take(self, row: StepEvent) -> None:
        self._steps.add(row.step)
        self.step = max(row.step, self.step or 0)
        score = score_of(row)
        if score is not None:
            self.scores[row.step] = score
        seconds = row.time_ms / 1000
        if seconds >= self.since:
            self.times = [*self.times[:1], (row.step, seconds)]

    @property
    def pace(self) -> float | None:
        """Wall seconds per step between the first and the last step since `since`, validations included; None before
        the second step."""
        if len(self.times) < 2:
            return None
        (first, began), (last, seen) = self.times
        return (seen - began) / (last - first) if last > first else None

    def summary(self, t_stop: int) -> Scores | None:
        """The scores so far."""
        return summarise(self.scores, t_stop)
