"""Saved views of MLflow's page: the columns and charts that a researcher wants first.

MLflow keeps a saved view of an experiment's runs in the experiment's tag `mlflow.sharedViewState.<key>` and opens it by
`?viewStateShareKey=<key>`. The format is that of MLflow 3.17's own page (its menu of saved views lists these beside
the user's); it is not documented, so tests/browser opens it in a real one.
"""

import base64
import itertools
import json
import shlex
import time
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run

from cppo_lab import schema
from cppo_lab.redaction import redacted
from cppo_lab.store import address
from cppo_lab.store.client import open_client
from cppo_lab.store.listing import experiment_runs

TAG_PREFIX = "mlflow.sharedViewState."
OVERVIEW = "cppo-runs"  # the key of the view of all training runs
_SWEEP = "cppo-sweep-"  # + sweep name
_MEANS = "-means"  # behind the key of a sweep's view: its runs grouped by variant
_MOST_BYTES = 5000  # of an experiment's tag, in every MLflow from 3.1 on
_NEWEST = 500  # the views are built from these runs
_BENCHMARKS = 6  # charts of single benchmarks
_RUN_COLUMNS = (schema.TAG_STATUS, schema.TAG_RULE, schema.TAG_MODEL, schema.TAG_SEED, schema.TAG_STEP)
# Sections and their charts, in the order of the page, after the validation charts.
_SECTIONS = {
    "Reward": ("train/reward", "train/reward_smoothed"),
    "Response length": ("train/response_length",),
    "Trainer and rollout engine": ("train/relative_logprob_error",),
    "Masking": ("rule/masked_fraction", "rule/prefix_budget_share"),
}
# The page adds a chart of every other metric to the section that has the name of the metric's folder, and if there is
# none, such a section behind all others. It calls the machine's "System metrics".
_SYSTEM = {"System metrics": ("system/cpu_utilization_percentage", "system/system_memory_usage_percentage")}
_MOST_FOLDERS = 30


def page(experiment: Experiment, key: str = OVERVIEW) -> str:
    """The path of an experiment's runs on the server, in the saved view `key` if there is one."""
    # MLflow 3 opens on its pages for language-model traces unless a tag says that these are training runs.
    query = {"workflowType": "machine_learning"}
    if TAG_PREFIX + key in experiment.tags:
        query |= {"compareRunsMode": "CHART", "viewStateShareKey": key}
    return f"/#/experiments/{experiment.experiment_id}/runs?{urlencode(query)}"


def where_to_look(uri: str, experiment: str) -> str:
    """How to open the runs of `experiment` in MLflow's page: its address, or the command that serves it."""
    if uri.startswith("http"):
        found = open_client(uri).get_experiment_by_name(experiment)
        return redacted(uri).rstrip("/") + (page(found) if found else "")
    if uri == address.tracking_uri():
        return "cppo ui"
    return f"MLFLOW_TRACKING_URI={shlex.quote(redacted(uri))} cppo ui"


def comparison(experiments: Sequence[Experiment]) -> str:
    """The path on the server that shows the runs of several experiments in the same charts."""
    ids = json.dumps([experiment.experiment_id for experiment in experiments])
    query = {
        "experiments": ids,
        "workflowType": "machine_learning",
        "compareRunsMode": "CHART",
        "searchFilter": f"tags.`{schema.TAG_RUN_ID}` LIKE '%'",
        "orderByKey": f"metrics.`{schema.validation_metric(schema.MEAN)}`",
        "orderByAsc": "false",
    }
    return f"/#/compare-experiments/s?{urlencode(query)}"


def sweep_key(sweep: str) -> str:
    """The key of the view of one sweep."""
    return _SWEEP + sweep


def means_key(sweep: str) -> str:
    """The key of the view of one sweep in which runs are grouped by variant."""
    return sweep_key(sweep) + _MEANS


def save_views(client: MlflowClient, experiment_id: str) -> dict[str, str]:
    """Write the views of an experiment that are not there yet or are out of date: all its runs, each sweep, and each
    sweep with the mean of each variant over its seeds.

    Returns the key of each view by its name. A user's own views stay as they are.
    """
    experiment = client.get_experiment(experiment_id)
    runs = list(itertools.islice(experiment_runs(client, experiment.name), _NEWEST))
    metrics = _validation_metrics(runs)
    names = {name for run in runs if schema.TAG_RUN_ID in run.data.tags for name in run.data.metrics}
    has = experiment.tags
    states = {"Training runs": (OVERVIEW, _state(OVERVIEW, metrics, names, None))}
    for sweep in _sweeps(runs):
        key, means = sweep_key(sweep), means_key(sweep)
        states[f"Sweep {sweep}"] = key, _state(key, metrics, names, sweep)
        grouped = _grouped(_state(means, metrics, names, sweep), _groups(sweep, runs))
        states[f"Sweep {sweep}, mean of each variant"] = means, grouped
    for name, (key, state) in states.items():
        if _saved_state(has.get(TAG_PREFIX + key, "")) != state:
            client.set_experiment_tag(experiment_id, TAG_PREFIX + key, _envelope(name, state))
    return {name: key for name, (key, _) in states.items()}


