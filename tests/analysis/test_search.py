"""A search read from a store and what its trials say: the file checked, selection against a known surface, noise."""

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.analysis import artifacts
from cppo_lab.analysis.fields import Fields
from cppo_lab.analysis.reader import read_runs
from cppo_lab.analysis.search import (
    SearchResult,
    Space,
    by_importance,
    complete_trials,
    counts,
    front_of,
    mean_curves,
    neighbours,
    objective_value,
    pair_points,
    pareto_front,
    ranking,
    read_seed_values,
    separation,
    slice_points,
)
from cppo_lab.analysis.search_file import parse_search, read_search
from cppo_lab.errors import UserError
from cppo_lab.reports.search import certainty
from tests.analysis.made_search import (
    PEAK,
    SCATTER,
    copied,
    log_search,
    log_training,
    made_search,
    surface,
    two_objectives,
)

STUDY = "tune_made-mini_base"


def parsed(content: dict[str, Any]) -> SearchResult:
    return parse_search(
        Fields.parse(json.dumps(content), "search.json of MLflow run x", "write it anew"), "x"
    )


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path) -> str:
    return copied(empty_store, tmp_path)


def test_a_search_is_read_from_its_newest_run(uri: str) -> None:
    log_search(uri, made_search(trials=3))
    newest = log_search(uri, made_search())
    result = read_search(uri, "cppo-mini", STUDY)
    assert result.mlflow_id == newest
    assert (result.name, result.model, result.seeds, result.objectives) == (
        "tune_made",
        "mini_base",
        (0, 1),
        ("final_score",),
    )
    assert result.parameters == (
        Space("rule.delta_b", 0.002, 0.05, True, None, ()),
        Space("rule.w_min", 0.4, 1.0, False, 0.05, ()),
    )
    assert counts(result) == {"complete": 20, "pruned": 3, "failed": 1}
    assert result.trial(11).reason == "out of memory"
    assert result.trial(6).values is None
    assert result.trial(6).curve[-1][0] == 20


def test_the_best_is_the_trial_nearest_the_peak_of_the_surface() -> None:
    result = parsed(made_search())
    ranked = ranking(result)
    assert (ranked[0].number,) == result.best
    assert ranked[0].params["rule.w_min"] == PEAK["rule.w_min"]
    assert [trial.values for trial in ranked] == sorted((trial.values for trial in ranked), reverse=True)
    for point in pair_points(result, "rule.delta_b", "rule.w_min"):
        assert point.value == pytest.approx(surface(float(point.x), float(point.y)))  # type: ignore[arg-type]
    one = slice_points(result, "rule.w_min")[3]
    assert (one.number, one.x, one.value) == (
        3,
        result.trial(3).params["rule.w_min"],
        result.trial(3).values[0],
    )  # type: ignore[index]
    assert [space.name for space in by_importance(result)] == ["rule.delta_b", "rule.w_min"]


def test_neighbours_are_near_on_the_declared_scales() -> None:
    result = parsed(made_search())
    best = ranking(result)[0]
    near = neighbours(result, best)

    def distance(number: int) -> float:
        params = result.trial(number).params
        x = math.log(float(params["rule.delta_b"]) / float(best.params["rule.delta_b"])) / math.log(25)  # type: ignore[arg-type]
        y = (float(params["rule.w_min"]) - float(best.params["rule.w_min"])) / 0.6  # type: ignore[arg-type]
        return math.hypot(x, y)

    others = sorted((t.number for t in complete_trials(result) if t.number != best.number), key=distance)
    assert [trial.number for trial in near] == others[:3]


def test_the_scale_of_a_space() -> None:
    log, plain = parsed(made_search()).parameters
    assert log.scaled(0.01) == pytest.approx(0.5)  # 0.002 and 0.05 are a factor of five away
    assert plain.scaled(0.55) == pytest.approx(0.25)
    choice = Space("rule.delta", 0.0, 0.0, False, None, (0.02, "off", True, 1))
    assert [choice.scaled(value) for value in choice.choices] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert choice.holds(1) and choice.holds(True) and not choice.holds(0.05)
    assert not plain.holds(True) and not plain.holds("0.5") and not plain.holds(1.01)


