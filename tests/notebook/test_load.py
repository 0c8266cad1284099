"""`cppo_lab.load`: frames of a store; the paper's curves, without MLflow."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cppo_lab
from cppo_lab import schema
from cppo_lab.analysis import reader
from cppo_lab.errors import UserError
from cppo_lab.notebook import override_text
from tests.answers import made

SCORE = schema.validation_metric("mean", 16)


def in_a_process(code: str, folder: Path) -> list[str]:
    """What a fresh interpreter prints of the modules that it has after `code`."""
    code += "\nimport sys, json\nprint(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_importing_the_package_imports_nothing_else(tmp_path: Path) -> None:
    before = in_a_process("", tmp_path)
    added = set(in_a_process("import cppo_lab", tmp_path)) - set(before) - {"cppo_lab"}
    assert added <= sys.stdlib_module_names
    names = in_a_process(
        "import cppo_lab, sys\nassert not any(n.startswith('cppo_lab.') for n in sys.modules)", tmp_path
    )
    assert "numpy" not in names


def test_the_paper_is_read_without_mlflow(tmp_path: Path) -> None:
    code = (
        "import cppo_lab\ns = cppo_lab.load('main', source='paper')\nassert len(s.history()) and len(s.runs)"
    )
    names = in_a_process(code, tmp_path)
    assert "pandas" in names
    assert not {"mlflow", "sqlalchemy", "torch", "matplotlib"} & set(names)


def expected_score(rule: str, seed: int, step: int) -> float:
    """`plausible.score`, from its description."""
    return {"dppo": 0.65, "cppo": 0.8}[rule] * (1 - math.exp(-step / 12)) + 0.01 * seed


def test_runs_have_a_row_each_and_their_scores(in_trained: Path) -> None:
    runs = cppo_lab.load("quickstart").runs
    assert list(zip(runs["variant"], runs["seed"], runs["state"], strict=True)) == [
        ("grpo", 0, "failed"),
        ("grpo", 1, "missing"),
        ("dppo", 0, "done"),
        ("dppo", 1, "missing"),
        ("cppo", 0, "done"),
        ("cppo", 1, "done"),
    ]
    assert str(runs["seed"].dtype) == "Int64"
    assert "out of memory" in runs["reason"][0]
    assert runs["best"].isna().tolist() == [True, True, False, True, False, False]
    done = runs[runs["state"] == "done"]
    for row in done.itertuples():
        steps = range(0, 31, 4)  # what `plausible.train` logs behind t_stop does not count
        assert row.best == pytest.approx(expected_score(row.rule, row.seed, 28))
        assert (row.best_step, row.last_step, row.t_stop) == (28, 28, 30)
        assert row.base == pytest.approx(0.01 * row.seed)
        late = [expected_score(row.rule, row.seed, step) for step in steps if step > 0.7 * row.t_stop]
        assert math.isnan(row.final_mean) if not late else row.final_mean == pytest.approx(np.mean(late))
    assert (done["end"] >= done["start"]).all()


def test_the_final_mean_is_of_the_last_three_tenths_of_the_window() -> None:
    study = cppo_lab.load("main", source="paper")
    curves = study.history(SCORE)
    for row in study.runs.itertuples():
        late = [
            point.value
            for point in curves[curves["run_id"] == row.run_id].itertuples()
            if row.t_stop - 0.3 * row.t_stop < point.step <= row.t_stop
        ]
        if late:
            assert row.final_mean == pytest.approx(math.fsum(late) / len(late))
        else:  # it collapsed before
            assert (row.variant, row.state) == ("cispo", "collapsed")
            assert math.isnan(row.final_mean)


def test_axes_have_columns_of_their_values(in_trained: Path) -> None:
    study = cppo_lab.load("quickstart", variant="cppo", seed=[0, 1], **{"rule.w_min": np.array([0.6, 0.8])})
    assert study.runs["rule.w_min"].tolist() == [0.6, 0.8, 0.6, 0.8]
    assert study.runs["seed"].tolist() == [0, 0, 1, 1]
    assert study.runs["variant"].tolist()[0] == "cppo w_min=0.6"
    assert set(study.runs["state"]) == {"done"}
    chosen = cppo_lab.load("quickstart", "rule.w_min=0.6,0.8", variant="cppo", seed=1).runs
    assert chosen["run_id"].tolist() == study.runs["run_id"].tolist()[2:]


def test_history_is_long_and_chosen_by_name(in_trained: Path) -> None:
    study = cppo_lab.load("quickstart")
    assert study.metrics == tuple(sorted(study.metrics))
    assert SCORE in study.metrics
    history = study.history(SCORE, runs=study.runs[study.runs["variant"] == "cppo"])
    assert list(history.columns) == ["run_id", "metric", "step", "value"]
    assert set(history["metric"]) == {SCORE}
    first = study.runs["run_id"][4]
    own = history[history["run_id"] == first]
    assert own["step"].tolist() == list(range(0, 41, 4))
    np.testing.assert_allclose(own["value"], [expected_score("cppo", 0, step) for step in own["step"]])
    assert set(study.history("train/*")["metric"]) == {
        name for name in study.metrics if name.startswith("train/")
    }
    assert len(study.history()) == len(study.history(["*"]))
    assert study.history(runs=first)["run_id"].unique().tolist() == [first]
    assert len(study.history(runs=study.runs["run_id"][1])) == 0  # nobody has trained it


def test_outcomes_have_a_row_for_each_problem_and_validation(in_trained: Path) -> None:
    study = cppo_lab.load("quickstart")
    rows = study.outcomes()
    ids = study.runs.loc[study.runs["variant"] == "cppo", "run_id"].tolist()
    assert set(rows["run_id"]) == set(ids)
    for seed, run_id in enumerate(ids):
        kept = made.outcomes(seed=seed)
        own = rows[rows["run_id"] == run_id].set_index(["step", "problem"])
        assert len(own) == kept.right.size
        for v, step in enumerate(kept.steps):
            for p, problem in enumerate(kept.problems):
                row = own.loc[(step, problem)]
                assert (row["right"], row["cut_off"], row["samples"]) == (
                    kept.right[v, p],
                    kept.cut_off[v, p],
                    16,
                )
                assert row["length"] == pytest.approx(float(kept.length[v, p]))
                assert row["benchmark"] == kept.benchmarks[kept.benchmark_of[p]]
    assert len(study.outcomes(runs=ids[0])) * 2 == len(rows)
    none = study.outcomes(runs=study.runs["run_id"][2])
    assert (len(none), list(none.columns)) == (0, list(rows.columns))


def test_points_are_as_they_were_logged(tmp_path: Path) -> None:
    """NaN, infinities and a step that was logged twice, in a store that MLflow wrote."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(uri)
    run_id = cppo_lab.load("main", source="paper").runs["run_id"][0]  # any id
    run = client.create_run(client.create_experiment("x"), tags={schema.TAG_RUN_ID: run_id}).info.run_id
    values = [(0, math.nan, 1), (1, math.inf, 2), (2, -math.inf, 3), (3, 0.25, 4), (3, 0.5, 5), (4, 1.0, 6)]
    client.log_batch(run, metrics=[Metric("a", value, time, step) for step, value, time in values])
    points = reader.read_points(uri, reader.find_runs(uri, "x", [run_id]))
    assert points["step"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(points["value"], [math.nan, math.inf, -math.inf, 0.5, 1.0])


def test_the_paper_s_study_has_every_sweep() -> None:
    whole = cppo_lab.load("study", source="paper")
    assert {"main", "kl_vs_tv", "mask_vs_soft"} <= set(whole.runs["sweep"])
    assert whole.runs["run_id"].nunique() == 37
    assert len(cppo_lab.load("kl_vs_tv", source="paper").runs) == (whole.runs["sweep"] == "kl_vs_tv").sum()
    assert whole.history("val/mean/*")["run_id"].nunique() == 37
    with pytest.raises(UserError, match=r"no outcomes.*source='runs'"):
        whole.outcomes()


@pytest.mark.parametrize(
    ("arguments", "values", "message"),
    [
        (("quickstat",), {}, "did you mean 'quickstart'"),
        (("quickstart", "rule.wmin=1"), {}, "did you mean 'rule.w_min'"),
        (("quickstart",), {"model": "mini_bas"}, "mini_base"),
        (("quickstart",), {"source": "papr"}, "unknown source 'papr': did you mean 'paper'"),
        (("quickstart",), {"uri": Path("nowhere.db")}, r"nowhere\.db does not exist"),
        (("quickstart",), {"uri": "nowhere.db"}, r"nowhere\.db does not exist"),
        (("quickstart",), {"uri": "folder"}, "'folder' is not supported: use sqlite:///"),
        (
            ("quickstart",),
            {"core": "exact"},
            "has none of the 6 runs of quickstart: train them with `cppo launch",
        ),
        (("tune_cppo",), {}, "tune_cppo is a search"),
        (("main", "seed=0"), {"source": "paper"}, "take no overrides"),
        (("main",), {"source": "paper", "uri": "x"}, "from no store"),
        (("tune_cppo",), {"source": "paper"}, "unknown sweep of the paper's curves 'tune_cppo'"),
    ],
)
def test_mistakes_are_named(
    in_trained: Path, arguments: tuple[str, ...], values: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        cppo_lab.load(*arguments, **values)  # type: ignore[arg-type]
    assert not (in_trained / "nowhere.db").exists()


def test_unknown_metrics_and_runs_are_named(in_trained: Path) -> None:
    study = cppo_lab.load("quickstart", variant="cppo")
    with pytest.raises(UserError, match="unknown metric 'train/rewart': did you mean 'train/reward'"):
        study.history("train/rewart")
    with pytest.raises(UserError, match="run 'abc' is not one of quickstart"):
        study.history(runs=["abc"])
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = cppo_lab.lod  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("seed", [0, 1], "seed=0,1"),
        ("seed", range(2), "seed=0,1"),
        ("rule.delta", 0.1, "rule.delta=0.1"),
        ("rule.delta_b_cap", np.float64(0.5), "rule.delta_b_cap=0.5"),
        ("model", ["a-b", "c"], "model=a-b,c"),
        ("training.note", "two words", "training.note='two words'"),
        ("x", None, "x=null"),
        ("x", True, "x=true"),
    ],
)
def test_keywords_are_overrides(key: str, value: object, text: str) -> None:
    assert override_text(key, value) == text


def test_it_says_what_it_is(in_trained: Path) -> None:
    assert repr(cppo_lab.load("quickstart")).startswith(
        "<Results of quickstart in experiment cppo-mini of sqlite:///"
    )
    assert "3 done, 1 failed, 2 missing>" in repr(cppo_lab.load("quickstart"))
