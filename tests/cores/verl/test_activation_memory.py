"""What the estimate takes for the memory of activations, against bytes counted by hooks on saved tensors."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3Config, Qwen3MoeConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeDecoderLayer, Qwen3MoeRotaryEmbedding

from cppo_lab.maths import divergence
from cppo_lab.spec.job import LAYER, LAYER_MOE, LOGIT

pytestmark = pytest.mark.slow
TOKENS = 64
COMMON = {"head_dim": 128, "num_hidden_layers": 1, "vocab_size": 128, "dtype": torch.bfloat16}
WIDTHS = {  # as published
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 8},
    "8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8},
    "30B-A3B": {
        "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
        "moe_intermediate_size": 768, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "num_experts": 8,  # of 128: how many there are to choose from has no part in what a token keeps
    },
}  # fmt: skip


def layer_of(name: str) -> tuple[nn.Module, nn.Module]:
    """One decoder layer in bfloat16, and its rotary embedding."""
    moe = name.endswith("A3B")
    config = (Qwen3MoeConfig if moe else Qwen3Config)(**WIDTHS[name], **COMMON)
    config._attn_implementation = "sdpa"  # which keeps no matrix of attention, as flash attention does not
    if moe:
        config._experts_implementation = "grouped_mm"
        return Qwen3MoeDecoderLayer(config, 0).bfloat16(), Qwen3MoeRotaryEmbedding(config)
    return Qwen3DecoderLayer(config, 0).bfloat16(), Qwen3RotaryEmbedding(config)


@pytest.mark.parametrize("name", WIDTHS)
def test_a_layer_keeps_what_the_estimate_takes_for_granted(name: str) -> None:
    """Bytes for the backward pass, per token and unit of width; weights are not counted."""
    (layer, rope), width = layer_of(name), WIDTHS[name]["hidden_size"]
    weights = {weight.untyped_storage().data_ptr() for weight in layer.parameters()}
    kept: dict[int, Tensor] = {}  # whole, so that no other one gets its place

    def pack(tensor: Tensor) -> Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in weights:
            kept[place] = tensor
        return tensor

    inputs = torch.randn(1, TOKENS, width, dtype=torch.bfloat16, requires_grad=True)
    positions = torch.arange(TOKENS)[None]
    embeddings = rope(inputs, positions)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(inputs, attention_mask=None, position_ids=positions, position_embeddings=embeddings)
    counted = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / TOKENS / width
    assumed = LAYER_MOE if name.endswith("A3B") else LAYER
    assert 0.93 * assumed < counted <= assumed


def test_logits_take_what_the_estimate_takes_for_granted() -> None:
    """Forward and backward as in verl's engine: the gradient over the logits, and two buffers of a chunk of them."""
    rows, symbols, k = 600, 20_000, 20
    torch.manual_seed(0)
    logits = torch.randn(rows, symbols, dtype=torch.bfloat16).requires_grad_() * 1
    tokens, ids = torch.randint(symbols, (rows,)), torch.randint(symbols, (rows, k))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = divergence.logp_and_divergence(
            logits, divergence.Recorded(tokens, torch.randn(rows), ids, torch.randn(rows, k)), measure="tv",
            entropy=True, overwrite_logits=True,
        )  # fmt: skip
        torch.autograd.grad(result.logp.sum(), logits)
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    peak = logits.nbytes + max(itertools.accumulate(event.nbytes() for event in events))
    chunk = 2 * 4 * divergence._CPU_ELEMENTS
    assert LOGIT * rows * symbols + chunk / 2 < peak < LOGIT * rows * symbols + 1.1 * chunk
