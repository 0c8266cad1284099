"""A reward of the user's: what it may return, and what is said of everything else."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.cores.verl.rewards import FAULT, own_score, reward_parts
from tests.conftest import user_error

RESPONSE = {"data_source": "held", "solution_str": "7", "ground_truth": "7", "extra_info": {"index": 0}}
BODIES = {
    "return 1": {"score": 1.0, "acc": 1.0},
    "return True": {"score": 1.0, "acc": 1.0},
    "return len(extra_info) / 4": {"score": 0.25, "acc": 0.25},
    "return {'score': -3, 'acc': solution_str == ground_truth, 'format': 0.5, 'said': 'seven'}": {
        "score": -3.0, "acc": 1.0, "format": 0.5,
    },
    "import numpy; return numpy.float32(0.5)": {"score": 0.5, "acc": 0.5},
}  # fmt: skip
FAULTS = {
    "raise KeyError('unit')": "data.reward='{path}': KeyError: 'unit'",
    "raise SystemExit(3)": "data.reward='{path}': SystemExit: 3",
    "return float('nan')": "it returned score=nan: return finite numbers",
    "return {'score': 1, 'parts': float('inf')}": "it returned parts=inf",
    "return {'score': 1, 'a/b': 1}": "it returned a/b=1.0: return finite numbers under plain names",
    "return 'right'": "it returned 'right': return a number, or a dict with a number `score`",
    "return None": "it returned None",
    "return {'acc': 1}": "it returned {{'acc': 1}}",
    "return -1": "acc=-1: validations need a share from 0 to 1: return a dict with `score` and `acc`",
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "some_reward.py"
    sys.modules.pop("some_reward", None)


def scored(module: Path, body: str) -> dict[str, object]:
    arguments = "data_source, solution_str, ground_truth, extra_info"
    module.write_text(f"def score({arguments}):\n    {body}\n", encoding="utf-8")
    return own_score("some_reward:score", **RESPONSE)


@pytest.mark.parametrize("body", BODIES)
def test_what_a_reward_returns(module: Path, body: str) -> None:
    assert scored(module, body) == BODIES[body]


@pytest.mark.parametrize("body", FAULTS)
def test_a_reward_that_is_none_says_why(module: Path, body: str) -> None:
    result = scored(module, body)
    assert FAULTS[body].format(path="some_reward:score") in str(result[FAULT])
    with user_error("some_reward:score"):
        reward_parts([{"score": 1.0, "acc": 1.0}, result])


def test_a_reward_whose_module_is_gone_says_so() -> None:
    assert "put its folder on PYTHONPATH" in str(own_score("no_such_reward:score", **RESPONSE)[FAULT])


def test_the_parts_are_means_over_the_responses_that_have_them() -> None:
    parts = reward_parts([{"score": 1.0, "format": 0.5}, {"score": 0.0}])
    assert parts == {"reward/score": 0.5, "reward/format": 0.5}
    assert all(map(schema.is_known_metric, [*parts, schema.reward_metric("format", "held")]))
