"""How long the training steps of past runs took, by the tracking store."""

from collections.abc import Mapping

from cppo_lab import schema, store
from cppo_lab.tracking.client import newest_runs, open_client

METRIC = "perf/step_seconds"
PAGE = 50  # runs per request: the newest few are enough unless most are of another kind
FEWEST_STEPS = 3  # of a run that counts: the first steps of a run also load and compile


def step_seconds(
    uri: str, core: str, model: str, layout: str, params: Mapping[str, str], most: int
) -> list[list[float]]:
    """Seconds of every training step of the newest runs of `core`, at most `most` of them, one list for each run.

    Those of `model` count whose logged parameters agree with `params` and whose layout tag is `layout` (empty: any).
    A store that does not exist has none.
    """
    database = store.sqlite_file(uri)
    if database is not None and not database.is_file():
        return []
    client = open_client(uri)
    condition = f"tags.`{schema.TAG_MODEL}` = '{model}' and metrics.`{METRIC}` > 0"
    found: list[list[float]] = []
    for run in newest_runs(client, schema.experiment_name(core), condition, PAGE):
        if layout and run.data.tags.get(schema.TAG_LAYOUT) != layout:
            continue
        if any(run.data.params.get(key) != value for key, value in params.items()):
            continue
        points = client.get_metric_history(run.info.run_id, METRIC)
        if len(points) >= FEWEST_STEPS:
            found.append([point.value for point in points])
        if len(found) == most:
            break
    return found
