"""One store with the paper's curves and one with a small sweep of our own, each written once per session."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.analysis.inputs import SweepGrid
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.reports.build import Contents, render_template
from cppo_lab.reports.figures.drawing import Absent, Drawn
from cppo_lab.reports.sweep import ReportRequest, sweep_contents
from cppo_lab.reports.tables import main_grid
from cppo_lab.tracking.reference import import_reference
from tests.analysis.conftest import uri
from tests.analysis.made_sweeps import MadeRun, expect, write_runs

__all__ = ["uri"]  # the fixture of a store of a test's own
DEMO = {"grpo": 0.30, "cppo": 0.50}  # variant -> its best score; seed 1 is 0.02 higher
DEMO_RUNS = [
    MadeRun(
        variant,
        "mini_base",
        seed,
        t_stop=40,
        run_id=f"{variant}-{seed}",
        logged={"train/reward": {step: 0.01 * step for step in range(1, 41)}}
        | {
            schema.validation_metric(benchmark, 8): {
                step: (best + 0.02 * seed) * share + offset
                for step, share in ((0, 0.1), (10, 0.5), (20, 1.0), (30, 0.8), (40, 0.9))
            }
            for benchmark, offset in (("chain24", -0.01), ("chain25", 0.0), ("chain26", 0.01))
        },
    )
    for variant, best in DEMO.items()
    for seed in (0, 1)
]


def request_of(runs: Sequence[MadeRun], uri: str, out: Path, sweep: str = "main") -> ReportRequest:
    """The report of the runs."""
    return ReportRequest(
        name=sweep,
        uri=uri,
        experiment=schema.experiment_name(runs[0].core),
        sweeps=(SweepGrid(sweep, "Demo", "", expect(runs)),),
        out=out,
        title="Demo",
        question="Does it work?",
        command="cppo report demo",
    )


@pytest.fixture(scope="session")
def reference_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the imported reference. Do not write to it."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('reference') / 'new' / 'mlflow.db'}"
    assert import_reference(uri) == 37
    return uri


@contextmanager
def svg_alone() -> Iterator[None]:
    """Figures are saved once, which takes half the time. The other forms: test_figures.py, test_build.py."""
    save = Figure.savefig

    def saved(figure: Figure, out: BinaryIO, *, format: str, **options: Any) -> None:
        if format == "svg":
            save(figure, out, format=format, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", saved)
        yield


@pytest.fixture(scope="session")
def paper_board(reference_uri: str) -> Scoreboard:
    """The paper's main grid, scored."""
    return score_sweep(read_sweep(reference_uri, schema.PAPER, "main"), main_grid())


@pytest.fixture(scope="session")
def demo_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a sweep `demo` of the mini core: two variants, two seeds, three benchmarks."""
    path = tmp_path_factory.mktemp("demo") / "mlflow.db"
    write_runs(f"sqlite:///{path}", DEMO_RUNS, "demo")
    return path


def request_in(folder: Path, demo_store: Path) -> ReportRequest:
    """A request for the demo sweep, with a store of its own to change, in a folder."""
    shutil.copy(demo_store, folder / "mlflow.db")
    return request_of(DEMO_RUNS, f"sqlite:///{folder / 'mlflow.db'}", folder / "report", "demo")


@pytest.fixture
def demo_request(demo_store: Path, tmp_path: Path) -> ReportRequest:
    """Such a request in a folder of the test's own."""
    return request_in(tmp_path, demo_store)


def page_of(board: Scoreboard) -> tuple[Contents, str]:
    """The report of a board and its page, without any figure drawn."""
    request = replace(request_of(DEMO_RUNS, "sqlite://", Path(), "demo"), title="Title", command="")
    contents = sweep_contents(request, board)
    absent = Absent("not drawn here")
    figures = {picture.name: Drawn(replace(picture, info=absent)) for picture in contents.figures}
    return contents, render_template(contents, figures, ())
