"""The points of a run at which the fault tests kill the process that trains: where its files and the store differ."""

import os
from pathlib import Path
from typing import Any

from cppo_lab.runs.spool import Begin, End, Line, Spool, StepEvent
from tests.servers.forked import Point

_SPOOL, _SHIPPING = "cppo_lab.runs.spool:Spool", "cppo_lab.tracking.upload"
_CLIENT = "mlflow:MlflowClient"


def _begins(spool: Spool, line: Line) -> bool:
    return isinstance(line, Begin)


def _ends(spool: Spool, line: Line) -> bool:
    return isinstance(line, End)


def _steps(spool: Spool, line: Line) -> bool:
    # A run that dies with a step on file and before its first checkpoint begins again, in another MLflow run.
    return isinstance(line, StepEvent) and line.step > 0


def _is_step(spool: Spool, text: bytes) -> bool:
    return text.startswith(b'{"step"')


def _half(spool: Spool, text: bytes) -> None:
    os.write(spool._file.fileno(), text[: len(text) // 2])


def _has(kind: str) -> Any:
    """Whether a batch holds metrics, parameters or tags."""
    return lambda *_, **named: bool(named.get(kind))


def _is_history(client: object, mlflow_id: str, path: str, place: str | None = None) -> bool:
    return path.endswith("/history.npz")


def _is_memory(path: Path, target: Path) -> bool:
    """Whether a file that is renamed remembers what was shipped."""
    return target.name == "shipped.json"


# In the order in which one run comes to them, an attempt for each.
WHILE_IT_TRAINS = {
    "before its first line": Point(_SPOOL, "add", meant=_begins),
    "behind its first line": Point(_SPOOL, "add", True, _begins),
    "in the middle of a line": Point(_SPOOL, "_write", meant=_is_step, amid=_half),
    "behind a step, before its checkpoint": Point(_SPOOL, "add", True, _steps),
    "before the spool is brought to the disk": Point("os", "fsync"),
    "when the spool is on the disk": Point("os", "fsync", True),
    "before the MLflow run is made": Point(_CLIENT, "create_run"),
    "when the MLflow run is made": Point(_CLIENT, "create_run", True),
    "before the MLflow run goes on": Point(_CLIENT, "update_run"),
    "when the MLflow run goes on": Point(_CLIENT, "update_run", True),
    "before its parameters and tags are sent": Point(_CLIENT, "log_batch", meant=_has("params")),
    "when its parameters and tags are sent": Point(_CLIENT, "log_batch", True, _has("params")),
    "before points are sent": Point(_CLIENT, "log_batch", meant=_has("metrics")),
    "when points are sent": Point(_CLIENT, "log_batch", True, _has("metrics")),
    "before it is noted what was sent": Point(_SHIPPING, "save_shipped"),
    "while it is noted what was sent": Point("pathlib:Path", "replace", meant=_is_memory),
    "when it is noted what was sent": Point(_SHIPPING, "save_shipped", True),
}
AT_ITS_END = {
    "before its last line": Point(_SPOOL, "add", meant=_ends),
    "behind its last line": Point(_SPOOL, "add", True, _ends),
    "before its checkpoints are removed": Point("cppo_lab.runs.attempt", "remove_checkpoints"),
    "before the MLflow run is ended": Point(_CLIENT, "set_terminated"),
    "when the MLflow run is ended": Point(_CLIENT, "set_terminated", True),
    "before a file is sent": Point(_CLIENT, "log_artifact"),
    "when a file is sent": Point(_CLIENT, "log_artifact", True),
    "before the history is sent": Point(_CLIENT, "log_artifact", meant=_is_history),
    "when the history is sent": Point(_CLIENT, "log_artifact", True, _is_history),
    "before it is said that all files have come": Point(_CLIENT, "set_tag"),
    "when it is said that all files have come": Point(_CLIENT, "set_tag", True),
}
POINTS = WHILE_IT_TRAINS | AT_ITS_END
