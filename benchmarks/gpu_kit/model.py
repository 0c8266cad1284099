"""The models' shapes on a GPU: sampling with mu's Top-K, layers, experts, decoding, one update as in verl's engine.

Weights are random. The figures to compare with the constants of `cppo_lab/spec/job.py` are named after them.
"""

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_kit.__main__ import Record
from benchmarks.gpu_kit.loss import VOCABULARY, K, milliseconds, recorded, triton_runs
from cppo_lab.maths.divergence import logp_and_divergence
from cppo_lab.maths.rules import aggregate, get_rule
from cppo_lab.maths.tokens import Tokens

PEAK_FLOPS = 989e12  # an H100's data sheet, bfloat16
# Width, width of the MLP, heads of queries and of keys, layers.
QWEN = {"0.6B": (1024, 3072, 16, 8, 28), "1.7B": (2048, 6144, 16, 8, 28), "8B": (4096, 12288, 32, 8, 36)}
SMALL = (32, 64, 4, 2, 2)
CPPO = {"delta": 0.15, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "adaptive"}


def sampler(device: torch.device, record: Record) -> None:
    """What mu's Top-K adds to a decode step, as vLLM's two model runners compute it."""
    vocabulary = VOCABULARY if device.type == "cuda" else 5003
    for rows in (64, 256):
        logits = 3 * torch.randn(rows, vocabulary, device=device)
        noise, tokens = torch.empty_like(logits), torch.randint(vocabulary, (rows, 1), device=device)

        for name, step in (
            ("sampling alone", partial(sampled, logits, noise)),
            ("Top-K, runner 1", partial(every_token, logits, tokens)),
            ("Top-K, runner 2", partial(ids_alone, logits, tokens)),
        ):
            record.figure(f"{name}, {rows} rows", milliseconds(step, device), "ms")


def sampled(logits: Tensor, noise: Tensor) -> Tensor:
    """A token for each row."""
    return logits.softmax(-1).div_(noise.exponential_()).argmax(-1)


def every_token(logits: Tensor, tokens: Tensor) -> object:
    """vLLM's runner 1: every log-probability."""
    logp = logits.log_softmax(-1, dtype=torch.float32)
    return logp.topk(K), (logp >= logp.gather(-1, tokens)).sum(-1)


def ids_alone(logits: Tensor, tokens: Tensor) -> object:
    """vLLM's runner 2: those of the ids alone."""
    ids = torch.cat([tokens, logits.topk(K).indices], 1)
    logp = logits.gather(-1, ids) - logits.logsumexp(-1, keepdim=True)
    return logp, (logits >= logits.gather(-1, tokens)).sum(-1)