def _groups(sweep: str, runs: Iterable[Run]) -> list[str]:
    """The tags whose values make a group: the variant, and the model where the sweep has several."""
    tag = schema.sweep_tag(sweep)
    models = {run.data.tags.get(schema.TAG_MODEL) for run in runs if tag in run.data.tags}
    return [tag, schema.TAG_MODEL] if len(models) > 1 else [tag]


def _grouped(state: dict[str, Any], tags: Sequence[str]) -> dict[str, Any]:
    """The same with one line for each group: the mean over its runs, with a band from the lowest to the highest.

    MLflow draws the band in the group's colour. It keeps the colours of groups in the browser alone, under the key
    `experimentRunColors` of localStorage, and derives those that are not there from the group's name: no view, tag or
    run can set them. Those of single runs come from the runs' tags.
    """
    keys = [{"mode": "tag", "groupByData": tag} for tag in tags]
    return state | {
        "groupBy": {"aggregateFunction": "average", "groupByKeys": keys, "ignoreUngroupedRuns": True},
        "groupsExpanded": {},
        "useGroupedValuesInCharts": True,
    }


def _sweeps(runs: Iterable[Run]) -> list[str]:
    """The sweeps that runs belong to, by name."""
    tags = {key for run in runs for key in run.data.tags if key.startswith(schema.TAG_SWEEP_PREFIX)}
    return sorted(key.removeprefix(schema.TAG_SWEEP_PREFIX) for key in tags)


def _validation_metrics(runs: Iterable[Run]) -> list[str]:
    """The validation metrics of runs, the mean first, then those of most runs; the schema's if there are none yet."""
    count = Counter(
        name for run in runs for name in run.data.metrics if schema.parse_validation_metric(name) is not None
    )
    found = sorted(count, key=lambda name: (f"/{schema.MEAN}/" not in name, -count[name], name))
    return found or [schema.validation_metric(schema.MEAN)]


def _folders(names: Iterable[str], charted: Collection[str]) -> list[str]:
    """The folders of the metrics without a chart of their own, validation first; the machine's load is left out."""
    found = {name.rpartition("/")[0] for name in names if name not in charted}
    kept = [name for name in found if name and name.partition("/")[0] != "system"]
    return sorted(kept, key=lambda name: (not _is_validation(name), name))[:_MOST_FOLDERS]


def _is_validation(folder: str) -> bool:
    return folder.partition("/")[0] == "val"


def _state(key: str, validation: Sequence[str], names: Collection[str], sweep: str | None) -> dict[str, Any]:
    """The state of the page: filter, columns, sections and charts. `names`: the metrics in the experiment."""
    condition = f"tags.`{schema.TAG_RUN_ID if sweep is None else schema.sweep_tag(sweep)}` LIKE '%'"
    means = [name for name in validation if f"/{schema.MEAN}/" in name]
    single = [name for name in validation if name not in means]
    first = (*means, *single[:_BENCHMARKS])
    charted = {*first, *itertools.chain(*_SECTIONS.values())}
    folders = _folders(names, charted)
    sections = {
        "Validation": first,
        **{name: () for name in folders if _is_validation(name)},
        **_SECTIONS,
        **{name: () for name in folders if not _is_validation(name)},
        **_SYSTEM,
    }
    tags = [*_RUN_COLUMNS, *([schema.sweep_tag(sweep)] if sweep is not None else [])]
    columns = ["attributes.`Created`", "attributes.`Duration`", *(f"tags.`{tag}`" for tag in tags)]
    columns += [f"metrics.`{name}`" for name in (*means, "train/reward")]
    return {
        "searchFilter": condition,
        # Best first. Sorted by time, the page would fold the runs under their parents, and draw no curve of them.
        "orderByKey": f"metrics.`{means[0] if means else validation[0]}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": columns,
        "runsHiddenMode": "FIRST_20_RUNS",
        "hideEmptyCharts": True,
        "isAccordionReordered": True,  # else the page sorts the sections by name
        "compareRunSections": [
            {"uuid": f"{key}-{i}", "name": name, "display": bool(charts), "isReordered": True, "columns": 2}
            for i, (name, charts) in enumerate(sections.items())
        ],
        "compareRunCharts": [
            _line_chart(f"{key}-{metric}", f"{key}-{i}", metric)
            for i, charts in enumerate(sections.values())
            for metric in charts
        ],
    }


def _line_chart(uuid: str, section: str, metric: str) -> dict[str, Any]:
    """A chart of one metric by training step, with every key that the page's own charts have."""
    return {
        "uuid": uuid,
        "type": "LINE",
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "displayName": metric,
        "runsCountToCompare": 20,
        "metricKey": metric,
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _envelope(name: str, state: dict[str, Any]) -> str:
    """A view as the value of the experiment's tag.

    Raises ValueError if it is longer than MLflow accepts.
    """
    now = int(time.time() * 1000)
    packed = zlib.compress(json.dumps(state).encode(), 9)
    text = "deflate;" + base64.b64encode(packed).decode()
    value = json.dumps({"name": name, "createdAt": now, "updatedAt": now, "state": text})
    if len(value) > _MOST_BYTES:
        raise ValueError(f"view {name!r} takes {len(value)} bytes, more than {_MOST_BYTES}")
    return value


def _saved_state(value: str) -> dict[str, Any] | None:
    """The state in a view's tag; None if it cannot be read and must be rewritten."""
    try:
        text = json.loads(value)["state"].removeprefix("deflate;")
        state: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error):
        return None
    return state
