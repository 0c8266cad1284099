"""Creates models of published shapes with random weights, and problems, for a preflight without downloads.

A folder has the same files as a download from the hub: configuration, tokenizer, weights in bfloat16 under the hub's
names. The tokenizer has a symbol for each of the model's logits and reads every word of a prompt as the same token.
Such a model hardly ever ends a response, so that nearly all have full length; grading finds no answer in them.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import PretrainedConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3MoeConfig

from cppo_lab.data.prepare import prepare
from cppo_lab.data.sources import wrap
from cppo_lab.errors import UserError, unknown
from cppo_lab.plugins import INDEX, lacking
from cppo_lab.spec import HubModel, PathsSpec, RunSpec

HEAD = 128  # width of an attention head in every Qwen3
SCALE = 0.02  # standard deviation of the weights, as models are initialised
UNKNOWN, PAD, END = (
    "<unknown>",
    "<pad>",
    "<|im_end|>",
)  # verl's agent loop wants the last of a Qwen's tokenizer
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@dataclass(frozen=True)
class Sizes:
    """Sizes in a repository's configuration that `HubModel` lacks. With `experts`, `mlp_width` is that of an expert."""

    heads: int
    mlp_width: int
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0


SIZES = {
    "Qwen/Qwen3-0.6B-Base": Sizes(16, 3072, tied=True),
    "Qwen/Qwen3-1.7B": Sizes(16, 6144, tied=True),
    "Qwen/Qwen3-1.7B-Base": Sizes(16, 6144, tied=True),
    "Qwen/Qwen3-8B-Base": Sizes(32, 12288),
    "Qwen/Qwen3-30B-A3B-Base": Sizes(32, 768, experts=128, experts_per_token=8),
}


def make_stand_ins(runs: Sequence[RunSpec], folder: Path, say: Callable[[str], None]) -> PathsSpec:
    """Create stand-ins for everything that these runs read in `folder`; existing ones are left alone.

    Raises UserError for a model of unknown sizes, or a model of the product, which needs no stand-in.
    """
    for model in {run.model.name: run.model for run in runs}.values():
        if not isinstance(model, HubModel):
            raise UserError(f"model={model.name} is made by the product itself: drop --random-weights")
        if model.repository not in SIZES:
            raise unknown("repository with known sizes", model.repository, SIZES)
        target = folder / "models" / model.repository
        if lacking(target):
            say(f"random weights for {model.repository}: {2 * model.parameters:.3g} GB in {target}")
            make_model(model, SIZES[model.repository], target)
    make_data(folder / "data", 2 * max(run.batch.prompts for run in runs))
    return PathsSpec(data=str(folder / "data"), models=str(folder / "models"))


def make_data(folder: Path, problems: int) -> None:
    """Write prepared data with sums as training problems, and the shipped benchmarks."""
    rows = [
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": wrap(f"What is {number} + {number + 1}?")}],
            "ability": "MATH",
            "reward_model": {"style": "rule-lighteval/MATH_v2", "ground_truth": str(2 * number + 1)},
            "extra_info": {"index": f"sum-{number}"},
        }
        for number in range(problems)
    ]
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = folder.with_suffix(".jsonl")
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    prepare(str(source), folder)


def make_model(model: HubModel, sizes: Sizes, target: Path) -> None:
    """Write the folder of `model` atomically."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    config = config_of(model, sizes)
    config.save_pretrained(partial)
    _tokenizer(model.vocabulary).save_pretrained(partial)
    _write_weights(config, partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)


def config_of(model: HubModel, sizes: Sizes) -> PretrainedConfig:
    """The configuration of the model, as in its repository."""
    common: dict[str, Any] = {
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": model.kv_width // HEAD,
        "head_dim": HEAD,
        "max_position_embeddings": model.context,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": sizes.tied,
        "dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }
    if not sizes.experts:
        return Qwen3Config(**common, intermediate_size=sizes.mlp_width, architectures=["Qwen3ForCausalLM"])
    return Qwen3MoeConfig(
        **common,
        intermediate_size=3 * model.width,
        moe_intermediate_size=sizes.mlp_width,
        num_experts=sizes.experts,
        num_experts_per_tok=sizes.experts_per_token,
        norm_topk_prob=True,
        architectures=["Qwen3MoeForCausalLM"],
    )


def weights_of(config: PretrainedConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every weight, as in the hub's files."""
    width, vocabulary = config.hidden_size, config.vocab_size
    yield "model.embed_tokens.weight", (vocabulary, width)
    for layer in range(config.num_hidden_layers):
        yield from _weights_of_layer(config, f"model.layers.{layer}.")
    yield "model.norm.weight", (width,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (vocabulary, width)


def _weights_of_layer(config: PretrainedConfig, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = config.hidden_size
    query, shared = config.num_attention_heads * HEAD, config.num_key_value_heads * HEAD
    for name, shape in {
        "q_proj": (query, width), "k_proj": (shared, width), "v_proj": (shared, width), "o_proj": (width, query),
        "q_norm": (HEAD,), "k_norm": (HEAD,),
    }.items():  # fmt: skip
        yield f"{at}self_attn.{name}.weight", shape
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{at}{name}.weight", (width,)
    experts = getattr(config, "num_experts", 0)
    inner = config.moe_intermediate_size if experts else config.intermediate_size
    if experts:
        yield f"{at}mlp.gate.weight", (experts, width)
    for place in [f"experts.{expert}." for expert in range(experts)] or [""]:
        yield f"{at}mlp.{place}gate_proj.weight", (inner, width)
        yield f"{at}mlp.{place}up_proj.weight", (inner, width)
        yield f"{at}mlp.{place}down_proj.weight", (width, inner)


def _write_weights(config: PretrainedConfig, folder: Path) -> None:
    """All weights, a file for each layer, and the index over them."""
    draw = torch.Generator().manual_seed(0)
    places: dict[str, str] = {}
    total = 0
    for number, (_, layer) in enumerate(groupby(weights_of(config), lambda weight: weight[0].split(".")[:3])):
        file, shard = f"model-{number:05d}.safetensors", {}
        for name, shape in layer:
            values = torch.empty(shape, dtype=torch.bfloat16)
            matrix = len(shape) > 1
            shard[name] = values.normal_(0, SCALE, generator=draw) if matrix else values.fill_(1)
            total += values.nbytes
        save_file(shard, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A symbol for each logit; every word of a text is UNKNOWN, and a response has no text.

    math-verify would take up to its time limit to find no answer in thousands of random words.
    """
    first = [UNKNOWN, PAD, END, "\n"]
    words = [*first, *(f"w{number}" for number in range(len(first), vocabulary))]
    fast = FastTokenizer(
        models.WordLevel({word: place for place, word in enumerate(words)}, unk_token=UNKNOWN)
    )
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.decoder = decoders.Replace(Regex("w[0-9]+"), "")
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, unk_token=UNKNOWN, pad_token=PAD, eos_token=END,
        additional_special_tokens=["\n"], chat_template=TEMPLATE,
    )  # fmt: skip
