"""Batched decoding with a key-value cache; finished rows leave the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from cppo_lab.cores.verl.rollout.sampling import SamplingRule, draw, log_policy


@dataclass(frozen=True)
class Request:
    """One prompt to continue."""

    prompt: Sequence[int]
    max_tokens: int
    stop: frozenset[int]  # the response ends with the first of these tokens, which is part of it
    seed: int | None = None  # None: a fresh one


@dataclass(frozen=True)
class Generation:
    """One response of n tokens; row t of `topk_*` is mu's Top-K in the state that produced token t."""

    tokens: list[int]
    logp: list[float]  # log mu of the tokens; of the untruncated softmax at the sampling temperature
    topk_ids: NDArray[np.int32] | None  # [n, K], descending in probability
    topk_logp: NDArray[np.float32] | None  # [n, K]


class _Record:
    """What was drawn so far: one column per step for the rows still in the batch."""

    def __init__(self, rows: int, steps: int, topk: int) -> None:
        self.length = np.zeros(rows, np.int64)
        self.tokens = np.zeros((rows, steps), np.int64)
        self.logp = np.zeros((rows, steps), np.float32)
        self.topk_ids = np.zeros((rows, steps, topk), np.int32)
        self.topk_logp = np.zeros((rows, steps, topk), np.float32)

    def add(self, rows: NDArray[np.int64], step: int, tokens: Tensor, log_mu: Tensor) -> None:
        self.length[rows] = step + 1
        self.tokens[rows, step] = tokens.cpu().numpy()
        logp = log_mu.gather(-1, tokens[:, None]).squeeze(-1).cpu().numpy()
        if not np.isfinite(logp).all():
            raise FloatingPointError(
                f"the model gave log-probabilities {logp} at step {step}: its weights diverged"
            )
        self.logp[rows, step] = logp
        topk = self.topk_ids.shape[-1]
        if topk:
            values, ids = log_mu.topk(topk, -1)
            self.topk_ids[rows, step] = ids.cpu().numpy()
            self.topk_logp[rows, step] = values.cpu().numpy()

    def generation(self, row: int) -> Generation:
        n, topk = self.length[row], self.topk_ids.shape[-1]
        return Generation(
            self.tokens[row, :n].tolist(),
            self.logp[row, :n].tolist(),
            self.topk_ids[row, :n].copy() if topk else None,
            self.topk_logp[row, :n].copy() if topk else None,
        )


def _left_padded(requests: Sequence[Request], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts as [B, P] token ids (0 where padded) and their mask [B, P]."""
    width = max(len(request.prompt) for request in requests)
    ids = torch.zeros(len(requests), width, dtype=torch.long)
    mask = torch.zeros(len(requests), width, dtype=torch.long)
    for row, request in enumerate(requests):
        ids[row, width - len(request.prompt) :] = torch.tensor(request.prompt)
        mask[row, width - len(request.prompt) :] = 1
    return ids.to(device), mask.to(device)


def _uniforms(requests: Sequence[Request]) -> list[NDArray[np.float64]]:
    """The random numbers of every request, drawn from a generator of its own."""
    return [np.random.default_rng(request.seed).random(request.max_tokens) for request in requests]


@torch.inference_mode()
def decode(
    model: PreTrainedModel, requests: Sequence[Request], rule: SamplingRule, topk: int
) -> list[Generation]:
    """Continues every prompt until a stop token or its own `max_tokens`.

    `topk`: tokens of mu kept per step, 0 for none, the vocabulary's size for all. Probabilities are float32 whatever
    the model's type.

    Raises ValueError for an empty prompt or a limit below one token, FloatingPointError when the model's
    probabilities are not finite.
    """
    if any(not request.prompt or request.max_tokens < 1 for request in requests):
        raise ValueError("every request needs a prompt of at least one token and max_tokens >= 1")
    uniforms = _uniforms(requests)
    limits = np.array([request.max_tokens for request in requests])
    stops = torch.zeros(len(requests), model.config.vocab_size, dtype=torch.bool)
    for row, request in enumerate(requests):
        stops[row, list(request.stop)] = True
    record = _Record(len(requests), int(limits.max()), topk)
    ids, mask = _left_padded(requests, model.device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    rows = np.arange(len(requests))
    cache = DynamicCache(config=model.config)
    for step in range(int(limits.max())):
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        log_mu = log_policy(logits, rule)
        if not log_mu.amax(-1).isfinite().all():
            raise FloatingPointError("the model's probabilities are not finite: its weights diverged")
        tokens = draw(log_mu, rule, torch.tensor([uniforms[row][step] for row in rows], device=logits.device))
        record.add(rows, step, tokens, log_mu)
        running = ~stops[rows, tokens.cpu()].numpy() & (step + 1 < limits[rows])
        if not running.any():
            break
        positions = positions[:, -1:] + 1
        if not running.all():
            keep = torch.from_numpy(running.nonzero()[0]).to(logits.device)
            cache.batch_select_indices(keep)
            rows, tokens, mask, positions = rows[running], tokens[keep], mask[keep], positions[keep]
        ids, mask = tokens[:, None], torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
    return [record.generation(row) for row in range(len(requests))]
