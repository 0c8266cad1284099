"""The section on sampler against trainer: its numbers, its judgement, and reports without it."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.reports.build import build_report
from cppo_lab.reports.mismatch import SHOWN
from cppo_lab.reports.sweep import ReportRequest

BEFORE = schema.mismatch_metric("token_mult_prob_error", before_update=True)
OVER = schema.mismatch_metric("token_mult_prob_error")
ESS = schema.mismatch_metric("effective_sample_size", before_update=True)
Points = Callable[[str, int, int], dict[str, float]]  # of (variant, seed, step)


def plain(variant: str, seed: int, step: int) -> dict[str, float]:
    return {
        BEFORE: 1.001 + 0.001 * step,
        OVER: 1.2 + step,
        ESS: 1 - 0.01 * step,
        "train/truncated_share": 0.25,
    }


def write(
    uri: str,
    folder: Path,
    points: Points,
    core: str = "mini",
    staleness: int = 0,
    variants: tuple[str, ...] = ("grpo", "cppo"),
) -> ReportRequest:
    """Runs of two seeds with ten steps in a store of their own, and the request of their report."""
    client = MlflowClient(uri)
    experiment = client.create_experiment(
        schema.experiment_name(core), artifact_location=(folder / "artifacts").as_uri()
    )
    expected = []
    for variant in ("grpo", "cppo"):
        for seed in (0, 1):
            run_id = f"{variant}-{seed}"
            tags = {
                schema.TAG_RUN_ID: run_id,
                schema.TAG_RULE: variant,
                schema.TAG_MODEL: "base",
                schema.TAG_CORE: core,
                schema.TAG_SEED: str(seed),
                schema.TAG_T_STOP: "10",
                schema.TAG_STATUS: schema.DONE,
                schema.sweep_tag("try"): variant,
            }
            run = client.create_run(experiment, tags=tags).info.run_id
            logged = [
                Metric(name, value, step, step)
                for step in range(1, 11)
                for name, value in points(variant, seed, step).items()
            ]
            scores = [Metric(schema.validation_metric("chain24"), 0.1 * s, s, s) for s in (0, 5, 10)]
            client.log_batch(run, metrics=logged + scores)
            client.log_batch(run, params=[Param("rollout.staleness", str(staleness))])
            client.set_terminated(run)
            expected.append(ExpectedRun(run_id, "base", variant, seed))
    return ReportRequest(
        "try",
        uri,
        schema.experiment_name(core),
        tuple(expected),
        folder / "report",
        "Try",
        "What is the gap?",
    )


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def section(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if '<section id="mismatch">' not in text:
        return ""
    return text.split('<section id="mismatch">')[1].split("</section>")[0]


@pytest.mark.parametrize("core", ["mini", "verl"])
def test_median_and_worst_of_every_method(store: str, tmp_path: Path, core: str) -> None:
    page = build_report(write(store, tmp_path, plain, core))
    shown = section(page)
    errors = [1.001 + 0.001 * step for step in range(1, 11)] * 2
    assert f"{median(errors):.4f} ({max(errors):.4f})" in shown
    assert (
        f"{median([1 - 0.01 * s for s in range(1, 11)]):.4f} (0.9000)" in shown
    )  # the worst ESS is the least
    assert "25.0% (25.0%)" in shown
    assert "It was never exceeded in the 4 runs that logged it." in shown
    assert shown.count("<svg") == 1 and "staleness" not in shown
    table = (page.parent / "mismatch_before_update.csv").read_text()
    assert "GRPO" in table and "not logged" in table
    assert {f"mismatch_{kind}.md" for kind in ("before_update", "updates", "thirds")} <= {
        path.name for path in page.parent.iterdir()
    }


def test_runs_that_crossed_the_threshold_are_named(store: str, tmp_path: Path) -> None:
    def crossing(variant: str, seed: int, step: int) -> dict[str, float]:
        high = variant == "cppo" and seed == 1 and step in (4, 7)
        return plain(variant, seed, 1) | {BEFORE: 1.0501 + step / 100 if high else 1.05}

    shown = section(build_report(write(store, tmp_path, crossing)))
    assert "It was exceeded in 1 of 4 runs: CPPO on base, seed 1 (2 steps, first 4, worst 1.1201)." in shown


def test_what_is_over_the_threshold_after_the_first_update_is_not_judged(store: str, tmp_path: Path) -> None:
    shown = section(build_report(write(store, tmp_path, plain)))
    assert "11.2000" in shown and "It was never exceeded" in shown


def test_an_older_mu_is_said(store: str, tmp_path: Path) -> None:
    shown = section(build_report(write(store, tmp_path, plain, staleness=2)))
    assert "In 4 of 4 runs rollout.staleness is above 0" in shown


def test_runs_without_the_metrics_report_as_before(store: str, tmp_path: Path) -> None:
    page = build_report(write(store, tmp_path, lambda *_: {"train/reward": 0.5}))
    assert not section(page)
    assert not list(page.parent.glob("mismatch*"))


def test_some_runs_of_an_older_version(store: str, tmp_path: Path) -> None:
    def mixed(variant: str, seed: int, step: int) -> dict[str, float]:
        return plain(variant, seed, step) if variant == "cppo" else {"train/reward": 0.5}

    shown = section(build_report(write(store, tmp_path, mixed)))
    assert "It was never exceeded in the 2 runs that logged it." in shown
    assert 'row">CPPO' in shown and 'row">GRPO' not in shown


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_left_out(store: str, tmp_path: Path, value: float) -> None:
    def broken(variant: str, seed: int, step: int) -> dict[str, float]:
        return plain(variant, seed, step) | ({BEFORE: value} if step == 3 else {})

    page = build_report(write(store, tmp_path, broken))
    table = (page.parent / "mismatch_before_update.csv").read_text()
    assert "1.0070 (1.0110)" in table and "nan" not in table and "inf" not in table
    exceeded = value == math.inf  # it is above the threshold
    assert ("It was exceeded in 4 of 4 runs" in section(page)) == exceeded


def test_every_metric_that_is_shown_is_of_the_schema() -> None:
    assert all(schema.is_known_metric(name) for name in SHOWN)
