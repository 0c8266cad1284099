"""Step times of past runs, from the tracking store."""

import itertools
from collections.abc import Mapping

from cppo_lab import schema
from cppo_lab.store.reader import Reader, StoredRun

METRIC = "perf/step_seconds"
RECENT = 200  # only the newest runs of a model are read, since a plan must not read a store of thousands
FEWEST_STEPS = 3  # minimum for a run to count, since the first steps also load and compile


class StepTimes:
    """Step times of the past runs that `reader` finds; without a reader there are none."""

    def __init__(self, reader: Reader | None, most: int) -> None:
        """At most `most` runs of each kind are queried for their steps."""
        self._reader, self._most = reader, most
        self._recent: dict[tuple[str, str], list[StoredRun]] = {}

    def __call__(self, core: str, model: str, layout: str, params: Mapping[str, str]) -> list[list[float]]:
        """Seconds of every training step of the newest runs of a kind, one list for each run.

        Those of `model` count whose logged parameters agree with `params` and whose layout tag is `layout` (empty:
        any).
        """
        found: list[list[float]] = []
        if self._reader is None:
            return found
        for run in self._runs(self._reader, core, model):
            if layout and run.tags.get(schema.TAG_LAYOUT) != layout:
                continue
            if any(run.params.get(key) != value for key, value in params.items()):
                continue
            seconds = self._reader.history(run.mlflow_id, METRIC)
            if len(seconds) >= FEWEST_STEPS:
                found.append(seconds)
            if len(found) == self._most:
                break
        return found

    def _runs(self, reader: Reader, core: str, model: str) -> list[StoredRun]:
        """The newest runs of a model that have measured steps."""
        if (core, model) not in self._recent:
            runs = reader.runs(
                schema.experiment_name(core), schema.TAG_MODEL, model, params=True, measured=METRIC
            )
            self._recent[core, model] = list(itertools.islice(runs, RECENT))
        return self._recent[core, model]
