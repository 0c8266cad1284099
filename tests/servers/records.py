"""What a store has of a run, against what it has to have."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from cppo_lab import schema
from cppo_lab.answers.recording import Recording
from cppo_lab.runs.tags import flatten
from cppo_lab.schema import DONE
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import history
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.read import StoredFiles
from cppo_lab.tracking.upload import TABLE
from tests.servers import trainer

SYSTEM = "system/"  # metrics that nobody can foresee
Curves = dict[
    str, dict[int, str]
]  # metric -> step -> value as text, so that two that are no number are equal


def runs_of(uri: str, spec: RunSpec, view: int = ViewType.ACTIVE_ONLY) -> list[Run]:
    """The MLflow runs of a training run."""
    client = open_client(uri)
    experiment = client.get_experiment_by_name(schema.experiment_name(spec.core))
    if experiment is None:
        return []
    condition = f"tags.`{schema.TAG_RUN_ID}` = '{spec.run_id}'"
    return list(client.search_runs([experiment.experiment_id], condition, view))


def expected(last: int, t_stop: int) -> Curves:
    """The history up to step `last` of a run of the stub that no fault has met."""
    curves: Curves = {}
    scores: dict[int, float] = {}
    for step in range(last + 1):
        values = dict(trainer.metrics(step))
        if (
            score := next((value for name, value in values.items() if name.startswith("val/mean/")), None)
        ) is not None:
            scores[step] = score
            best = max(scores.values())
            values["val/best"] = best
            values["val/best_step"] = next(at for at, value in scores.items() if value == best)
            if late := [value for at, value in scores.items() if at > 0.7 * t_stop]:
                values["val/final_mean"] = math.fsum(late) / len(late)
        for name, value in values.items():
            curves.setdefault(name, {})[step] = text(value)
    return curves


def stored(client: MlflowClient, run: Run) -> Curves:
    """The history that a store has of an MLflow run. Fails if a step of a metric stands twice."""
    curves: Curves = {}
    for name in run.data.metrics:
        points = client.get_metric_history(run.info.run_id, name)
        steps = [point.step for point in points]
        twice = sorted({step for step in steps if steps.count(step) > 1})
        assert not twice, f"{name}: steps {twice} stand more than once"
        if not name.startswith(SYSTEM):
            curves[name] = {point.step: text(point.value) for point in points}
    return curves


def text(value: float) -> str:
    """A value, to the last bit. MLflow keeps the infinite as the largest finite."""
    if math.isinf(value):
        value = math.copysign(1.7976931348623157e308, value)
    return repr(float(value))


def compare(found: Curves, wanted: Curves) -> None:
    """Fails with what is missing or different, named."""
    assert found.keys() == wanted.keys()
    for name, curve in wanted.items():
        missing, more = sorted(curve.keys() - found[name].keys()), sorted(found[name].keys() - curve.keys())
        assert not missing, f"{name}: steps {missing} are missing"
        assert not more, f"{name}: steps {more} are too many"
        assert found[name] == curve, name


def assert_whole(
    uri: str,
    spec: RunSpec,
    folder: Path,
    wanted: Mapping[str, dict[int, str]] | None = None,
    disk_full: bool = False,
) -> Run:
    """The run is one MLflow run, finished, with the history of an unbroken one, and nothing of it is RUNNING."""
    found = runs_of(uri, spec, ViewType.ALL)
    assert [run.info.status for run in found if run.info.status == "RUNNING"] == []
    active = [run for run in found if run.info.lifecycle_stage == "active"]
    assert len(active) == 1, [run.to_dictionary()["info"] for run in found]
    [run] = active
    tags = run.data.tags
    assert (run.info.status, tags[schema.TAG_STATUS]) == ("FINISHED", DONE)
    assert schema.TAG_REASON not in tags
    assert schema.TAG_STEP not in tags
    assert run.data.params == flatten(spec.model_dump(mode="json"))
    client = open_client(uri)
    curves = dict(wanted) if wanted is not None else expected(spec.training.t_stop, spec.training.t_stop)
    compare(stored(client, run), curves)
    names = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert names >= {"config.json", history.HISTORY}
    folder.mkdir(exist_ok=True)
    path = Path(client.download_artifacts(run.info.run_id, history.HISTORY, str(folder)))
    whole = history.unpack(path.read_bytes(), str(path))
    compare(_of_file(whole), curves)
    if wanted is None:
        _assert_answers(client, run, spec.training.t_stop, folder, disk_full)
    return run


def _assert_answers(client: MlflowClient, run: Run, last: int, folder: Path, disk_full: bool) -> None:
    """The store has each answer file of an unbroken run, byte by byte, and the table of its texts.

    The table is made of the files on disk.
    """
    files: dict[str, bytes] = {}
    unbroken = Recording(trainer.KEPT, folder / "nowhere", 1 + last // trainer.EVERY, files.__setitem__)
    for step in range(0, last + 1, trainer.EVERY):
        unbroken.add(trainer.answers(step))
    kept = StoredFiles(client, run.info.run_id)
    assert kept.names() == sorted(name.removeprefix("answers/") for name in files)
    for name, content in files.items():
        assert kept.content(name, 10**9) == content, name
    table = json.loads(Path(client.download_artifacts(run.info.run_id, TABLE, str(folder))).read_text())
    steps = [row[table["columns"].index("step")] for row in table["data"]]
    whole = sorted(3 * list(range(0, last + 1, trainer.EVERY)))
    assert sorted(steps) == whole or (disk_full and set(steps) < set(whole))
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": TABLE, "type": "table"}]


def _of_file(whole: history.History) -> Curves:
    return {
        name: {
            int(step): text(float(value))
            for step, value in zip(whole.step[place], whole.value[place], strict=True)
        }
        for name, place in whole.points()
        if not name.startswith(SYSTEM)
    }
