"""Sampling with a preallocated key-value cache; every token comes with the policy's own log-probabilities."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cppo_lab.cores.mini.model import KVCache, Transformer
from cppo_lab.cores.mini.tasks.tokenizer import Tokenizer


@dataclass(frozen=True)
class Rollout:
    """B responses of at most T tokens, right-padded; `topk_*` hold the policy's K most likely tokens."""

    prompts: Tensor  # [B, P] token ids
    responses: Tensor  # [B, T] token ids
    lengths: Tensor  # [B] tokens, the end token included
    logp: Tensor | None  # [B, T] log mu(y_t), of the untruncated softmax at the sampling temperature
    topk_ids: Tensor | None  # [B, T, K]
    topk_logp: Tensor | None  # [B, T, K]
    entropy: Tensor | None  # [B, T] nats

    def valid(self) -> Tensor:
        """True at real response tokens [B, T]."""
        position = torch.arange(self.responses.shape[1], device=self.responses.device)
        return position < self.lengths[:, None]

    def sequences(self, pad: int) -> tuple[Tensor, Tensor]:
        """Inputs of a training forward: tokens [B, P + T - 1], and where they are real [B, P + T - 1].

        A sampled token is real whatever its id: an unskilled policy may well sample the padding symbol.
        """
        tokens = torch.cat([self.prompts, self.responses], dim=1)[:, :-1]
        present = torch.cat([self.prompts != pad, self.valid()], dim=1)[:, :-1]
        return tokens, present

    def select(self, index: Tensor) -> "Rollout":
        """The responses at `index`."""
        fields = (getattr(self, name) for name in self.__dataclass_fields__)
        return Rollout(*(None if field is None else field[index] for field in fields))


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches `top_p`; the rest get probability 0 [B, V]."""
    ordered, order = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= top_p, 0.0)
    return torch.zeros_like(probabilities).scatter(-1, order, ordered)


@torch.no_grad()
def sample(
    model: Transformer,
    prompts: Tensor,
    tokenizer: Tokenizer,
    *,
    max_response_length: int,
    temperature: float,
    top_p: float,
    generator: torch.Generator,
    top_k: int = 0,
) -> Rollout:
    """Sample one response per prompt [B, P].

    `top_k` > 0 records log-probabilities, entropies and the K most likely tokens of the policy, all of the
    untruncated softmax at `temperature`; 0 records nothing but tokens (validation).
    """
    batch, prompt_length = prompts.shape
    device, horizon = prompts.device, max_response_length
    cache = KVCache(model.arch, batch, prompt_length + horizon, device)
    present = torch.ones(batch, prompt_length + horizon, dtype=torch.bool, device=device)
    present[:, :prompt_length] = prompts != tokenizer.pad
    responses = torch.full((batch, horizon), tokenizer.pad, device=device)
    lengths = torch.full((batch,), horizon, device=device)
    running = torch.ones(batch, dtype=torch.bool, device=device)
    recorded = _Record(batch, horizon, top_k, device) if top_k else None

    tokens = prompts
    for position in range(horizon):
        logits = model(tokens, present[:, : cache.length + tokens.shape[1]], cache)[:, -1] / temperature
        logp = logits.log_softmax(-1)
        weights = logp.exp() if top_p == 1 else nucleus(logp.exp(), top_p)
        # Exponential races: argmax of p / Exp(1) is a draw from p, without multinomial's per-row set-up.
        race = torch.empty_like(weights).exponential_(generator=generator)
        token = (weights / race).argmax(-1)
        responses[:, position] = torch.where(running, token, tokenizer.pad)
        if recorded is not None:
            recorded.write(position, logp, token, top_k)
        ended = running & (token == tokenizer.eos)
        lengths[ended] = position + 1
        running &= ~ended
        if not running.any():
            break
        # A finished row goes on in the batch; its later tokens are padding and never read.
        tokens = token[:, None]

    if recorded is None:
        return Rollout(prompts, responses, lengths, None, None, None, None)
    return Rollout(
        prompts,
        responses,
        lengths,
        recorded.logp,
        recorded.topk_ids,
        recorded.topk_logp,
        recorded.entropy,
    )


class _Record:
    """Buffers for what the sampling policy said of each token."""

    def __init__(self, batch: int, horizon: int, top_k: int, device: torch.device) -> None:
        self.logp = torch.zeros(batch, horizon, device=device)
        self.entropy = torch.zeros(batch, horizon, device=device)
        self.topk_ids = torch.zeros(batch, horizon, top_k, dtype=torch.long, device=device)
        self.topk_logp = torch.full((batch, horizon, top_k), float("-inf"), device=device)

    def write(self, position: int, logp: Tensor, token: Tensor, top_k: int) -> None:
        self.logp[:, position] = logp.gather(-1, token[:, None])[:, 0]
        self.entropy[:, position] = -(logp.exp() * logp).sum(-1)
        self.topk_logp[:, position], self.topk_ids[:, position] = logp.topk(top_k, dim=-1)
