"""The state of a search as one file, which the report reads. It is written next to the runs and to MLflow."""

import fcntl
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.files import open_lock, replace_file
from cppo_lab.sweep.search.space import Tuning, describe, tidy
from cppo_lab.sweep.search.storage import exclusive
from cppo_lab.sweep.search.study import MLFLOW_ID, REASON, RUN_IDS, SEARCH_RUN, SearchStudy
from cppo_lab.tracking.client import deferred_for, ensure_experiment, open_client
from cppo_lab.tracking.search_record import open_search, update_search

FILE = "search.json"
FORMAT = 1
ENOUGH = 8  # complete trials needed for importances
BEST_SHARE = 0.25  # share of the best trials for importances; Optuna's 0.1 would be two or three of 24 trials
_NAMES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}


class SearchState:
    """The search in MLflow, as updated by one worker. `client` is open; `mlflow_id` is the run of the study."""

    def __init__(self, study: SearchStudy, uri: str) -> None:
        self.study, self.tuning, self.uri = study, study.tuning, uri
        self.client = open_client(uri)
        experiment, note = schema.experiment_name(self.tuning.core), core_of(self.tuning.core).note
        self.experiment = ensure_experiment(self.client, uri, experiment, note)
        with exclusive(study.url), deferred_for(uri):
            known = study.study.user_attrs.get(SEARCH_RUN)
            note = _note(self.tuning, self.tuning.study, study.trials())
            self.mlflow_id = open_search(self.client, self.experiment, self.tuning.study, note, known)
            if self.mlflow_id != known:
                study.study.set_user_attr(SEARCH_RUN, self.mlflow_id)

    def publish(self) -> None:
        """Write the file again, locally and to MLflow. Only one worker at a time does so, from the current study."""
        with open_lock(self.study.folder / "publish.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            trials = self.study.trials()
            content = summarise(self.tuning, self.study.study, trials)
            path = self.study.folder / FILE
            replace_file(path, json.dumps(content, indent=1) + "\n")
            note = _note(self.tuning, self.tuning.study, trials)
            with deferred_for(self.uri):
                update_search(self.client, self.mlflow_id, note, path, ended=is_over(self.tuning, trials))


def is_over(tuning: Tuning, trials: Sequence[FrozenTrial]) -> bool:
    """Whether every trial of the budget has ended."""
    return sum(trial.state.is_finished() for trial in trials) >= tuning.trials


def best_numbers(trials: Sequence[FrozenTrial]) -> list[int]:
    """The best trial, the earliest on ties; for several objectives the Pareto front. All objectives are maximised."""
    done = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    if not done:
        return []
    if len(done[0].values) == 1:
        return [max(done, key=lambda trial: (trial.values[0], -trial.number)).number]
    return [trial.number for trial in done if not any(_dominates(other, trial) for other in done)]


def _dominates(one: FrozenTrial, other: FrozenTrial) -> bool:
    pairs = list(zip(one.values, other.values, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def summarise(tuning: Tuning, study: optuna.Study, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
    """The whole search as plain values."""
    search = tuning.search
    return {
        "format": FORMAT,
        "name": search.name,
        "study": tuning.study,
        "title": search.title,
        "question": search.question,
        "core": tuning.core,
        "model": tuning.model,
        "seeds": list(tuning.seeds),
        "sampler": search.search.sampler.name,
        "pruner": search.search.pruner.name,
        "objectives": list(search.search.objectives),
        "parameters": tuning.parameters(),
        "t_stop": tuning.t_stop,
        "trials": [_trial(trial) for trial in trials if trial.state in _NAMES],
        "importances": _importances(tuning, study, trials),
        "best": best_numbers(trials),
    }


def _trial(trial: FrozenTrial) -> dict[str, Any]:
    begun, ended = trial.datetime_start, trial.datetime_complete
    attributes: Mapping[str, Any] = trial.user_attrs
    return {
        "number": trial.number,
        "state": _NAMES[trial.state],
        "params": {key: tidy(value) for key, value in trial.params.items()},
        "values": list(trial.values) if trial.state is TrialState.COMPLETE else None,
        "curve": [[step, trial.intermediate_values[step]] for step in sorted(trial.intermediate_values)],
        "run_ids": attributes.get(RUN_IDS, []),
        "mlflow_id": attributes.get(MLFLOW_ID),
        "reason": attributes.get(REASON, ""),
        "seconds": round((ended - begun).total_seconds(), 1) if begun and ended else None,
    }


def _importances(
    tuning: Tuning, study: optuna.Study, trials: Sequence[FrozenTrial]
) -> dict[str, dict[str, float]]:
    """Each parameter's importance for distinguishing the best trials (PED-ANOVA), per objective.

    None while too few trials are complete, or where they do not differ.
    """
    if sum(trial.state is TrialState.COMPLETE for trial in trials) < ENOUGH:
        return {}
    evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
    found: dict[str, dict[str, float]] = {}
    for place, objective in enumerate(tuning.search.search.objectives):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # a warning that the target is minimised, hence the sign
            shares = evaluator.evaluate(study, target=partial(_loss, place))
        total = sum(shares.values())
        if total > 0:
            found[objective] = {key: value / total for key, value in shares.items()}
    return found


def _loss(place: int, trial: FrozenTrial) -> float:
    return -float(trial.values[place])


def _note(tuning: Tuning, study: str, trials: Sequence[FrozenTrial]) -> str:
    """The description that MLflow shows."""
    lines = [
        f"# {tuning.search.title}",
        "",
        tuning.search.question,
        "",
        "| parameter | values |",
        "| --- | --- |",
    ]
    lines += [f"| {key} | {describe(one)} |" for key, one in tuning.space.items()]
    done = sum(trial.state.is_finished() for trial in trials)
    lines += ["", f"Study `{study}`: {done} of {tuning.trials} trials done."]
    lines += [f"Best so far: {trial_line(trials[number], tuning)}" for number in best_numbers(trials)]
    return "\n".join(lines)


def trial_line(trial: FrozenTrial, tuning: Tuning) -> str:
    """A complete trial in a line: number, values, point."""
    values = ", ".join(
        f"{name} {value:.4f}"
        for name, value in zip(tuning.search.search.objectives, trial.values, strict=True)
    )
    point = " ".join(f"{key}={_short(value)}" for key, value in trial.params.items())
    return f"trial {trial.number}: {values} at {point}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