def qwen(size: str, layers: int, vocabulary: int, device: torch.device) -> Any:
    """A Qwen3 of so many layers, recomputed in the backward pass."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    width, mlp, heads, kv_heads, _ = QWEN[size] if device.type == "cuda" else SMALL
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=mlp, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=128 if device.type == "cuda" else 8,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    with device:
        model = Qwen3ForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def layers(device: torch.device, record: Record) -> None:
    """Four layers of two models, forward and backward: the share of the peak (TRAINING_MFU)."""
    count, (rows, length) = 4, (4, 4096) if device.type == "cuda" else (2, 16)
    ids = torch.randint(512, (rows, length), device=device)
    for size in ("1.7B", "8B"):
        model = qwen(size, count, 512, device).bfloat16()
        weights = sum(part.numel() for part in model.model.layers.parameters())

        def step(model: Any = model) -> None:
            model.model(input_ids=ids, use_cache=False).last_hidden_state.float().mean().backward()

        taken = milliseconds(step, device, times=5)
        attention = 6 * count * length * model.config.num_attention_heads * model.config.head_dim
        record.figure(f"{size}, {count} layers, {rows} x {length} tokens", taken, "ms")
        peak_share(record, f"{size} share of the peak", (6 * weights + attention) * rows * length, taken)
        del model, step
        torch.cuda.empty_cache()


def peak_share(record: Record, name: str, flops: float, taken: float) -> None:
    """Record the share of the peak that so many operations in `taken` milliseconds are."""
    record.figure(name, flops / taken / PEAK_FLOPS * 1e3, "of 989e12 FLOP/s")


def experts(device: torch.device, record: Record) -> None:
    """The experts of one layer of Qwen3-30B-A3B by torch's grouped products, forward and backward."""
    sizes = (16384, 2048, 768, 128, 8) if device.type == "cuda" else (64, 32, 16, 8, 2)
    tokens, width, mlp, count, chosen = sizes

    def weights(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, device=device)).bfloat16().requires_grad_()

    hidden, router = weights(tokens, width), weights(width, count)
    up, down = weights(count, width, 2 * mlp, scale=0.02), weights(count, mlp, width, scale=0.02)

    def forward() -> Tensor:
        shares, ids = (hidden @ router).float().softmax(-1).topk(chosen)
        order = ids.flatten().argsort(stable=True)
        ends = ids.flatten().bincount(minlength=count).cumsum(0).int()
        gate, value = torch._grouped_mm(hidden[order // chosen], up, offs=ends).chunk(2, -1)
        outputs = torch._grouped_mm(torch.nn.functional.silu(gate) * value, down, offs=ends)
        weighted = outputs * shares.flatten()[order, None].bfloat16()
        return torch.zeros_like(hidden).index_add(0, order // chosen, weighted)

    active = 3 * width * mlp * chosen * tokens
    for name, step, each in (
        ("forward", forward, 2),
        ("forward and backward", lambda: forward().float().sum().backward(), 6),
    ):
        taken = milliseconds(step, device)
        record.figure(f"{name}, {tokens} tokens", taken, "ms")
        peak_share(record, f"{name}, share of the peak", each * active, taken)


def decode(device: torch.device, record: Record) -> None:
    """Weights and cached keys and values at 64 rows, in bytes a second (BANDWIDTH_SHARE)."""
    on_gpu = device.type == "cuda"
    width, mlp, heads, kv_heads, _ = QWEN["8B"] if on_gpu else SMALL
    rows, head, context, count = (64, 128, 4096, 8) if on_gpu else (4, 8, 16, 2)
    shapes = ((width, (heads + 2 * kv_heads) * head), (heads * head, width), (width, 2 * mlp), (mlp, width))
    # More layers than the cache on the chip holds.
    weights = [torch.randn(shape, device=device).bfloat16() for _ in range(count) for shape in shapes]
    hidden = [torch.randn(rows, weight.shape[0], device=device).bfloat16() for weight in weights]
    query = torch.randn(rows * kv_heads, heads // kv_heads, head, device=device).bfloat16()
    keys, values = torch.randn(2, rows * kv_heads, context, head, device=device).bfloat16().unbind()

    def products() -> None:
        for row, weight in zip(hidden, weights, strict=True):
            row @ weight

    def attention() -> Tensor:
        return (query @ keys.transpose(1, 2)).softmax(-1) @ values

    for name, step, size in (
        ("weights", products, sum(weight.nbytes for weight in weights)),
        ("keys and values", attention, 2 * keys.nbytes),
        ("one read", lambda: [weight.sum() for weight in weights], sum(weight.nbytes for weight in weights)),
    ):
        record.figure(f"{name}, {rows} rows", size / milliseconds(step, device) / 1e6, "GB/s")


def update(device: torch.device, record: Record) -> None:
    """Updates as of verl's FSDP2 engine on one rank: float32 weights and AdamW, bfloat16 products, CPPO's loss."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    on_gpu = device.type == "cuda"
    (rows, length), vocabulary = ((4, 2048), VOCABULARY) if on_gpu else ((2, 16), 512)
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # the machine may have no other
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "nccl" if on_gpu else "gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1
        )
        model = qwen("0.6B", QWEN["0.6B"][-1] if on_gpu else 2, vocabulary, device)
        parameters = sum(part.numel() for part in model.parameters())
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = init_device_mesh(device.type, (1,))
        for part in (*model.model.layers, model):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
        ids = torch.randint(vocabulary, (rows, length), device=device)
        mu = recorded(rows * length, vocabulary, device)
        advantages = torch.linspace(-1, 1, rows, device=device)[:, None].expand(rows, length).contiguous()
        fused = triton_runs(device)
        taken, masked, loss = [], 0.0, torch.zeros(())
        for _ in range(4 if on_gpu else 2):
            began = time.perf_counter()
            logits = model(input_ids=ids, use_cache=False).logits
            both = logp_and_divergence(
                logits.flatten(0, 1),
                mu,
                measure="tv",
                entropy=True,
                overwrite_logits=True,
                fused=fused,
            )
            del logits
            valid = torch.ones_like(ids, dtype=torch.bool)
            state = [part.view(rows, length) for part in (both.logp, mu.logp, both.divergence)]
            batch = Tokens(state[0], state[1], advantages, valid, state[2])
            decided = get_rule("cppo")(batch, **CPPO)
            loss = -aggregate(decided.objective, valid, "token-mean")
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            masked = 1 - float(decided.keep.mean())  # the device has done all that it was given
            taken.append(time.perf_counter() - began)
        torch.distributed.destroy_process_group()
    record.figure("parameters", parameters, "weights")
    record.figure("loss is not finite", float(not bool(loss.isfinite())), "", at_most=0)
    record.figure("masked", masked, "of the tokens")
    record.figure(f"first update of {rows * length} tokens", taken[0], "s")
    record.figure(f"update of {rows * length} tokens", median(taken[1:]), "s")
    peak_share(record, "update, share of the peak", 6 * parameters * rows * length, 1e3 * median(taken[1:]))
    if on_gpu:
        record.figure("peak allocated", torch.cuda.max_memory_allocated() / 1e9, "GB")
