"""A search read from a store and what its trials say: the file checked, selection against a known surface, noise."""

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from optuna.distributions import FloatDistribution

from cppo_lab import schema
from cppo_lab.analysis.reader import read_runs
from cppo_lab.analysis.search import best_trial_lead, mean_curves, read_search, read_seed_values
from cppo_lab.reports.search import certainty
from tests.analysis.made_search import log_search, log_training, made_search, parsed
from tests.analysis.made_sweeps import MadeRun, experiment_in, write_runs
from tests.conftest import user_error

STUDY = "tune_made-mini_base"
OF_ANOTHER = "trial 3 is of another search"


def test_a_search_is_read_from_its_newest_run(uri: str) -> None:
    log_search(uri, made_search(trials=3))
    newest = log_search(uri, made_search())
    result = read_search(uri, "cppo-mini", STUDY)
    assert (result.mlflow_id, result.seeds, result.objectives) == (newest, (0, 1), ("final_score",))
    assert result.spaces == {
        "rule.delta_b": FloatDistribution(0.002, 0.05, log=True),
        "rule.w_min": FloatDistribution(0.4, 1.0, step=0.05),
    }
    assert Counter(trial.state.name for trial in result.trials) == {"COMPLETE": 20, "PRUNED": 3, "FAIL": 1}
    failed, pruned = result.trials[11], result.trials[6]
    assert failed.user_attrs["reason"] == "out of memory"
    assert (pruned.values, pruned.last_step) == (None, 20)


def test_trials_that_have_not_begun_are_left_out() -> None:
    content = made_search()
    del content["trials"][5:9]
    content["trials"].reverse()
    assert [trial.number for trial in parsed(content).trials] == [*range(5), *range(9, 24)]


def test_the_front_comes_first() -> None:
    content = made_search(trials=4, seeds=(0,), objectives=["final_score", "stability"], best=[3, 1])
    for number, values in enumerate(([0.5, 0.3], [0.4, 0.9], [0.3, 0.8], [0.5, 0.4])):
        content["trials"][number]["values"] = values
    result = parsed(content)
    assert {*result.front} == {1, 3} == {trial.number for trial in result.ranking[:2]}


@pytest.mark.parametrize(
    "path, value, message",
    [
        ("format", 2, "has format=2"),
        ("core", "own", "core='own'"),
        ("objectives", ["speed"], r"objectives=\('speed',\)"),
        ("seeds", [], "has seeds"),
        ("parameters/rule.w_min/low", 2, r"has parameters\.rule\.w_min"),
        ("parameters/rule.w_min", {"choices": [[1], 2]}, r"has parameters\.rule\.w_min"),
        ("trials/3/state", "lost", r"trials\.3\.state='lost'"),
        ("trials/3/params/rule.w_min", 7, OF_ANOTHER),
        ("trials/3/params/rule.w_min", 10**400, OF_ANOTHER),
        ("trials/3/params/rule.delta", 0.1, OF_ANOTHER),
        ("trials/3/values", [0.1, 0.2], OF_ANOTHER),
        ("trials/3/values/0", math.nan, r"trials\.3\.values"),
        ("trials/3/curve/1", [-10, 0.1], r"trials\.3\.curve\.1\.0=-10"),
        ("trials/3/number", 4, "two trials have number 4"),
        ("trials/3/number", 10**9, r"trials\.3\.number=1000000000"),
    ],
)
def test_what_is_not_as_it_should_be_is_named(path: str, value: Any, message: str) -> None:
    content = part = made_search()
    *above, last = (int(key) if key.isdigit() else key for key in path.split("/"))
    for key in above:
        part = part[key]
    part[last] = value
    with user_error(rf"search.json of MLflow run x.*{message}.*: `cppo tune` rewrites it"):
        parsed(content)


def test_what_is_no_search_is_named(uri: str) -> None:
    for text in ("{", "[]", "[" * 100_000, '{"format": ' + "9" * 5000 + "}"):
        mlflow_id = log_search(uri, text)
        with user_error(rf"search.json of MLflow run {mlflow_id} (has|is) .*cppo tune"):
            read_search(uri, "cppo-mini", STUDY)