@pytest.mark.parametrize(
    ("values", "front"),
    [
        ([], ()),
        ([(1.0,), (3.0,), (3.0,), (2.0,)], (1, 2)),
        ([(1, 5), (2, 4), (2, 3), (0, 5), (3, 1)], (0, 1, 4)),
        ([(1, 1, 1), (1, 1, 2), (2, 0, 0), (1, 1, 2)], (1, 2, 3)),
    ],
)
def test_the_pareto_front(values: list[tuple[float, ...]], front: tuple[int, ...]) -> None:
    assert pareto_front(values) == front


def test_the_pareto_front_is_that_of_optuna() -> None:
    optuna = pytest.importorskip("optuna")
    result = parsed(two_objectives())
    study = optuna.create_study(directions=["maximize", "maximize"])
    for trial in complete_trials(result):
        study.add_trial(
            optuna.trial.create_trial(values=list(trial.values or ()), user_attrs={"n": trial.number})
        )
    assert set(front_of(result)) == {trial.user_attrs["n"] for trial in study.best_trials}
    assert 1 < len(front_of(result)) < len(complete_trials(result))


def edit(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets one value, named by its path."""

    def change(content: dict[str, Any]) -> None:
        *above, last = path.split("/")
        for key in above:
            content = content[int(key)] if isinstance(content, list) else content[key]
        if value is None:
            del content[last]
        else:
            content[int(last) if isinstance(content, list) else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit("format", 2), "has format 2, not 1: it was written by another version"),
        (edit("question", None), "lacks 'question'"),
        (edit("core", "own"), "core='own', which is no core"),
        (edit("objectives", ["speed"]), r"objectives\[0\]='speed', which is no objective \(final_score"),
        (edit("objectives", []), "no list of different values as 'objectives'"),
        (edit("seeds", [0, 0]), "no list of different values as 'seeds'"),
        (edit("parameters", {}), "has no parameter"),
        (edit("parameters/rule.w_min", [1]), "'rule.w_min', is not a JSON object"),
        (edit("parameters/<b>", {"choices": [1]}), "'<b>', which is no configuration key"),
        (edit("parameters/rule.delta_b/low", 0), "from 0 to 0.05 on a logarithmic scale"),
        (edit("parameters/rule.w_min/low", 2), "from 2 to 1"),
        (edit("parameters/rule.w_min", {"choices": []}), "no list of choices"),
        (edit("trials/3/state", "lost"), r"trial 3, has state='lost', which is no state"),
        (
            edit("trials/3/params/rule.w_min", 7),
            r"trial 3, has rule.w_min=7, which the search cannot have chosen",
        ),
        (edit("trials/3/params/rule.delta", 0.1), "rule.delta=0.1, which the search cannot have chosen"),
        (edit("trials/3/params", {}), "is complete and has 0 of 2 parameters"),
        (edit("trials/3/values/0", float("nan")), r"values\[0\]=nan, which is no fraction"),
        (edit("trials/3/values/0", 61.0), r"values\[0\]=61.0, which is no fraction"),
        (edit("trials/3/values", [0.1, 0.2]), "is complete and has 2 values for 1 objectives"),
        (edit("trials/3/curve/1", [10, float("inf")]), r"curve\[1\]=\[10, inf\], which is no pair"),
        (edit("trials/3/curve/1", [10, 10**400]), r"which is no pair"),
        (edit("trials/3/curve/1", [-10, 0.1]), "which is no pair"),
        (edit("trials/3/curve/0", [30, 0.1]), "a curve whose steps go back"),
        (edit("trials/3/curve", [[130, 0.1]]), "beyond 2 seeds of 60 steps"),
        (edit("trials/3/number", 4), "two trials of one number"),
        (edit("trials/3", "x"), r"trials\[3\]='x', which is no trial"),
        (edit("importances", {"stability": {}}), "importances of other objectives"),
        (edit("importances/final_score", {"rule.delta": 1.0}), "names other parameters"),
        (edit("best", [3]), r"has best=\[3\], but by the values of its trials that is \[22\]"),
        (edit("best", []), r"has best=\[\], but"),
    ],
)
def test_what_is_not_as_it_should_be_is_named(change: Callable[[dict[str, Any]], None], message: str) -> None:
    content = made_search()
    change(content)
    with pytest.raises(UserError, match=rf"search.json of MLflow run x.*{message}.*: write it anew") as error:
        parsed(content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"format": ' + "9" * 5000 + "}"])
def test_what_is_no_json_is_named(uri: str, text: str) -> None:
    log_search(uri, text)
    with pytest.raises(UserError, match=r"search.json of MLflow run \w+ is not (a )?JSON.*cppo tune"):
        read_search(uri, "cppo-mini", STUDY)


def test_a_search_that_is_not_there_names_those_that_are(uri: str) -> None:
    log_search(uri, made_search(study="other"), "other")
    with pytest.raises(UserError, match=r"no search 'tune_made-mini_base': it has other; run `cppo tune"):
        read_search(uri, "cppo-mini", STUDY)
    with pytest.raises(UserError, match="experiment 'cppo-verl' does not exist"):
        read_search(uri, "cppo-verl", STUDY)


def test_a_search_without_its_file(uri: str) -> None:
    log_search(uri, made_search(study="other"), "other")
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("cppo-mini").experiment_id
    client.create_run(experiment, tags={schema.TAG_SEARCH: STUDY})
    with pytest.raises(UserError, match=r"no search.json yet: it is written when the first trial ends"):
        read_search(uri, "cppo-mini", STUDY)


def test_the_file_of_another_study_and_a_large_one(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log_search(uri, made_search(study="other"), STUDY)
    with pytest.raises(UserError, match="is of study 'other'"):
        read_search(uri, "cppo-mini", STUDY)
    monkeypatch.setattr(artifacts, "LARGEST_SEARCH", 10)
    with pytest.raises(UserError, match="more than the 10 allowed"):
        read_search(uri, "cppo-mini", STUDY)


def test_text_becomes_one_line_that_a_page_can_hold() -> None:
    content = made_search(title="two\nlines\x00 \ud800")
    assert parsed(content).title == "two lines\ufffd \ufffd"


def test_seeds_scatter_as_they_were_made_to(uri: str) -> None:
    content = made_search()
    log_search(uri, content)
    log_training(uri, content)
    result = read_search(uri, "cppo-mini", STUDY)
    (seeds,) = read_seed_values(uri, "cppo-mini", result)
    assert seeds.differ == ()
    assert len(seeds.values) == 20
    value = result.trial(3).values[0]  # type: ignore[index]
    assert seeds.values[3] == pytest.approx((value - SCATTER, value + SCATTER))
    assert seeds.std(3) == pytest.approx(SCATTER * math.sqrt(2))
    assert seeds.std(6) is None
    apart = separation(result, [seeds])
    assert apart is not None
    assert apart.scatter == pytest.approx(SCATTER * math.sqrt(2))
    assert apart.error == pytest.approx(SCATTER * math.sqrt(2))
    values = sorted((trial.values[0] for trial in complete_trials(result)), reverse=True)  # type: ignore[index]
    assert apart.second == pytest.approx(values[0] - values[1])
    assert len(apart.close) == sum(values[0] - value <= 2 * apart.error for value in values[1:]) > 0


@pytest.mark.parametrize("drawn", [False, True])
def test_trials_whose_seeds_share_their_start_are_compared_by_seed(uri: str, drawn: bool) -> None:
    """What a seed does to all trials says nothing about the differences between them."""
    content = made_search(trials=5)
    log_search(uri, content)
    log_training(uri, content)
    client, shift = MlflowClient(uri), {0: 0.0, 1: 0.05}
    for run in client.search_runs([client.get_experiment_by_name("cppo-mini").experiment_id]):
        if drawn and schema.TAG_RUN_ID in run.data.tags:
            client.set_tag(run.info.run_id, schema.TAG_SEED_FIXES_START, "true")
    result = read_search(uri, "cppo-mini", STUDY)
    (seeds,) = read_seed_values(uri, "cppo-mini", result)
    assert seeds.paired is drawn
    rng = np.random.default_rng(0)
    values = {
        trial: tuple(value + shift[place] + rng.normal(0, 0.001) for place, value in enumerate(each))
        for trial, each in seeds.values.items()
    }
    apart = separation(result, [replace(seeds, values=values)])
    assert apart is not None and apart.trials == 5 and apart.paired is drawn
    ours, theirs = np.array([*values.values()]).T
    # Two seeds: their difference has twice the variance of one trial, about the mean difference if they are paired.
    about = np.mean((theirs - ours - drawn * (theirs - ours).mean()) ** 2) * (5 / (5 - drawn)) / 2
    assert apart.scatter == pytest.approx(about**0.5)
    assert (apart.scatter < 0.002) is drawn
    said = " ".join(certainty(result, [replace(seeds, values=values)]))
    assert ("compared with the others of its seed, which share its start, scatters by" in said) is drawn


def test_a_value_that_its_runs_do_not_have_is_found(uri: str) -> None:
    content = made_search(trials=6)
    log_search(uri, content)
    lower = json.loads(json.dumps(content))
    lower["trials"][3]["values"][0] -= 0.01
    lower["trials"][4]["run_ids"] = ["run-4-0"]
    log_training(uri, lower)
    result = read_search(uri, "cppo-mini", STUDY)
    (seeds,) = read_seed_values(uri, "cppo-mini", result)
    assert seeds.differ == (3,)
    assert 4 not in seeds.values


def test_one_seed_has_no_scatter(uri: str) -> None:
    content = made_search(seeds=(0,))
    log_search(uri, content)
    result = read_search(uri, "cppo-mini", STUDY)
    assert read_seed_values(uri, "cppo-mini", result) == ()
    assert separation(result, ()) is None


def test_a_collapsed_run_counts_with_its_last_score(uri: str) -> None:
    log_search(uri, made_search())
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("cppo-mini").experiment_id
    run = client.create_run(experiment, tags={schema.TAG_RUN_ID: "fallen"}).info.run_id
    for step, score in ((0, 0.1), (10, 0.5), (20, 0.02), (70, 0.9)):
        client.log_metric(run, schema.validation_metric(schema.MEAN, 8), score, step=step)
    curves = mean_curves(read_runs(uri, "cppo-mini", {"fallen", "absent"}), 60)
    assert curves == {"fallen": (0.1, 0.5, 0.02, 0.02, 0.02, 0.02, 0.02)}
    client.log_param(run, "validation.every", "20")
    curves = mean_curves(read_runs(uri, "cppo-mini", {"fallen"}), 60)
    assert curves == {"fallen": (0.1, 0.5, 0.02, 0.02, 0.02)}


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        ("final_score", statistics.fmean((0.6, 0.3, 0.4))),
        ("best_score", 0.6),
        ("mean_score", statistics.fmean((0.1, 0.5, 0.6, 0.3, 0.4))),
        ("stability", 1 - 0.3),
    ],
)
def test_objectives(objective: str, value: float) -> None:
    assert objective_value(objective, (0.1, 0.5, 0.6, 0.3, 0.4)) == pytest.approx(value)


def test_another_objective_is_refused() -> None:
    with pytest.raises(ValueError, match="speed"):
        objective_value("speed", (0.1,))
