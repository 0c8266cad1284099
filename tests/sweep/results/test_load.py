"""`cppo_lab.load`: frames of a store; the paper's curves, without MLflow."""

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import cppo_lab
from cppo_lab import schema
from cppo_lab.sweep.results import override_text
from tests.answers import made
from tests.conftest import python, user_error

SCORE = schema.validation_metric("mean", 16)


def modules_after(code: str, folder: Path) -> set[str]:
    """The packages that a fresh interpreter has imported for `code`."""
    code += "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    return set(python("-c", code, cwd=folder).stdout.split())


def test_importing_the_package_imports_nothing_else_and_the_paper_is_read_without_mlflow(
    tmp_path: Path,
) -> None:
    added = modules_after("import cppo_lab", tmp_path) - modules_after("", tmp_path) - {"cppo_lab"}
    assert added <= sys.stdlib_module_names
    code = (
        "import cppo_lab\ns = cppo_lab.load('main', source='paper')\nassert len(s.history()) and len(s.runs)"
    )
    names = modules_after(code, tmp_path)
    assert "pandas" in names and not {"mlflow", "sqlalchemy", "torch", "matplotlib"} & names


def test_without_pandas_the_error_has_the_remedy(tmp_path: Path) -> None:
    code = "import sys\nsys.modules['pandas'] = None\nimport cppo_lab\ncppo_lab.load"
    done = python("-c", code, cwd=tmp_path, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError") and "cppo_lab.load needs" in last
    assert "pip install" in last and "pandas" in last


def expected_score(rule: str, seed: int, step: int) -> float:
    """`plausible.score`, from its description."""
    return {"dppo": 0.65, "cppo": 0.8}[rule] * (1 - math.exp(-step / 12)) + 0.01 * seed


def test_runs_have_a_row_each_and_their_scores(in_trained: Path) -> None:
    study = cppo_lab.load("quickstart")
    assert repr(study).startswith("<Results of quickstart in experiment cppo-mini of sqlite:///")
    assert "3 done, 1 failed, 2 missing>" in repr(study)
    runs = study.runs
    assert list(zip(runs["variant"], runs["seed"], runs["state"], strict=True)) == [
        ("grpo", 0, "failed"),
        ("grpo", 1, "missing"),
        ("dppo", 0, "done"),
        ("dppo", 1, "missing"),
        ("cppo", 0, "done"),
        ("cppo", 1, "done"),
    ]
    assert str(runs["seed"].dtype) == "Int64" and "out of memory" in runs["reason"][0]
    assert (runs["best"].isna() == (runs["state"] != "done")).all()
    done = runs[runs["state"] == "done"]
    for row in done.itertuples():
        base, late, last = (expected_score(row.rule, row.seed, step) for step in (0, 24, 28))
        scores = (row.base, row.last, row.best, row.final_mean)
        assert scores == pytest.approx((base, last, last, (late + last) / 2))
        # What `plausible.train` logs behind t_stop does not count.
        assert (row.best_step, row.last_step, row.t_stop) == (28, 28, 30)
    assert (done["end"] >= done["start"]).all()


def test_axes_have_columns_of_their_values(in_trained: Path) -> None:
    study = cppo_lab.load("quickstart", variant="cppo", seed=[0, 1], **{"rule.w_min": np.array([0.6, 0.8])})
    assert study.runs["rule.w_min"].tolist() == [0.6, 0.8, 0.6, 0.8]
    assert study.runs["seed"].tolist() == [0, 0, 1, 1]
    assert study.runs["variant"][0] == "cppo w_min=0.6" and set(study.runs["state"]) == {"done"}
    chosen = cppo_lab.load("quickstart", "rule.w_min=0.6,0.8", variant="cppo", seed=1).runs
    assert chosen["run_id"].tolist() == study.runs["run_id"].tolist()[2:]


def test_history_is_long_and_chosen_by_name(in_trained: Path) -> None:
    study = cppo_lab.load("quickstart")
    assert SCORE in study.metrics and study.metrics == tuple(sorted(study.metrics))
    history = study.history(SCORE, runs=study.runs[study.runs["variant"] == "cppo"])
    assert list(history.columns) == ["run_id", "metric", "step", "value"]
    assert set(history["metric"]) == {SCORE}
    _, absent, _, _, first, _ = study.runs["run_id"]
    curve = history[history["run_id"] == first]
    assert curve["step"].tolist() == list(range(0, 41, 4))
    np.testing.assert_allclose(curve["value"], [expected_score("cppo", 0, step) for step in curve["step"]])
    assert set(study.history("train/*")["metric"]) == {
        name for name in study.metrics if name.startswith("train/")
    }
    assert len(study.history()) == len(study.history(["*"]))
    assert study.history(runs=first)["run_id"].unique().tolist() == [first]
    assert study.history(runs=absent).empty  # nobody has trained it


def test_outcomes_have_a_row_for_each_problem_and_validation(in_trained: Path) -> None:
    study = cppo_lab.load("quickstart")
    rows = study.outcomes()
    _, _, other, _, *ids = study.runs["run_id"]
    expected = []
    for seed, run_id in enumerate(ids):
        kept = made.outcomes(seed=seed)
        for (v, step), (p, problem) in itertools.product(enumerate(kept.steps), enumerate(kept.problems)):
            counts = (kept.right[v, p], kept.cut_off[v, p], kept.length[v, p])
            expected.append((run_id, step, kept.benchmarks[kept.benchmark_of[p]], problem, 16, *counts))
    assert [*rows.itertuples(index=False, name=None)] == expected
    assert len(study.outcomes(runs=ids[0])) * 2 == len(rows)
    none = study.outcomes(runs=other)
    assert (len(none), list(none.columns)) == (0, list(rows.columns))


def test_the_paper_s_study_has_every_sweep() -> None:
    whole = cppo_lab.load("study", source="paper")
    assert {"main", "kl_vs_tv", "mask_vs_soft"} <= set(whole.runs["sweep"])
    assert whole.runs["run_id"].nunique() == 37
    assert len(cppo_lab.load("kl_vs_tv", source="paper").runs) == (whole.runs["sweep"] == "kl_vs_tv").sum()
    assert whole.history("val/mean/*")["run_id"].nunique() == 37
    with user_error(r"no outcomes.*source='runs'"):
        whole.outcomes()


@pytest.mark.parametrize(
    "arguments, values, message",
    [
        (("quickstart",), {"source": "papr"}, "unknown source 'papr': did you mean 'paper'"),
        (("quickstart",), {"uri": Path("nowhere.db")}, r"nowhere\.db does not exist"),
        (("quickstart",), {"uri": "folder"}, "'folder' is not supported: use sqlite:///"),
        (
            ("quickstart", "paths.data='a b'"),
            {"core": "exact"},
            "has none of the 6 runs of quickstart: train them with `cppo launch quickstart 'paths",
        ),
        (("tune_cppo",), {}, "tune_cppo is a search"),
        (("main", "seed=0"), {"source": "paper"}, "take no overrides"),
        (("main", ["seed=0"]), {}, r"override \['seed=0'\]: give texts, one after the other"),
        (
            ("main",),
            {"seed": slice(2)},
            r"seed=slice\(None, 2, None\): give text, numbers, True, False or None",
        ),
        (("main",), {"uri": 5}, "'5' is not supported: use sqlite:///"),
        (("main",), {"source": "paper", "uri": "x"}, "from no store"),
        (("tune_cppo",), {"source": "paper"}, "unknown sweep of the paper's curves 'tune_cppo'"),
    ],
)
def test_mistakes_are_named(
    in_trained: Path, arguments: tuple[str, ...], values: dict[str, object], message: str
) -> None:
    with user_error(message):
        cppo_lab.load(*arguments, **values)  # type: ignore[arg-type]
    assert not (in_trained / "nowhere.db").exists()


def test_unknown_metrics_and_runs_are_named(in_trained: Path) -> None:
    study = cppo_lab.load("quickstart", variant="cppo")
    for names, message in (
        ({"metrics": "train/rewart"}, "unknown metric 'train/rewart': did you mean 'train/reward'"),
        ({"metrics": 5}, "unknown metric '5': valid: "),
        ({"runs": ["abc"]}, "run 'abc' is not one of quickstart"),
        ({"runs": study.runs[["seed"]]}, "run 'seed' is not one of quickstart"),
    ):
        with user_error(message):
            study.history(**names)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = cppo_lab.lod  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "key, value, text",
    [
        ("seed", range(2), "seed=0,1"),
        ("rule.delta_b_cap", np.float64(0.5), "rule.delta_b_cap=0.5"),
        ("training.note", "two words", "training.note='two words'"),
        ("x", None, "x=null"),
        ("seed", list(np.arange(2)), "seed=0,1"),
        ("data.train", Path("a b.jsonl"), "data.train='a b.jsonl'"),
        ("x", True, "x=true"),
    ],
)
def test_keywords_are_overrides(key: str, value: object, text: str) -> None:
    assert override_text(key, value) == text
