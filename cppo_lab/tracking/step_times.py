"""How long the training steps of past runs took, by the tracking store."""

import itertools
from collections.abc import Mapping

from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.store import address
from cppo_lab.store.client import open_client
from cppo_lab.store.listing import newest_runs

METRIC = "perf/step_seconds"
RECENT = (
    200  # runs of a model that are looked at, the newest: a plan must not read through a store of thousands
)
FEWEST_STEPS = 3  # of a run that counts: the first steps of a run also load and compile


class StepTimes:
    """Step times of the past runs in the store at `uri`; a store that does not exist has none."""

    def __init__(self, uri: str, most: int) -> None:
        """At most `most` runs of each kind are asked for their steps."""
        self._uri, self._most = uri, most
        self._recent: dict[tuple[str, str], list[Run]] = {}

    def __call__(self, core: str, model: str, layout: str, params: Mapping[str, str]) -> list[list[float]]:
        """Seconds of every training step of the newest runs of a kind, one list for each run.

        Those of `model` count whose logged parameters agree with `params` and whose layout tag is `layout` (empty:
        any).
        """
        found: list[list[float]] = []
        for run in self._runs(core, model):
            if layout and run.data.tags.get(schema.TAG_LAYOUT) != layout:
                continue
            if any(run.data.params.get(key) != value for key, value in params.items()):
                continue
            points = open_client(self._uri).get_metric_history(run.info.run_id, METRIC)
            if len(points) >= FEWEST_STEPS:
                found.append([point.value for point in points])
            if len(found) == self._most:
                break
        return found

    def _runs(self, core: str, model: str) -> list[Run]:
        """The newest runs of a model that have measured steps."""
        if (core, model) not in self._recent:
            database = address.sqlite_file(self._uri)
            if database is not None and not database.is_file():
                return []
            condition = f"tags.`{schema.TAG_MODEL}` = '{model}' and metrics.`{METRIC}` > 0"
            runs = newest_runs(open_client(self._uri), schema.experiment_name(core), condition, RECENT)
            self._recent[core, model] = list(itertools.islice(runs, RECENT))
        return self._recent[core, model]
