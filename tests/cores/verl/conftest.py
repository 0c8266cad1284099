"""A random Qwen3 small enough for a unit test, with a tokenizer of its own; nothing is downloaded."""

from importlib.util import find_spec
from pathlib import Path

import pytest

# The tests here import verl at their top; without the extra there is nothing to collect.
collect_ignore_glob = [] if find_spec("verl") else ["test_*.py"]

# verl's tokenisation for Qwen3 wants "\n" to be one token, and <|im_end|> (verl/utils/tokenizer/continuous_token.py).
WORDS = ["<pad>", "<|im_end|>", "<unk>", "user:", "assistant:", "\n", *"0123456789+-*/=?.,:;()[]{}<>_abcde"]
PAD, EOS = 0, 1
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a saved model with 2 layers, width 32 and one token per word of `WORDS`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|im_end|>", unk_token="<unk>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        # Far from uniform: an untrained model of the usual scale gives every token the same probability, and a
        # misplaced row would go unnoticed.
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder
