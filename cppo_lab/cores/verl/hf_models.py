"""Models that are made here in Hugging Face's format, with the data rows for them: embedded models, and stand-ins.

The embedded transformer is a Qwen3, so that both cores can start from the same weights; with its warm start go its
tokenizer and its task as data rows. A stand-in has a published shape and random weights: a preflight downloads nothing.
"""

import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import (
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
)
from transformers.core_model_loading import revert_weight_conversion

from cppo_lab.cores.mini.model import Block, Transformer
from cppo_lab.cores.mini.tasks import (
    Task,
    Tokenizer,
    identities,
    make_task,
    sample_training_problems,
    validation_sets,
)
from cppo_lab.cores.mini.warm_start import load_warm_start
from cppo_lab.data.prepare import prepare, write_rows
from cppo_lab.errors import UserError, unknown
from cppo_lab.files import appearing, open_lock
from cppo_lab.plugins import INDEX, lacking
from cppo_lab.spec import HubModel, PathsSpec, RunSpec, SyntheticModel, TaskData, VerlRun
from cppo_lab.spec.run import BYTES

PAD, END = "<pad>", "<|im_end|>"
# verl's agent loop requires these in the tokenizer of any Qwen. Their ids follow the model's vocabulary; no text uses
# them.
CHATML = ("\n", END)
# It adds nothing around the symbols of a prompt.
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
    model = models.WordLevel(_numbered(names), unk_token=PAD)
    return _fast(model, pre_tokenizers.WhitespaceSplit(), eos_token=names[tokenizer.eos], unk_token=PAD)


def _numbered(names: Sequence[str]) -> dict[str, int]:
    return {name: symbol for symbol, name in enumerate(names)}


def _fast(model: Any, splits: Any, decoder: Any = None, **special: Any) -> PreTrainedTokenizerFast:
    """A tokenizer with PAD, END, CHATML and CHAT_TEMPLATE, but for what `special` names."""
    fast = FastTokenizer(model)
    fast.pre_tokenizer = splits
    if decoder is not None:
        fast.decoder = decoder
    usual = {
        "pad_token": PAD, "eos_token": END, "additional_special_tokens": list(CHATML), "chat_template": CHAT_TEMPLATE
    }  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=fast, **usual | special)


def make_model(spec: VerlRun, folder: Path, shared: Path) -> None:
    """Create `folder` with the model and tokenizer of `spec`, unless it exists; the first run that needs it does so."""
    assert isinstance(spec.model, SyntheticModel)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(folder.with_suffix(".lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return
        task = make_task(spec.data).tokenizer if isinstance(spec.data, TaskData) else None
        if task:
            fast = as_fast_tokenizer(task)
        else:  # BYTES symbols: the bytes of UTF-8, padding, and CHATML
            symbols = _numbered([*sorted(pre_tokenizers.ByteLevel.alphabet()), PAD, *CHATML])
            splits = pre_tokenizers.ByteLevel(add_prefix_space=False)
            fast = _fast(models.BPE(symbols, []), splits, decoders.ByteLevel())
        seeded = spec.model.for_seed(spec.seed)
        torch.manual_seed(seeded.start_seed)
        vocabulary = task.vocabulary if task else BYTES
        context = spec.longest_prompt + spec.rollout.max_response_length
        ours = Transformer(spec.model.architecture, vocabulary, context)
        if isinstance(spec.data, TaskData):
            load_warm_start(seeded, spec.data, ours, shared / "warm_starts")
        with appearing(folder) as partial:
            as_qwen3(ours, fast.eos_token_id).save_pretrained(partial)
            fast.save_pretrained(partial)


def write_task(spec: VerlRun, train: Path, validation: Path) -> None:
    """Write training and validation problems of `spec` in verl's layout.

    The training problems are those that the run will need, in order: one epoch is the run.
    """
    assert isinstance(spec.data, TaskData)
    task = make_task(spec.data)
    sets = validation_sets(task)
    held_out = identities(sets)
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
            "prompt": [{"role": "user", "content": " ".join(task.tokenizer.names(prompt))}],
            "ability": "arithmetic",
            "reward_model": {"style": "rule", "ground_truth": json.dumps(value)},
            "extra_info": {"index": index, "split": source, "id": f"{source}-{index}"},
        }


# Stand-ins: models of published shapes with random weights, and problems, for a preflight without downloads.
#
# A folder has the same files as a download from the hub: configuration, tokenizer, weights in bfloat16 under the hub's
# names. The tokenizer has a symbol for each of the model's logits and reads every word of a prompt as the same token.
# Such a model hardly ever ends a response, so that nearly all have full length; grading finds no answer in them.

HEAD = 128  # width of an attention head in every Qwen3
SCALE = 0.02  # standard deviation of the weights, as models are initialised
UNKNOWN = "<unknown>"
SPACED_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


class Sizes(NamedTuple):
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
            make_stand_in(model, SIZES[model.repository], target)
    make_data(folder / "data", 2 * max(run.batch.prompts for run in runs))
    return PathsSpec(data=str(folder / "data"), models=str(folder / "models"))


def make_data(folder: Path, problems: int) -> None:
    """Write prepared data with sums as training problems, and the shipped benchmarks."""
    rows = [
        {"problem": f"What is {number} + {number + 1}?", "answer": 2 * number + 1, "id": f"sum-{number}"}
        for number in range(problems)
    ]
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = folder.with_suffix(".jsonl")
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    prepare(str(source), folder)


def make_stand_in(model: HubModel, sizes: Sizes, target: Path) -> None:
    """Write the folder of `model` atomically."""
    config = config_of(model, sizes)
    with appearing(target, replace=True) as partial:
        config.save_pretrained(partial)
        _stand_in_tokenizer(model.vocabulary).save_pretrained(partial)
        # All weights, a file for each layer, and the index over them.
        draw = torch.Generator().manual_seed(0)
        places: dict[str, str] = {}
        total = 0
        for number, (_, layer) in enumerate(
            groupby(weights_of(config), lambda weight: weight[0].split(".")[:3])
        ):
            file, shard = f"model-{number:05d}.safetensors", {}
            for name, shape in layer:
                values = torch.empty(shape, dtype=torch.bfloat16)
                matrix = len(shape) > 1
                shard[name] = values.normal_(0, SCALE, generator=draw) if matrix else values.fill_(1)
                total += values.nbytes
            save_file(shard, partial / file, metadata={"format": "pt"})
            places |= dict.fromkeys(shard, file)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (partial / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


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
    """Name and shape of every weight, as in the hub's files: each expert by itself."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    weights = {
        name: weight for name, weight in model.state_dict().items() if name not in model.all_tied_weights_keys
    }
    for name, weight in revert_weight_conversion(model, weights).items():
        yield name, tuple(weight.shape)


def _stand_in_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A symbol for each logit; every word of a text is UNKNOWN, and a response has no text.

    math-verify would take up to its time limit to find no answer in thousands of random words.
    """
    first = [UNKNOWN, PAD, END, "\n"]
    words = [*first, *(f"w{number}" for number in range(len(first), vocabulary))]
    return _fast(
        models.WordLevel(_numbered(words), unk_token=UNKNOWN),
        pre_tokenizers.WhitespaceSplit(),
        decoders.Replace(Regex("w[0-9]+"), ""),
        unk_token=UNKNOWN,
        additional_special_tokens=["\n"],
        chat_template=SPACED_TEMPLATE,
    )
