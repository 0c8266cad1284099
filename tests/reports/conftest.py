"""One store with the paper's curves and one with a small sweep of our own, each written once per session."""

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.reports.printed import main_grid
from cppo_lab.reports.sweep import ReportRequest
from cppo_lab.tracking.reference import import_reference

DEMO = {"grpo": 0.30, "cppo": 0.50}  # variant -> its best score; seed 1 is 0.02 higher


@pytest.fixture(scope="session")
def reference_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the imported reference. Do not write to it."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('reference') / 'new' / 'mlflow.db'}"
    assert import_reference(uri) == 37
    return uri


@pytest.fixture(scope="session")
def paper_board(reference_uri: str) -> Scoreboard:
    """The paper's main grid, scored."""
    return score_sweep(read_sweep(reference_uri, schema.PAPER, "main"), main_grid())


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables and nothing else; creating one takes seconds, copying it does not."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def empty_uri(empty_store: Path, tmp_path: Path) -> str:
    """An empty store to write to."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture(scope="session")
def demo_store(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a sweep `demo` of the mini core: two variants, two seeds, three benchmarks."""
    path = tmp_path_factory.mktemp("demo") / "mlflow.db"
    shutil.copy(empty_store, path)
    client = MlflowClient(f"sqlite:///{path}")
    experiment = client.create_experiment(schema.experiment_name("mini"))
    for number, (variant, best) in enumerate(DEMO.items()):
        for seed in (0, 1):
            tags = {
                schema.TAG_RUN_ID: f"{variant}-{seed}",
                schema.TAG_RULE: variant,
                schema.TAG_MODEL: "mini_base",
                schema.TAG_CORE: "mini",
                schema.TAG_SEED: str(seed),
                schema.TAG_T_STOP: "40",
                schema.TAG_STATUS: schema.DONE,
                schema.sweep_tag("demo"): variant,
            }
            run = client.create_run(experiment, start_time=number + 1, tags=tags)
            points = [Metric("train/reward", 0.01 * step, step, step) for step in range(1, 41)]
            for offset, benchmark in enumerate(("chain24", "chain25", "chain26")):
                for step, share in ((0, 0.1), (10, 0.5), (20, 1.0), (30, 0.8), (40, 0.9)):
                    value = (best + 0.02 * seed) * share + 0.01 * (offset - 1)
                    points.append(Metric(schema.validation_metric(benchmark, 8), value, step, step))
            client.log_batch(run.info.run_id, metrics=points)
            client.set_terminated(run.info.run_id)
    return path


def request_in(folder: Path, demo_store: Path) -> ReportRequest:
    """A request for the demo sweep, with a store of its own to change, in a folder."""
    shutil.copy(demo_store, folder / "mlflow.db")
    return ReportRequest(
        name="demo",
        uri=f"sqlite:///{folder / 'mlflow.db'}",
        experiment=schema.experiment_name("mini"),
        expected=tuple(
            ExpectedRun(f"{name}-{seed}", "mini_base", name, seed) for name in DEMO for seed in (0, 1)
        ),
        out=folder / "report",
        title="Demo",
        question="Does it work?",
        command="cppo report demo",
    )


@pytest.fixture
def demo_request(demo_store: Path, tmp_path: Path) -> ReportRequest:
    """Such a request in a folder of the test's own."""
    return request_in(tmp_path, demo_store)
