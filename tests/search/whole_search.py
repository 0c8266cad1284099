"""What has to be true of a search that is over, whatever was killed on the way: no trial is lost, none is run twice."""

import json
from collections import Counter
from pathlib import Path

import optuna
import pytest
from mlflow.entities import Run, ViewType
from optuna.trial import FrozenTrial, TrialState

from cppo_lab import schema
from cppo_lab.runs.folder import is_held
from cppo_lab.search.study import numbered
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client

STUDY = "tune-mini_base"


def trials(study: str = STUDY) -> list[FrozenTrial]:
    """The trials of the study in the working folder; none if it is not there yet."""
    try:
        return numbered(optuna.load_study(study_name=study, storage="sqlite:///optuna.db").get_trials())
    except KeyError:
        return []


def mlflow_runs() -> list[Run]:
    """All runs of the store of the working folder."""
    client = open_client(tracking_uri())
    experiment = client.get_experiment_by_name("cppo-mini")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL, max_results=1000))


def training_now(runs: Path) -> list[int]:
    """The processes that are training a run and have taken a step."""
    statuses = [path for path in runs.glob("*/status.json") if is_held(path.parent)]
    found = [json.loads(path.read_text()) for path in statuses]
    return [one["pid"] for one in found if "pid" in one]  # an attempt that begins has none yet


def assert_search_is_whole(runs: Path, count: int) -> list[FrozenTrial]:
    """The study, MLflow and the search's file have each of so many trials once, and say the same of it."""
    found = trials()
    assert [trial.number for trial in found] == list(range(count))
    states = Counter(trial.state for trial in found)
    assert states[TrialState.COMPLETE] + states[TrialState.PRUNED] == count
    assert len({json.dumps(trial.params) for trial in found}) == count  # no point was drawn twice

    recorded = mlflow_runs()
    by_id = {run.info.run_id: run for run in recorded}
    parents = [
        run
        for run in recorded
        if schema.TAG_SEARCH in run.data.tags and schema.TAG_TRIAL not in run.data.tags
    ]
    assert [(run.info.status, run.data.tags[schema.TAG_STATUS]) for run in parents] == [("FINISHED", "done")]
    numbers = Counter(
        run.data.tags[schema.TAG_TRIAL] for run in recorded if schema.TAG_TRIAL in run.data.tags
    )
    assert numbers == {str(number): 1 for number in range(count)}
    trained = Counter(
        run.data.tags[schema.TAG_RUN_ID] for run in recorded if schema.TAG_RUN_ID in run.data.tags
    )
    assert trained == {run_id: 1 for trial in found for run_id in trial.user_attrs["run_ids"]}
    assert len(recorded) == 1 + 2 * count

    client = open_client(tracking_uri())
    for trial in found:
        [run_id] = trial.user_attrs["run_ids"]
        [training] = [run for run in recorded if run.data.tags.get(schema.TAG_RUN_ID) == run_id]
        record = by_id[trial.user_attrs["mlflow_id"]]
        assert training.data.tags[schema.TAG_PARENT] == record.info.run_id
        assert training.data.tags[schema.sweep_tag("tune")] == f"trial {trial.number}"
        assert record.data.tags[schema.TAG_PARENT] == parents[0].info.run_id
        points = client.get_metric_history(training.info.run_id, "val/mean/avg_at_16")
        assert len({point.step for point in points}) == len(points)
        curve = {point.step: point.value for point in points}
        if trial.state is TrialState.COMPLETE:
            assert training.info.status == "FINISHED"
            assert record.data.tags[schema.TAG_STATUS] == "done"
            missing = (4 - max(curve)) // 2  # of a run that collapsed
            scores = [curve[step] for step in sorted(curve)] + [curve[max(curve)]] * missing
            assert trial.value == pytest.approx(sum(scores[-3:]) / 3, abs=1e-12)
            assert record.data.metrics["search/final_score"] == trial.value
            assert trial.intermediate_values == curve
        else:
            assert record.data.tags[schema.TAG_STATUS] == "pruned"
            if training.info.status != "FINISHED":  # it may have come to its end first
                assert training.data.tags[schema.TAG_REASON].startswith("pruned by the search at step ")

    content = json.loads((runs / "searches" / STUDY / "search.json").read_text())
    assert [trial["number"] for trial in content["trials"]] == list(range(count))
    assert {trial["state"] for trial in content["trials"]} <= {"complete", "pruned"}
    values = {trial.number: trial.value for trial in found if trial.state is TrialState.COMPLETE}
    assert content["best"] == [max(values, key=lambda number: (values[number], -number))]
    [artifact] = client.list_artifacts(parents[0].info.run_id)
    assert artifact.path == "search.json"
    return found
