"""Two methods with two seeds on one of the paper's models, as if they had been trained here."""

from pathlib import Path

from cppo_lab import schema
from cppo_lab.reports.sweep import ReportRequest
from tests.analysis.made_sweeps import MadeRun, write_runs
from tests.reports.conftest import request_of

MODEL = "qwen3_8b_base"
BENCHMARKS = ("aime24", "aime25", "aime26")
STEPS = range(0, 201, 10)
T_STOP = STEPS[-1]
HEIGHT = {"dppo": 0.25, "cppo": 0.35}


def value(height: float, seed: int, step: int) -> float:
    """The score of a run: it rises in a straight line, with a tooth every third evaluation."""
    return height * step / T_STOP + 0.01 * seed + (0.02 if step % 30 == 0 else 0.0)


def write_pair(folder: Path, model: str = MODEL) -> tuple[ReportRequest, dict[str, str]]:
    """A store with the runs in a folder: the request of their report, and the runs' MLflow ids."""
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    runs = [
        MadeRun(
            variant,
            model,
            seed,
            logged={
                schema.validation_metric(name): {step: value(height, seed, step) for step in STEPS}
                for name in BENCHMARKS
            },
            t_stop=T_STOP,
            run_id=f"{variant}-{seed}",
            core="verl",
        )
        for variant, height in HEIGHT.items()
        for seed in (0, 1)
    ]
    ids = write_runs(uri, runs, params={"model.repository": "Qwen/Qwen3-8B-Base"})
    return request_of(runs, uri, folder / "out"), ids
