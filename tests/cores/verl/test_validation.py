"""Names of verl's validation metrics against verl's own code, and what is no validation."""

from typing import Any

import pytest
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from cppo_lab import schema
from cppo_lab.cores.verl.checkpoints import score_name, validation_metrics
from cppo_lab.spec import VerlRun
from cppo_lab.sweep.compose import compose

pytestmark = pytest.mark.verl

BENCHMARKS = ("aime24", "aime25")


def of_verl(grades: dict[str, list[list[float]]], samples: int, **extra: Any) -> dict[str, float]:
    """What verl's own code makes of grades: benchmark -> problem -> its responses' grades."""
    sources, uids, acc, expected = [], [], [], {}
    for source, problems in grades.items():
        for number, of_problem in enumerate(problems):
            uid = f"{source}-{number}"
            expected[(source, uid)] = samples
            for grade in of_problem:
                sources.append(source)
                uids.append(uid)
                acc.append(grade)
    infos = {"reward": list(acc), "acc": acc} | {key: [values] * len(acc) for key, values in extra.items()}
    found: dict[str, float] = PPOTrainer._val_metrics_update(
        None, sources, uids, infos, [2] * len(acc), expected_acc_counts=expected
    )
    return found


def test_avg_at_k_and_the_mean_over_benchmarks() -> None:
    grades = {"aime24": [[1.0, 0.0, 1.0, 1.0], [0.0] * 4], "aime25": [[1.0] * 4]}
    found = validation_metrics(of_verl(grades, 4, answer_rule=0.25), BENCHMARKS, 4)
    assert found == {
        "val/aime24/avg_at_4": 3 / 8,
        "val/aime25/avg_at_4": 1.0,
        "val/mean/avg_at_4": (3 / 8 + 1) / 2,  # of the benchmarks, however many problems each has
        "val/aime24/answer_rule_at_4": 0.25,
        "val/aime25/answer_rule_at_4": 0.25,
    }
    assert all(schema.is_known_metric(name) for name in found)
    assert all(schema.parse_validation_metric(name) for name in found if "answer" not in name)


def test_the_paper_has_sixteen_samples() -> None:
    grades = {name: [[1.0] * 4 + [0.0] * 12] * 3 for name in BENCHMARKS}
    found = validation_metrics(of_verl(grades, 16), BENCHMARKS, 16)
    assert found == {f"val/{name}/avg_at_16": 0.25 for name in (*BENCHMARKS, "mean")}


def test_one_sample_is_avg_at_1() -> None:
    found = validation_metrics(of_verl({name: [[1.0], [0.0]] for name in BENCHMARKS}, 1), BENCHMARKS, 1)
    assert found["val/mean/avg_at_1"] == 0.5


def test_responses_that_failed_count_as_wrong() -> None:
    grades = {"aime24": [[1.0, 1.0], [1.0, 1.0, 1.0, 1.0]], "aime25": [[1.0] * 4]}
    found = validation_metrics(of_verl(grades, 4), BENCHMARKS, 4)
    assert found["val/aime24/avg_at_4"] == (2 / 4 + 4 / 4) / 2


def test_a_benchmark_without_a_score_is_an_error() -> None:
    grades = {"aime24": [[1.0] * 4]}
    with pytest.raises(ValueError, match=r"no val/aime25/avg_at_4 among .*val-core/aime24/acc/mean@4"):
        validation_metrics(of_verl(grades, 4), BENCHMARKS, 4)


def test_another_number_of_samples_is_an_error() -> None:
    grades = {name: [[1.0] * 4] for name in BENCHMARKS}
    with pytest.raises(ValueError, match="no val/aime24/avg_at_16, val/aime25/avg_at_16"):
        validation_metrics(of_verl(grades, 4), BENCHMARKS, 16)


def test_foreign_sources_are_left_out() -> None:
    grades = {name: [[1.0] * 4] for name in (*BENCHMARKS, "amc")}
    assert "val/amc/avg_at_4" not in validation_metrics(of_verl(grades, 4), BENCHMARKS, 4)


def test_the_name_that_runs_are_judged_by_is_among_them() -> None:
    run = compose(["core=verl", "model=tiny_qwen3"]).run
    assert isinstance(run, VerlRun)
    found = of_verl({name: [[1.0] * 4] for name in run.data.benchmarks}, run.validation.samples)
    assert score_name(run) in validation_metrics(found, run.data.benchmarks, run.validation.samples)
