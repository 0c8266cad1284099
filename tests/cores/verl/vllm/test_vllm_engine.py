"""Our server's answers on a real vLLM, against Hugging Face's own logits."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.cores.verl.vllm.engine_answers import LENGTH, PROMPTS, VOCABULARY, K
from tests.requirement import VLLM, VLLM_PYTHON

pytestmark = [pytest.mark.verl, pytest.mark.slow]
ROOT = Path(__file__).parents[4]
CLOSE = 1e-5  # nats; float32 on both sides, with kernels of their own
Answers = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with more symbols than its tokenizer has, as the published ones; far from uniform."""
    folder = tmp_path_factory.mktemp("model")
    words = {f"t{one}": one for one in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t2"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t1", pad_token="t0").save_pretrained(
        folder
    )
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY + 28,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # the least that vLLM's attention for CPUs takes
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def answers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    VLLM.demand()
    folder = tmp_path_factory.mktemp("answers")
    command = [VLLM_PYTHON, "-m", "tests.cores.verl.vllm.engine_answers", model, folder / "answers.json"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: Answers = json.loads((folder / "answers.json").read_text())
    return found


def log_probabilities(model: Path, answer: dict[str, Any]) -> torch.Tensor:
    """[T, V] of the tokenizer's symbols at the states of an answer's tokens, as Hugging Face computes them."""
    reference = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32)
    prompt, tokens = answer["prompt"], answer["tokens"]
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits[:, :VOCABULARY] / answer["temperature"], -1)


@pytest.mark.parametrize("kind", ["train_1.0", "train_0.7", "one_token"])
def test_log_mu_and_its_top_k_are_those_of_the_sampling_distribution(
    model: Path, answers: Answers, kind: str
) -> None:
    assert len(answers[kind]) == (1 if kind == "one_token" else len(PROMPTS))
    for answer in answers[kind]:
        expected = log_probabilities(model, answer)
        tokens = torch.tensor(answer["tokens"])
        assert 1 <= len(tokens) <= LENGTH
        sampled = expected.gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(answer["logp"]), sampled, atol=CLOSE, rtol=0)
        ids, values = torch.tensor(answer["topk_ids"]), torch.tensor(answer["topk_logp"])
        assert ids.shape == values.shape == (len(tokens), K)
        torch.testing.assert_close(values, expected.topk(K).values, atol=CLOSE, rtol=0)
        torch.testing.assert_close(values, expected.gather(1, ids), atol=CLOSE, rtol=0)


def test_a_seed_decides_the_answer(answers: Answers) -> None:
    assert answers["again"][0]["tokens"] == answers["train_0.7"][0]["tokens"]
    assert answers["other_seed"][0]["tokens"] != answers["again"][0]["tokens"]


def test_validation_keeps_no_top_k(answers: Answers) -> None:
    [answer] = answers["validation"]
    assert answer["topk_ids"] is None
    assert len(answer["logp"]) == len(answer["tokens"]) > 0


def test_more_than_vllm_was_started_for_is_refused(answers: Answers) -> None:
    assert "21" in answers["refused"]
    assert "20" in answers["refused"]
