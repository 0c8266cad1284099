"""Our embedded models in Hugging Face's format: the warm-started transformer, its tokenizer, and its task as data rows.

The embedded transformer is a Qwen3, so that both cores can start from the same weights.
"""

import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from cppo_lab.cores.mini.model import Block, Transformer
from cppo_lab.cores.mini.tasks import Task, Tokenizer, make_task, sample_training_problems, validation_sets
from cppo_lab.cores.mini.warm_start import load_warm_start
from cppo_lab.data.prepare import write_rows
from cppo_lab.files import open_lock
from cppo_lab.spec import SyntheticModel, TaskData, VerlRun
from cppo_lab.spec.run import BYTES

# The chat template adds nothing around the symbols of a prompt.
PAD = "<pad>"
# verl's agent loop requires these in the tokenizer of any Qwen. Their ids follow the model's vocabulary; no text uses
# them.
CHATML = ("\n", "<|im_end|>")
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def as_qwen3(ours: Transformer, eos: int) -> Qwen3ForCausalLM:
    """A Qwen3 with a copy of our weights, with the fused projections split. `eos`: id of the symbol that ends."""
    arch = ours.arch
    config = Qwen3Config(
        vocab_size=ours.embedding.num_embeddings,
        hidden_size=arch.width,
        intermediate_size=arch.mlp_width,
        num_hidden_layers=arch.layers,
        num_attention_heads=arch.heads,
        num_key_value_heads=arch.kv_heads,
        head_dim=arch.head_dim,
        max_position_embeddings=ours.context,
        rope_parameters={"rope_type": "default", "rope_theta": arch.rope_theta},
        rms_norm_eps=ours.norm.eps,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        dtype=torch.float32,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=None,  # with an id, the padding row would get no gradient, which it does in the embedded core
    )
    theirs = Qwen3ForCausalLM(config)
    weights: dict[str, torch.Tensor] = {
        "model.embed_tokens.weight": ours.embedding.weight,
        "lm_head.weight": ours.embedding.weight,
        "model.norm.weight": ours.norm.gain,
    }
    sizes = [heads * arch.head_dim for heads in (arch.heads, arch.kv_heads, arch.kv_heads)]
    for layer, block in enumerate(ours.blocks):
        assert isinstance(block, Block)
        attention, at = block.attention, f"model.layers.{layer}."
        q, k, v = attention.qkv.weight.split(sizes)
        gate, up = block.gate_up.weight.chunk(2)
        weights |= {
            at + "input_layernorm.weight": block.attention_norm.gain,
            at + "post_attention_layernorm.weight": block.mlp_norm.gain,
            at + "self_attn.q_proj.weight": q,
            at + "self_attn.k_proj.weight": k,
            at + "self_attn.v_proj.weight": v,
            at + "self_attn.o_proj.weight": attention.out.weight,
            at + "self_attn.q_norm.weight": attention.q_norm.gain,
            at + "self_attn.k_norm.weight": attention.k_norm.gain,
            at + "mlp.gate_proj.weight": gate,
            at + "mlp.up_proj.weight": up,
            at + "mlp.down_proj.weight": block.down.weight,
        }
    theirs.load_state_dict({name: weight.detach().clone() for name, weight in weights.items()})
    return theirs


def as_fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The task's symbols with their ids: a text is its symbols, separated by spaces."""
    names = [tokenizer.name(symbol) for symbol in range(tokenizer.vocabulary)]
    fast = FastTokenizer(models.WordLevel({name: symbol for symbol, name in enumerate(names)}, unk_token=PAD))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        pad_token=PAD,
        eos_token=names[tokenizer.eos],
        unk_token=PAD,
        additional_special_tokens=list(CHATML),
        chat_template=CHAT_TEMPLATE,
    )


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of embedded models on text, with BYTES symbols: the bytes of UTF-8, padding, and CHATML."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), PAD, *CHATML]
    fast = FastTokenizer(models.BPE({name: symbol for symbol, name in enumerate(names)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token=PAD, eos_token=CHATML[1], additional_special_tokens=list(CHATML),
        chat_template=CHAT_TEMPLATE,
    )  # fmt: skip


def make_model(spec: VerlRun, folder: Path, shared: Path) -> None:
    """Create `folder` with the model and tokenizer of `spec`, unless it exists; the first run that needs it does so."""
    assert isinstance(spec.model, SyntheticModel)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(folder.with_suffix(".lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return
        task = make_task(spec.data).tokenizer if isinstance(spec.data, TaskData) else None
        fast = as_fast_tokenizer(task) if task else byte_tokenizer()
        seeded = spec.model.for_seed(spec.seed)
        torch.manual_seed(seeded.start_seed)
        vocabulary = task.vocabulary if task else BYTES
        context = spec.longest_prompt + spec.rollout.max_response_length
        ours = Transformer(spec.model.architecture, vocabulary, context)
        if isinstance(spec.data, TaskData):
            load_warm_start(seeded, spec.data, ours, shared / "warm_starts")
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        as_qwen3(ours, fast.eos_token_id).save_pretrained(partial)
        fast.save_pretrained(partial)
        partial.replace(folder)


def write_task(spec: VerlRun, train: Path, validation: Path) -> None:
    """Write training and validation problems of `spec` in verl's layout.

    The training problems are those that the run will need, in order: one epoch is the run.
    """
    assert isinstance(spec.data, TaskData)
    task = make_task(spec.data)
    sets = validation_sets(task)
    held_out = {key for problems in sets.values() for key in problems.identities()}
    generator = torch.Generator().manual_seed(spec.seed)
    count = spec.training.t_stop * spec.batch.prompts
    training = sample_training_problems(task, count, generator, held_out)
    train.parent.mkdir(parents=True, exist_ok=True)
    write_rows(train, list(_rows(task, "train", training.values, training.prompts)))
    rows = [row for name, p in sets.items() for row in _rows(task, name, p.values, p.prompts)]
    write_rows(validation, rows)


def _rows(task: Task, source: str, values: torch.Tensor, prompts: torch.Tensor) -> Iterator[dict[str, Any]]:
    for index, (value, prompt) in enumerate(zip(values.tolist(), prompts.tolist(), strict=True)):
        yield {
            "data_source": source,
            "prompt": [{"role": "user", "content": task.tokenizer.decode(prompt)}],
            "ability": "arithmetic",
            "reward_model": {"style": "rule", "ground_truth": json.dumps(value)},
            "extra_info": {"index": index, "split": source, "id": f"{source}-{index}"},
        }
