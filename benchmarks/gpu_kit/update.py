"""One FSDP2 update of Qwen3-1.7B's shape with CPPO's loss on one GPU, against `cppo_lab.spec.estimate` for its tokens.

Through torch's `fully_shard` and transformers' Qwen3, not through verl: its Ray alone is larger than what travels with
the kit. As in the layouts: float32 weights, gradients and AdamW, bfloat16 computation, every layer recomputed in the
backward pass, responses packed into one row without padding, the loss from the logits themselves. Weights are random.
"""

import math
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu_kit.record import Record
from cppo_lab.maths.aggregation import aggregate
from cppo_lab.maths.from_logits import logp_and_divergence
from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.tokens import Tokens
from cppo_lab.spec.estimate import (
    RESERVE,
    TRAINING_MFU,
    ModelShape,
    amounts_of,
    estimate_memory,
    shape_of,
    update_seconds,
)
from cppo_lab.sweep.compose import compose

RUN = ["core=verl", "model=qwen3_1_7b_base", "rule=cppo", "layout=one_node"]
K, UPDATES = 20, 3


@dataclass(frozen=True)
class Size:
    """A Qwen3's sizes and the lengths of the packed sequences."""

    layers: int
    width: int
    mlp_width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    lengths: tuple[int, ...]
    prompt: int

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


# Qwen3-1.7B-Base's config.json; 20,480 tokens, the micro-batch of the layout `one_node`.
FULL = Size(28, 2048, 6144, 16, 8, 128, 151936, (8192, 5120, 4096, 2048, 1024), 200)
TINY = Size(2, 64, 192, 4, 2, 16, 512, (96, 64, 32), 8)


def measure(device: str, record: Record) -> None:
    """A few updates of the same batch: memory at its highest, and seconds."""
    cuda = device == "cuda"
    size = FULL if cuda else TINY
    record.note("engine: torch's fully_shard and transformers' Qwen3, one rank; verl is not used")
    with tempfile.TemporaryDirectory() as folder:
        _join(device, Path(folder))
        try:
            model = build(size, device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.1)
            parameters = sum(parameter.numel() for parameter in model.parameters())
            given = inputs(size, device)
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            seconds, values = [], []
            for _ in range(UPDATES + 1):
                started = time.perf_counter()
                values.append(update(model, optimizer, given))  # floats: the device has done all it was given
                seconds.append(time.perf_counter() - started)
        finally:
            torch.distributed.destroy_process_group()
    record.figure("parameters", parameters, "weights")
    finite = all(math.isfinite(value) for row in values for value in row)
    record.figure("losses_or_norms_not_finite", 0 if finite else 1, "", at_most=0)
    record.figure("masked_fraction", values[-1][2], "of the tokens")
    estimated_seconds, estimated_bytes = estimated(size, parameters)
    taken = statistics.median(seconds[1:])
    record.figure("first_update", seconds[0], "s")
    record.figure("update", taken, "s")
    record.figure("update_rate", size.tokens / taken, "tokens/s")
    record.figure("estimated_update_of_an_h100", estimated_seconds, "s")
    record.figure("estimated_training_memory", estimated_bytes / 1e9, "GB")
    allocated = torch.cuda.max_memory_allocated() if cuda else math.nan
    reserved = torch.cuda.max_memory_reserved() if cuda else math.nan
    for name, value, unit in (
        ("peak_allocated", allocated / 1e9, "GB"),
        ("peak_reserved", reserved / 1e9, "GB"),
        ("update_over_estimate", taken / estimated_seconds, "x"),
        ("share_of_peak_flops", TRAINING_MFU * estimated_seconds / taken, "of an H100's data sheet"),
        ("peak_allocated_over_estimate_without_reserve", allocated / (estimated_bytes - RESERVE), "x"),
        ("peak_reserved_over_estimate", reserved / estimated_bytes, "x"),
    ):
        record.figure(name, value if cuda else None, unit, absent="" if cuda else "only on a GPU")


def estimated(size: Size, parameters: int) -> tuple[float, float]:
    """Seconds of an update and bytes at its highest, by cppo_lab.spec.estimate on one device.

    The estimate knows responses of one length. The five here take as long as responses of the length at which causal
    attention costs as much: the mean over tokens of the length of a token's sequence.
    """
    composed = compose(RUN)
    layout = composed.layout
    known = shape_of(composed.run)
    count = float(parameters)
    shape = (
        replace(known, parameters=count, active=count)
        if size is FULL
        else ModelShape(count, count, size.layers, size.width, size.kv_heads * size.head_dim, size.vocabulary)
    )
    length = sum(n * n for n in size.lengths) / size.tokens
    device = layout.model_copy(update={"devices_per_node": 1, "tokens_per_device": size.tokens})
    amounts = replace(amounts_of(composed.run), responses=1, prompt=0.0, response=length)
    seconds = update_seconds(shape, amounts, device) * size.tokens / length
    return seconds, estimate_memory(shape, amounts, device, device.device_memory_gb * 1e9).training


