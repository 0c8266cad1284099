"""The points of a trial at which the tests kill the worker that has it: where study, MLflow and files differ."""

from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from tests.servers.forked import Point

_STORAGE = "optuna.storages:RDBStorage"
_STUDY, _RECORD = "cppo_lab.search.study:SearchStudy", "cppo_lab.tracking.search_record:TrialRecord"


def _claims(storage: Any, trial: int, state: TrialState, *_: object) -> bool:
    return state is TrialState.RUNNING


def _tells(storage: Any, trial: int, state: TrialState, *_: object, **__: object) -> bool:
    return state is TrialState.COMPLETE


def _is_summary(path: Path, target: Path) -> bool:
    return target.name == "search.json"


# In the order in which one trial comes to them, a worker for each.
POINTS = {
    "before it has a trial": Point(_STORAGE, "set_trial_state_values", meant=_claims),
    "when it has a trial": Point(_STORAGE, "set_trial_state_values", True, _claims),
    "before the trial's record is made": Point(_RECORD, "open"),
    "when the trial's record is made, and nobody knows it": Point(_RECORD, "open", True),
    "when half of the point is drawn": Point("cppo_lab.search.study", "suggest", True),
    "when the point is drawn": Point(_STUDY, "draw", True),
    "before the record has the point": Point(_RECORD, "describe"),
    "when the record has the point": Point(_RECORD, "describe", True),
    "when the record has a score, and the study has not": Point(_RECORD, "scores", True),
    "when the study has a score": Point(_STUDY, "score", True),
    "before the record is ended": Point(_RECORD, "finish"),
    "when the record is ended, and the study does not know": Point(_RECORD, "finish", True),
    "before the trial is ended": Point(_STORAGE, "set_trial_state_values", meant=_tells),
    "when the trial is ended": Point(_STORAGE, "set_trial_state_values", True, _tells),
    "while it writes how the search stands": Point("pathlib:Path", "replace", meant=_is_summary),
}
