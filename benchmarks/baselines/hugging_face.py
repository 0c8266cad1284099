"""What `mini_core.py` compares with: the same model, weights and batches through Hugging Face transformers.

`Qwen3ForCausalLM` is the architecture of the embedded core; its attention is PyTorch's
`scaled_dot_product_attention`, its default. Importing this module needs the extra `verl`.
"""

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from cppo_lab.cores.mini.model import Transformer
from cppo_lab.cores.mini.trainer import GradedRollout, Trainer
from cppo_lab.cores.verl.export_hf import as_qwen3


@torch.no_grad()
def logit_difference(ours: Transformer, theirs: Qwen3ForCausalLM, generator: torch.Generator) -> float:
    """Largest difference between the two models' logits at the real positions of random left-padded rows."""
    rows, length = 32, ours.context
    tokens = torch.randint(ours.embedding.num_embeddings, (rows, length), generator=generator)
    padding = torch.randint(length // 2, (rows, 1), generator=generator)
    present = torch.arange(length) >= padding
    difference = ours(tokens, present) - theirs(tokens, attention_mask=present.long()).logits
    return float(difference[present].abs().max())


def generate(theirs: Qwen3ForCausalLM, prompts: Tensor, pad: int, new_tokens: int, recorded: bool) -> Tensor:
    """Responses [B, T] of exactly `new_tokens` tokens: no token ends one.

    `recorded` adds the log-probabilities of the sampled tokens, from the scores that `generate` keeps.
    """
    output = theirs.generate(
        prompts,
        attention_mask=(prompts != pad).long(),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new_tokens,
        eos_token_id=None,
        pad_token_id=pad,
        return_dict_in_generate=True,
        output_scores=recorded,
    )
    if recorded:
        theirs.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    return output.sequences[:, prompts.shape[1] :]


class PlainTrainer:
    """GRPO on a transformers model as one would first write it: the minibatches and the loss of our Trainer."""

    def __init__(self, ours: Trainer, fused: bool) -> None:
        self.spec, self.pad = ours.spec, ours.tokenizer.pad
        self.model = as_qwen3(ours.model, ours.tokenizer).train()
        optim = ours.spec.optim
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=optim.learning_rate,
            betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
            fused=fused or None,
        )

    def update(self, batch: GradedRollout) -> None:
        """One optimiser step per minibatch, groups without a signal left out."""
        rows_per_update = self.spec.batch.minibatch_prompts * self.spec.batch.responses
        for rows in torch.arange(len(batch.keep)).split(rows_per_update):
            kept = rows[batch.keep[rows]]
            if len(kept):
                loss = self.loss(batch, kept)
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.optim.clip_grad_norm)
                self.optimizer.step()

    def loss(self, batch: GradedRollout, rows: Tensor) -> Tensor:
        """Minus the mean over tokens of min(rho A, clip(rho, 1 - low, 1 + high) A)."""
        rollout, rule = batch.rollout.select(rows), self.spec.rule
        prompts, responses, valid = rollout.prompts[rollout.group], rollout.responses, rollout.valid()
        tokens = torch.cat([prompts, responses], dim=1)[:, :-1]
        present = torch.cat([prompts != self.pad, valid], dim=1)[:, :-1]
        logits = self.model(tokens, attention_mask=present.long(), use_cache=False).logits
        logp = logits[:, prompts.shape[1] - 1 :].log_softmax(-1)
        logp = logp.gather(-1, responses[..., None])[..., 0]
        ratio = (logp - rollout.logp).exp()
        clipped = ratio.clamp(1 - rule.clip_low, 1 + rule.clip_high)
        advantages = batch.advantages[rows][:, None]
        objective = torch.minimum(ratio * advantages, clipped * advantages)
        return -(objective * valid).sum() / valid.sum()


def gradient_difference(ours: Trainer, theirs: PlainTrainer, batch: GradedRollout) -> float:
    """Relative difference of the embedding's gradient, ours and theirs, on the first rows that have a signal."""
    rows = batch.keep.nonzero()[:32, 0]
    loss = ours.objective(batch.rollout.select(rows), batch.advantages[rows]).loss
    (mine,) = torch.autograd.grad(loss, ours.model.embedding.weight)
    (plain,) = torch.autograd.grad(theirs.loss(batch, rows), theirs.model.model.embed_tokens.weight)
    return float((mine - plain).norm() / mine.norm())
