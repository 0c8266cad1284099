"""verl's own data set, reward manager and validation metrics on our files and grades; DAPO's rule."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.data.grading import close_pools, follows_answer_rule, normalise
from cppo_lab.data.prepare import prepare
from tests.data.made_files import AFTER, BEFORE, shipped
from tests.fuzz.mangling import fuzz

pytestmark = pytest.mark.verl


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    prepare("sample", tmp_path / "data")
    return tmp_path / "data"


def test_verls_data_set_reads_the_files(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    files = [str(prepared / f"{name}.parquet") for name in ("train", "aime24", "aime25", "aime26")]
    config = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": str(tmp_path / "verl")})
    rows = RLHFDataset(files, tokenizer=None, config=config)
    assert len(rows) == 98
    problem = shipped("aime25")[2]
    row = rows[8 + 30 + 2]
    assert row["data_source"] == "aime25"
    assert row["raw_prompt"] == [{"role": "user", "content": BEFORE + problem["problem"] + AFTER}]
    assert row["reward_model"]["ground_truth"] == problem["answer"]
    assert row["index"] == 2


class _Characters:
    """A tokenizer whose tokens are code points."""

    def decode(self, tokens: Any, skip_special_tokens: bool) -> str:
        return "".join(map(chr, tokens.tolist()))


@pytest.mark.usefixtures("patient_grading")
@pytest.mark.parametrize("manager", ["naive", "dapo"])
def test_verls_reward_managers_hand_our_grades_on(manager: str) -> None:
    import numpy
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    samples = [  # response, truth; the grades are 1, 0, 1, 1, 0, 0
        ("Answer: 204", "204"),
        ("Answer: 205", "204"),
        ("Answer: \\frac{408}{2}", "204"),
        ("so it is 204", 204),
        ("<think>16", "16"),
        ("Answer: 9^{9^{9^9}}", "16"),
    ]
    config = OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {
                    "path": "pkg://cppo_lab.data.grading",
                    "name": "compute_score",
                    "reward_kwargs": {"limit_seconds": 3.0, "workers": 1},
                },
                "reward_manager": {"source": "register", "name": manager},
            }
        }
    )

    def batch(response: str, truth: str | int) -> Any:
        tokens = torch.tensor([[ord(letter) for letter in response] + [0, 0]])
        tensors = {"responses": tokens, "attention_mask": (tokens != 0).long()}
        others = {"data_source": ["aime24"], "reward_model": [{"ground_truth": truth}], "extra_info": [{}]}
        arrays = {key: numpy.array(value, dtype=object) for key, value in others.items()}
        return DataProto.from_dict(tensors=tensors, non_tensors=arrays)

    async def graded() -> list[dict[str, Any]]:
        ours = load_reward_manager(config, _Characters())
        return await asyncio.gather(*(ours.run_single(batch(*row)) for row in samples))

    results = asyncio.run(graded())
    extras = [result["reward_extra_info"] for result in results]
    infos = {key: [extra[key] for extra in extras] for key in extras[0]}
    grades = [result["reward_score"] for result in results]
    assert infos == {
        **dict.fromkeys(("score", "acc"), grades),
        "answer_rule": [1, 0, 0, 0, 0, 0],
        "marked_answer": [1, 1, 1, 0, 0, 1],
        "grade_timeout": [0, 0, 0, 0, 0, 1],
        "grade_error": [0] * 6,
    }
    assert grades == [1, 0, 1, 1, 0, 0]
    close_pools()


# Beside what verl takes away, which the last test has.
# fmt: off
PIECES = st.sampled_from(
    ("Answer:", "answer :", "ANSWER:", "a ", "an ", "x", "units", "and", "frac", "sqrt", "$", "\\$", "}", "{", "=", ",",
     "{,}", ".$", " ", "\n", "42", "1,000", "073", "-3", "\\boxed{", "\\text{", "\\textbf{", "\\overline{", "\\frac",
     "\\sqrt2", "\\text{}^2", "\\text{and}", "\\dots", "٣", "²")
)
# fmt: on
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=25).map("".join)


@fuzz(200)
@given(response=TEXTS, truth=TEXTS)
def test_the_rule_is_verls(response: str, truth: str) -> None:
    from verl.utils.reward_score.math_dapo import is_correct_minerva, normalize_final_answer

    for text in (response, truth, f"{response}Answer:{truth}"):
        assert normalise(text) == normalize_final_answer(text)
        # The 300 characters are cut in verl's compute_score. Its fall-back to \boxed{} is newer than DAPO.
        assert follows_answer_rule(text, truth) == is_correct_minerva(text[-300:], truth)[0]


def test_every_expression_that_verl_takes_away_is_taken_away() -> None:
    from verl.utils.reward_score.math_dapo import REMOVED_EXPRESSIONS, SUBSTITUTIONS, normalize_final_answer

    for before in [*REMOVED_EXPRESSIONS, *(before for before, _ in SUBSTITUTIONS)]:
        for text in (before, f"4{before}2", f"${before}42$", f"\\text{{4}}{before}"):
            assert normalise(text) == normalize_final_answer(text)