def build(size: Size, device: str) -> Any:
    """The model, in float32, recomputed and sharded layer by layer over the one rank."""
    from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM

    AttentionInterface.register("packed_causal", packed_attention)
    config = Qwen3Config(
        vocab_size=size.vocabulary, hidden_size=size.width, intermediate_size=size.mlp_width,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim, tie_word_embeddings=True, max_position_embeddings=32768,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, attn_implementation="packed_causal",
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(device, (1,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    cu_lengths: Any = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of the packed row, [1, H, N, D] each: what flash attention's varlen does.

    It needs no package beside torch, whose kernel is flash attention's too.
    """
    parts = []
    for start, end in pairwise(cu_lengths):
        q, k, v = (tensor[:, :, start:end] for tensor in (query, key, value))
        parts.append(
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=more.get("scaling"), enable_gqa=True)
        )
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


def inputs(size: Size, device: str) -> dict[str, Any]:
    """A packed row, and what mu recorded at the response tokens: that of a policy some way off."""
    generator = torch.Generator().manual_seed(0)
    starts = [0, *torch.tensor(size.lengths).cumsum(0).tolist()]
    ids = torch.randint(size.vocabulary, (1, size.tokens), generator=generator)
    positions = torch.cat([torch.arange(length) for length in size.lengths])
    # Row p predicts token p + 1: a response's rows are the last of its prompt and all of its own but the last.
    rows = torch.cat([torch.arange(start + size.prompt - 1, end - 1) for start, end in pairwise(starts)])
    lengths = torch.tensor([length - size.prompt for length in size.lengths])
    # A random model says every symbol alike. mu's Top-K hold more mass at some states: D_t is about that much.
    uniform = -math.log(size.vocabulary)
    mass = 0.4 * torch.rand(size.tokens, 1, generator=generator) ** 6
    top = torch.randn(size.tokens, K, generator=generator).softmax(-1) * mass.clamp_min(K / size.vocabulary)
    stride = size.vocabulary // K  # one of the K ids in each part of the vocabulary: all different
    given = {
        "ids": ids,
        "positions": positions[None],
        "rows": rows,
        "tokens": ids[0].roll(-1),
        "topk_ids": torch.randint(stride, (size.tokens, K), generator=generator) + stride * torch.arange(K),
        "topk_logp": top.log(),
        "rollout_logp": uniform + 0.3 * torch.randn(size.tokens, generator=generator),
        "advantages": torch.randn(len(lengths), generator=generator).repeat_interleave(lengths),
        "cu_lengths": torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]),
    }
    return {key: value.to(device) for key, value in given.items()} | {"starts": starts}


def update(model: Any, optimizer: torch.optim.Optimizer, given: dict[str, Any]) -> tuple[float, float, float]:
    """Forward, CPPO's loss, backward, clipping and AdamW; the loss, the gradient's norm and the masked share.

    Logits of every row, as verl's engine has them; the loss is of the response tokens.
    """
    logits = model(
        input_ids=given["ids"],
        position_ids=given["positions"],
        use_cache=False,
        cu_lengths=given["starts"],
    ).logits
    both = logp_and_divergence(
        logits.squeeze(0),
        given["tokens"],
        given["topk_ids"],
        given["topk_logp"],
        given["rollout_logp"],
        measure="tv",
        entropy=True,
        overwrite_logits=True,
    )
    del logits
    rows = given["rows"]
    tokens = Tokens.packed(
        given["cu_lengths"],
        logp=both.logp[rows],
        rollout_logp=given["rollout_logp"][rows],
        advantages=given["advantages"],
        divergence=both.divergence[rows],
    )
    output = get_rule("cppo")(
        tokens, **{"delta": 0.15, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "adaptive"}
    )
    loss = -aggregate(output.objective, tokens.valid, "token-mean")
    loss.backward()
    norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach()), float(norm), 1 - float(output.keep[tokens.valid].mean())


def _join(device: str, folder: Path) -> None:
    """This process alone as a group, which meets at a file: no network is needed."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    if device == "cuda":
        torch.cuda.set_device(0)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # the machine may have no other
    backend = "nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(
        backend, init_method=f"file://{folder / 'store'}", rank=0, world_size=1
    )