def test_a_search_that_is_not_there_names_those_that_are(uri: str) -> None:
    log_search(uri, made_search(study="other"), "other")
    with user_error(r"no search 'tune_made-mini_base': it has other; run `cppo tune"):
        read_search(uri, "cppo-mini", STUDY)
    with user_error("experiment 'cppo-verl' does not exist"):
        read_search(uri, "cppo-verl", STUDY)
    MlflowClient(uri).create_run(experiment_in(uri, "cppo-mini"), tags={schema.TAG_SEARCH: STUDY})
    with user_error(r"no search.json yet: it is written when the first trial ends"):
        read_search(uri, "cppo-mini", STUDY)


def test_the_file_of_another_study_and_a_large_one(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log_search(uri, made_search(study="other"), STUDY)
    with user_error("is of study 'other'"):
        read_search(uri, "cppo-mini", STUDY)
    monkeypatch.setattr("cppo_lab.analysis.search.LARGEST_SEARCH", 10)
    with user_error("more than the 10 allowed"):
        read_search(uri, "cppo-mini", STUDY)


def test_text_becomes_one_line_that_a_page_can_hold_and_one_seed_has_no_scatter(uri: str) -> None:
    result = parsed(made_search(seeds=(0,), title="two\nlines\x00"))
    assert result.title == "two lines\ufffd"
    assert read_seed_values(uri, "cppo-mini", result) == ()
    assert best_trial_lead(result, ()) is None


@pytest.mark.parametrize("drawn", [False, True])
def test_trials_whose_seeds_share_their_start_are_compared_by_seed(uri: str, drawn: bool) -> None:
    """What a seed does to all trials says nothing about the differences between them."""
    content = made_search(trials=5)
    log_search(uri, content)
    log_training(uri, content, drawn)
    result = read_search(uri, "cppo-mini", STUDY)
    (seeds,) = read_seed_values(uri, "cppo-mini", result)
    assert seeds.paired is drawn
    moved = np.random.default_rng(0).normal([*seeds.values.values()], 0.001)
    moved[:, 1] += 0.05
    seeds = replace(seeds, values=dict(zip(seeds.values, moved.tolist(), strict=True)))
    apart = best_trial_lead(result, [seeds])
    assert apart is not None and apart.trials == 5 and apart.paired is drawn
    # Two seeds: their difference has twice the variance of one trial, about the mean difference if they are paired.
    lead = moved[:, 1] - moved[:, 0]
    about = np.mean((lead - drawn * lead.mean()) ** 2) * (5 / (5 - drawn)) / 2
    assert apart.scatter == pytest.approx(about**0.5)
    assert (apart.scatter < 0.002) is drawn
    said = " ".join(certainty(result, [seeds]))
    assert ("compared with the others of its seed, which share its start, scatters by" in said) is drawn


def test_a_value_that_its_runs_do_not_have_is_said(uri: str) -> None:
    content = made_search(trials=6)
    lower = json.loads(json.dumps(content))
    content["trials"][5]["run_ids"] += content["trials"][2]["run_ids"]  # more than it has seeds
    log_search(uri, content)
    lower["trials"][3]["values"][0] -= 0.01
    lower["trials"][4]["run_ids"] = ["run-4-0"]
    log_training(uri, lower)
    result = read_search(uri, "cppo-mini", STUDY)
    (seeds,) = read_seed_values(uri, "cppo-mini", result)
    assert seeds.differ == (3,)
    assert {*seeds.values} == {0, 1, 2, 3}
    assert best_trial_lead(result, [seeds]).trials == 4
    said = " ".join(certainty(result, [seeds]))
    assert "Trial 3: the final score in the search's file is not that of the validation curves" in said
    assert "The training runs of 2 complete trials are not all in the store" in said


def test_a_collapsed_run_counts_with_its_last_score(uri: str) -> None:
    logged = {schema.validation_metric(schema.MEAN, 8): {0: 0.1, 10: 0.5, 20: 0.02, 70: 0.9}}
    for name, every in (("fallen", ""), ("rarely", "20"), ("odd", "9" * 5000)):
        write_runs(uri, [MadeRun("cppo", run_id=name, logged=logged)], params={"validation.every": every})
    curves = mean_curves(read_runs(uri, "cppo-mini", {"fallen", "rarely", "odd", "absent"}), 60)
    fallen, rarely = [0.1, 0.5, *[0.02] * 5], [0.1, 0.5, *[0.02] * 3]
    assert curves == {"fallen": fallen, "rarely": rarely, "odd": fallen}
