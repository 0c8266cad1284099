"""Two methods with two seeds on one of the paper's models, as if they had been trained here."""

from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.reports.sweep import ReportRequest

MODEL, CORE = "qwen3_8b_base", "verl"
T_STOP, EVERY = 200, 10
HEIGHT = {"dppo": 0.25, "cppo": 0.35}


def write_pair(uri: str, model: str = MODEL) -> None:
    """Puts the runs into the (empty) store at `uri`."""
    client = MlflowClient(uri)
    artifacts = Path(uri.removeprefix("sqlite:///")).parent / "artifacts"
    experiment = client.create_experiment(schema.experiment_name(CORE), artifact_location=artifacts.as_uri())
    for variant, height in HEIGHT.items():
        for seed in (0, 1):
            tags = {
                schema.TAG_RUN_ID: f"{variant}-{seed}",
                schema.TAG_RULE: variant,
                schema.TAG_MODEL: model,
                schema.TAG_CORE: CORE,
                schema.TAG_SEED: str(seed),
                schema.TAG_T_STOP: str(T_STOP),
                schema.TAG_STATUS: schema.DONE,
                schema.sweep_tag("main"): variant,
            }
            run = client.create_run(experiment, tags=tags)
            points = [
                Metric(schema.validation_metric(name), value(height, seed, step), step, step)
                for name in ("aime24", "aime25", "aime26")
                for step in range(0, T_STOP + 1, EVERY)
            ]
            repository = Param("model.repository", "Qwen/Qwen3-8B-Base")
            client.log_batch(run.info.run_id, metrics=points, params=[repository])
            client.set_terminated(run.info.run_id)


def value(height: float, seed: int, step: int) -> float:
    """The score of a run: it rises in a straight line, with a tooth every third evaluation."""
    return height * step / T_STOP + 0.01 * seed + (0.02 if step % (3 * EVERY) == 0 else 0.0)


def request_for_pair(uri: str, out: Path, model: str = MODEL) -> ReportRequest:
    """The report of the runs."""
    expected = tuple(
        ExpectedRun(f"{variant}-{seed}", model, variant, seed) for variant in HEIGHT for seed in (0, 1)
    )
    return ReportRequest(
        "main", uri, schema.experiment_name(CORE), expected, out, "A pair", "Which is better?"
    )
