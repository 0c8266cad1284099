"""The list of runs to which the numbers of a page link, with each run's location in MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from urllib.parse import quote, urlsplit, urlunsplit

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore
from cppo_lab.reports.names import ABSENT, display_name, number, points

_NOT_SHOWN = ("seed", "core", "rule.name")  # shown in other columns, or by the method's name
MOST_SETTINGS = 8  # of one run; MLflow has all
MANY = 1000  # rows of one list: some 400 KB; the files beside the page have every run


@dataclass(frozen=True)
class RunGroup:
    """The rows of one cell of the tables, as texts by name; `anchor` is their id on the page; `left_out` counts the
    runs that are not shown.

    `path`: a run's page relative to the address of an MLflow server; `link`: that page on the store's server. Both are
    empty if there is none. `settings`: its settings other than the seed that differ from those of other runs of the
    sweep on the same model. `note`: its scores on further benchmarks, and what users have noted on it.
    """

    anchor: str
    runs: tuple[Mapping[str, str], ...]
    left_out: int = 0


def anchors_of(board: Scoreboard, key: str) -> Mapping[tuple[str, str], str]:
    """(model, variant) -> id of its rows; `key` distinguishes the lists of one page. Ids do not contain names, which
    may have any characters.
    """
    return {pair: f"runs-{key}-{number}" for number, pair in enumerate(board.cells)}


def run_groups(board: Scoreboard, key: str, uri: str) -> tuple[RunGroup, ...]:
    """The runs of a board, cell by cell as declared; `uri` is that of the store they were read from.

    With more than MANY runs, each cell shows its first runs, the same number for all cells; with more than MANY cells,
    only the first cells are shown.
    """
    most = len(board.runs) if len(board.runs) <= MANY else max(1, MANY // len(board.cells))
    groups, differing = [], differing_settings(board)
    for pair, anchor in islice(anchors_of(board, key).items(), MANY):
        runs = board.runs_of(*pair)
        lines = tuple(_line(board, run, uri, differing) for run in runs[:most])
        groups.append(RunGroup(anchor, lines, len(runs) - len(lines)))
    unlisted = len(board.runs) - sum(len(group.runs) + group.left_out for group in groups)
    return (*groups, RunGroup("", (), unlisted)) if unlisted else tuple(groups)


def differing_settings(board: Scoreboard) -> Mapping[str, tuple[str, ...]]:
    """Model -> the configuration keys, except the seed, in which its runs differ. A missing key counts as a distinct
    value.
    """
    by_model: dict[str, list[Mapping[str, str]]] = {}
    for run in board.runs:
        params = board.data.params.get(run.mlflow_id or "")
        if params:
            by_model.setdefault(run.model, []).append(params)
    return {
        model: tuple(
            key
            for key in dict.fromkeys(key for params in each for key in params)
            if key not in _NOT_SHOWN and len({params.get(key) for params in each}) > 1
        )
        for model, each in by_model.items()
    }


def _line(
    board: Scoreboard, run: RunScore, uri: str, differing: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    choice, data, mlflow_id = run.choice, board.data, run.mlflow_id or ""
    params = data.params.get(mlflow_id, {})
    settings = [f"{key}={params[key]}" for key in differing.get(run.model, ()) if key in params]
    if (more := len(settings) - MOST_SETTINGS) > 0:
        settings[MOST_SETTINGS:] = [f"and {more} more"]
    notes = [
        f"{name.split('/')[1]} {points(board.points_of(run, name)['value'].iloc[-1])}"
        for name in filter(schema.is_evaluation, data.metrics["metric"].cat.categories)
        if len(board.points_of(run, name))
    ]
    path = mlflow_path(data.experiment_id, mlflow_id) if mlflow_id else ""
    return {
        "label": display_name(run.variant),
        "model": run.model,
        "seed": number(run.seed, "d"),
        "state": run.state.value + (f": {run.reason}" if run.reason else ""),
        "t_stop": number(run.t_stop, "d"),
        "step": number(choice.step, "d"),
        "score": points(choice.score),
        "run_id": run.run_id or ABSENT,
        "mlflow_id": mlflow_id or ABSENT,
        "path": path,
        "link": mlflow_link(uri, path) if path else "",
        "settings": ", ".join(settings),
        "note": "; ".join(filter(None, [*notes, data.notes.get(mlflow_id)])),
    }


def mlflow_path(experiment_id: str, mlflow_id: str) -> str:
    """A run's page relative to the address of an MLflow server.

    MLflow redirects `#/runs/<id>` to its pages for language-model traces.
    """
    ids = quote(experiment_id, safe=""), quote(mlflow_id, safe="")
    return "#/experiments/{}/runs/{}?workflowType=machine_learning".format(*ids)


def mlflow_link(uri: str, path: str) -> str:
    """The address of a page on the server at `uri`, without user and password; empty for any other store."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return ""
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/", "", "")) + path
