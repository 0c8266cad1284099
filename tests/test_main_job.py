"""The main job as its users do it, on a small model: launched, one run killed, launched again, reported."""

import csv
import json
import os
import signal
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.cli import main
from tests.conftest import TINY, working_in
from tests.launch.gate import Gate
from tests.launch.test_launch import started
from tests.recorded import history, mlflow_runs

RULES = ["grpo", "cppo"]
SWEEP = ["quickstart", *TINY, "training.t_stop=6", "training.collapse_share=0", "variant=grpo,cppo"]


class Job(NamedTuple):
    """What it left, and what was said on the way."""

    launched: str
    killed: Run  # as it was before it was gone on with
    said: str
    runs: list[Run]
    page: Path


@pytest.fixture(scope="module")
def job(shared_path: Path) -> Iterator[Job]:
    """One seed in separate processes, the first killed behind its fourth step; then both seeds, and the report."""
    with working_in(shared_path):
        gate = Gate(shared_path, validation=2)
        launcher = started("launch", *SWEEP, "seed=0", "launcher=local", "launcher.workers=1", gate=gate)
        [trainer] = gate.reached(launcher)
        os.kill(trainer, signal.SIGKILL)
        gate.remove()
        launched, _ = launcher.communicate()
        assert launcher.returncode == 1, launched
        [killed] = [run for run in mlflow_runs() if run.info.status == "KILLED"]
        assert main(["launch", *SWEEP, "launcher=inline"]) == 0
        with redirect_stdout(StringIO()) as said:
            assert main(["report", *SWEEP]) == 0
        yield Job(
            launched,
            killed,
            said.getvalue(),
            mlflow_runs(),
            shared_path / "reports/build/quickstart/index.html",
        )


def test_a_killed_run_is_said_and_goes_on_where_it_was(job: Job) -> None:
    assert "1 of 2 runs are not done (1 partial)" in job.launched
    assert job.killed.data.tags.items() >= {schema.TAG_STATUS: "partial", schema.TAG_STEP: "4"}.items()
    [resumed] = [run for run in job.runs if run.info.run_id == job.killed.info.run_id]
    assert resumed.info.status == "FINISHED"
    assert list(history(resumed, "train/reward")) == [1, 2, 3, 4, 5, 6]


def test_every_run_is_in_the_store_once(job: Job) -> None:
    assert {run.info.status for run in job.runs} == {"FINISHED"}
    found = sorted((run.data.tags[schema.TAG_RULE], run.data.tags[schema.TAG_SEED]) for run in job.runs)
    assert found == sorted((rule, seed) for rule in RULES for seed in "01")
    assert Path("mlflow.db").is_file()
    for run in job.runs:
        status = json.loads((Path("runs") / run.data.tags[schema.TAG_RUN_ID] / "status.json").read_text())
        assert (status["status"], status["step"]) == ("done", 6)


def test_what_jobs_print_is_kept_once(job: Job) -> None:
    for run in job.runs:
        folder, seed = Path("runs") / run.data.tags[schema.TAG_RUN_ID], run.data.tags[schema.TAG_SEED]
        printed = {f"{path.name}.txt" for path in folder.glob("attempts/*_log.*") if path.stat().st_size}
        assert {path.name for path in folder.glob("output/*")} == printed
        assert bool(printed) == (seed == "0")  # the other seed was not in jobs of its own


def test_the_tables_are_means_of_the_best_scores(job: Job) -> None:
    best: dict[str, list[float]] = {rule: [] for rule in RULES}
    for run in job.runs:
        best[run.data.tags[schema.TAG_RULE]].append(max(history(run, "val/mean/avg_at_16").values()))
    with job.page.with_name("table_full.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == RULES
    for row in rows:
        assert float(row["avg"]) == pytest.approx(100 * fmean(best[row["method"]]), abs=0.0051)


def test_the_page_shows_the_runs_the_curves_and_what_they_are(job: Job) -> None:
    assert job.said.splitlines()[0].endswith(str(job.page.relative_to(Path.cwd())))
    page = job.page.read_text()
    for run in job.runs:
        assert run.data.tags[schema.TAG_RUN_ID] in page
        assert run.info.run_id in page
    beside = 'href="../quickstart_exact/index.html"'
    core = "core=mini: a miniature model on a synthetic task, not comparable"
    assert all(text in page for text in ("GRPO", "CPPO", "cppo report quickstart", "Verdict", core, beside))
    assert 'class="missing"' not in page and "Incomplete" not in page
    assert page.count("<svg") > 1
    made = {path.suffix for path in job.page.parent.glob("figure_curves.*")}
    assert made == {".png", ".svg", ".pdf", ".csv"}


def test_a_run_evaluated_on_its_own_benchmarks_has_the_scores_of_its_best_step(job: Job) -> None:
    run = job.runs[0]
    own = ["data.operations=2", "data.validation_problems=4", "rollout.max_response_length=9"]
    with redirect_stdout(StringIO()) as said:
        words = ["evaluate", run.data.tags[schema.TAG_RUN_ID], "--benchmark", "chain", *own, "--json"]
        assert main(words) == 0
    [answer] = json.loads(said.getvalue())["runs"]
    best = max(history(run, "val/mean/avg_at_16").items(), key=lambda point: point[1])
    assert (answer["step"], fmean(answer["scores"].values())) == (best[0], pytest.approx(best[1], abs=1e-6))
    for name, score in answer["scores"].items():
        assert history(run, f"val/{name}/avg_at_16")[answer["step"]] == pytest.approx(score, abs=1e-6)
    with redirect_stdout(StringIO()) as again, redirect_stderr(StringIO()) as warned:
        assert main([*words, "data.operations=1"]) == 0
    assert json.loads(again.getvalue())["runs"] == [answer]
    assert "evaluated on this before: its recorded scores, not measured again" in warned.getvalue()
