"""What training several seeds in one process by stacked parameters could gain on this machine.

The upper bounds give one set of weights the rows of `SEEDS` runs: no stacking can be faster than that. The
prototype is the real thing, forward and backward of `SEEDS` models by `torch.func.stack_module_state` and `vmap`,
against the same models one after the other; its loss is the mean log-probability of the inputs.
"""

import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from cppo_lab.cores.mini.model import Transformer

SEEDS = 3


def _loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return -logits.log_softmax(-1).gather(-1, tokens[..., None]).mean()


def prototype(
    like: Transformer, rows: int, length: int
) -> tuple[Callable[[], list[Tensor]], Callable[[], list[Tensor]]]:
    """Two ways to the losses [SEEDS] and gradients of SEEDS models on `rows` sequences each: stacked, separate.

    Both return the gradient of the embedding per model, for comparison.
    """
    vocabulary = like.embedding.num_embeddings
    models = [Transformer(like.arch, vocabulary, like.context) for _ in range(SEEDS)]
    parameters, buffers = stack_module_state(models)
    tokens = torch.randint(vocabulary, (SEEDS, rows, length), generator=torch.Generator().manual_seed(0))
    present = torch.ones_like(tokens, dtype=torch.bool)

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, real: Tensor) -> Tensor:
        return _loss(functional_call(models[0], (parameters, buffers), (x, real)), x)

    def stacked() -> list[Tensor]:
        for parameter in parameters.values():
            parameter.grad = None
        vmap(one)(parameters, buffers, tokens, present).sum().backward()
        return list(parameters["embedding.weight"].grad)

    def separate() -> list[Tensor]:
        for model, x, real in zip(models, tokens, present, strict=True):
            model.zero_grad()
            _loss(model(x, real), x).backward()
        return [model.embedding.weight.grad for model in models]

    return stacked, separate


def stacked_seconds(
    like: Transformer, rows: int, length: int, repeats: int
) -> list[tuple[float, float]] | None:
    """Seconds of the stacked and of the separate way, in turn; None if PyTorch cannot stack this model.

    Raises ValueError if the two ways' gradients differ.
    """
    stacked, separate = prototype(like, rows, length)
    with warnings.catch_warnings():
        # PyTorch says that its attention kernel has no batching rule and runs model by model; the rest is batched.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        try:
            pairs = list(zip(stacked(), separate(), strict=True))
        except (NotImplementedError, RuntimeError):
            return None
        if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in pairs):
            raise ValueError("stacked and separate gradients differ")
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            stacked()
            between = time.perf_counter()
            separate()
            seconds.append((between - started, time.perf_counter() - between))
    return seconds
