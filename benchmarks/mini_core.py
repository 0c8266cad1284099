"""Speed of the embedded core, compared with Hugging Face transformers and between rules.

    python benchmarks/mini_core.py [--quick]

sampler_over_hugging_face        `sample` and `generate` on the same weights and prompts: ours gets each prompt once
                                 and the number of copies, theirs the prompts repeated. No token ends a response
                                 (ours gets an end token that does not exist, theirs `eos_token_id=None`): both make
                                 rows x max_response_length tokens. Ours records log-probs, entropies and the top K;
                                 theirs the sampled log-probs, from `output_scores`.
*_update_over_hugging_face       `Trainer.update` under cppo and grpo; Hugging Face: GRPO as one would first write it
                                 (forward, log_softmax, gather, PPO clipping, backward, clip_grad_norm_, AdamW) in the
                                 same minibatches. Ours reads a prompt once for the responses of its group, theirs with
                                 every row. Gradients are compared beforehand.
cppo_update_over_grpo_update     one update under `cppo` (Top-K divergence, position weights, prefix budget) over the
                                 same under `grpo`.
cppo_step_over_without_mismatch  a step under `cppo`, sampling and update, over one that leaves out `mismatch/*`
                                 (`tracking.mismatch=false`); of processor times, since it is small.

Ratios are of speeds, ours over theirs (`cppo_update_over_grpo_update`, `cppo_step_over_*`: of times): medians over
rounds in which all take turns, on one thread. The last line is JSON, see `common.py`. Needs transformers 5, whose
`Qwen3ForCausalLM` is the architecture of the embedded core.
"""

import os
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from common import arguments, finish, in_turn
from torch import Tensor

from cppo_lab.core_records import Resources
from cppo_lab.cores.mini.model import sample
from cppo_lab.cores.mini.tasks import Tokenizer
from cppo_lab.cores.mini.trainer import GradedRollout, Trainer
from cppo_lab.cores.verl.hf_models import as_qwen3
from cppo_lab.spec import MiniRun
from cppo_lab.sweep.compose import compose

AT_MOST = {"cppo_update_over_grpo_update": 1.25, "cppo_step_over_without_mismatch": 1.02}
AT_LEAST = {
    "sampler_over_hugging_face": 5.0,
    "grpo_update_over_hugging_face": 1.5,
    "cppo_update_over_hugging_face": 1.5,
}


class Endless(Tokenizer):
    """The task's tokens without one that ends a response."""

    @property
    def eos(self) -> int:
        return -1


def ours(trainer: Trainer, prompts: Tensor) -> None:
    """A rollout batch for `prompts` [G, P] by our sampler, without an end."""
    spec = trainer.spec
    rollout = sample(
        trainer.model,
        prompts,
        Endless(trainer.tokenizer.modulus, trainer.tokenizer.spellings),
        copies=spec.batch.responses,
        max_response_length=spec.rollout.max_response_length,
        temperature=1.0,
        top_p=1.0,
        generator=trainer.sampling,
        top_k=trainer.top_k,
    )
    assert rollout.lengths.eq(spec.rollout.max_response_length).all()


def theirs(model: Any, trainer: Trainer, prompts: Tensor) -> None:
    """The same by transformers, with the log-probabilities of the sampled tokens."""
    pad = trainer.tokenizer.pad
    rows = prompts.repeat_interleave(trainer.spec.batch.responses, dim=0)
    output = model.generate(
        rows,
        attention_mask=(rows != pad).long(),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=trainer.spec.rollout.max_response_length,
        eos_token_id=None,
        pad_token_id=pad,
        return_dict_in_generate=True,
        output_scores=True,
    )
    model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    assert output.sequences.shape[1] == rows.shape[1] + trainer.spec.rollout.max_response_length


class PlainTrainer:
    """GRPO on a transformers model: the minibatches and the loss of our Trainer."""

    def __init__(self, trainer: Trainer, model: Any) -> None:
        self.spec, self.pad, self.model = trainer.spec, trainer.tokenizer.pad, model.train()
        optim = trainer.spec.optim
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=optim.learning_rate,
            betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
        )

    def update(self, batch: GradedRollout) -> None:
        """One optimiser step per minibatch, groups without a signal left out."""
        rows_per_update = self.spec.batch.minibatch_prompts * self.spec.batch.responses
        for rows in torch.arange(len(batch.keep)).split(rows_per_update):
            signal = rows[batch.keep[rows]]
            if len(signal):
                self.optimizer.zero_grad()
                self.loss(batch, signal).backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.optim.clip_grad_norm)
                self.optimizer.step()

    def loss(self, batch: GradedRollout, rows: Tensor) -> Tensor:
        """Minus the mean over tokens of min(rho A, clip(rho, 1 - low, 1 + high) A)."""
        rollout, rule = batch.rollout.select(rows), self.spec.rule
        assert rule.clip_low is not None and rule.clip_high is not None, "it is grpo"
        prompts, responses, valid = rollout.prompts[rollout.group], rollout.responses, rollout.valid()
        tokens = torch.cat([prompts, responses], dim=1)[:, :-1]
        present = torch.cat([prompts != self.pad, valid], dim=1)[:, :-1]
        logits = self.model(tokens, attention_mask=present.long(), use_cache=False).logits
        logp = logits[:, prompts.shape[1] - 1 :].log_softmax(-1).gather(-1, responses[..., None])[..., 0]
        ratio, advantages = (logp - rollout.logp).exp(), batch.advantages[rows][:, None]
        clipped = ratio.clamp(1 - rule.clip_low, 1 + rule.clip_high)
        objective = torch.minimum(ratio * advantages, clipped * advantages)
        return -(objective * valid).sum() / valid.sum()


def gradient_difference(trainer: Trainer, plain: PlainTrainer, batch: GradedRollout) -> float:
    """Relative difference of the embedding's gradient, on the first rows that have a signal."""
    rows = batch.keep.nonzero()[:32, 0]
    loss = trainer.objective(batch.rollout.select(rows), batch.advantages[rows]).loss
    (mine,) = torch.autograd.grad(loss, trainer.model.embedding.weight)
    (other,) = torch.autograd.grad(plain.loss(batch, rows), plain.model.model.embed_tokens.weight)
    return float((mine - other).norm() / mine.norm())


def measured(folder: Path, rounds: int, warm_steps: int) -> dict[str, float]:
    """The figures."""
    resources = Resources(folder, folder, device="cpu")
    # Speed does not depend on how good the start is.
    start = [f"model.warm_start.steps={warm_steps}", "model.warm_start.target_accuracy=null"]
    runs = {rule: compose([f"rule={rule}", *start]).run for rule in ("grpo", "cppo")}
    trainers = {rule: Trainer(run, resources) for rule, run in runs.items() if isinstance(run, MiniRun)}
    trainers["without"] = Trainer(trainers["cppo"].spec, replace(resources, mismatch=False))
    grpo = trainers["grpo"]
    batch = grpo.collect()
    prompts = batch.rollout.prompts
    model = as_qwen3(grpo.model, grpo.tokenizer.eos).eval()
    plain = PlainTrainer(grpo, as_qwen3(grpo.model, grpo.tokenizer.eos))
    assert (difference := gradient_difference(grpo, plain, batch)) < 1e-3, f"gradients by {difference}"

    def collect() -> None:
        nonlocal batch
        batch = grpo.collect()

    def update(learner: Trainer | PlainTrainer) -> None:
        learner.update(batch)

    learners: dict[str, Trainer | PlainTrainer] = {**trainers, "plain": plain}
    taken = in_turn(
        {
            "sampler": partial(ours, grpo, prompts),
            "generate": partial(theirs, model, grpo, prompts),
            "collect": collect,
            **{name: partial(update, learner) for name, learner in learners.items()},
        },
        rounds,
    )
    wall, cpu = ({name: seconds[clock] for name, seconds in taken.items()} for clock in (0, 1))
    ratios = {
        "sampler_over_hugging_face": wall["generate"] / wall["sampler"],
        "grpo_update_over_hugging_face": wall["plain"] / wall["grpo"],
        "cppo_update_over_hugging_face": wall["plain"] / wall["cppo"],
        "cppo_update_over_grpo_update": wall["cppo"] / wall["grpo"],
        "cppo_step_over_without_mismatch": (cpu["collect"] + cpu["cppo"]) / (cpu["collect"] + cpu["without"]),
    }
    return {name: float(np.median(of_rounds)) for name, of_rounds in ratios.items()}


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "one round behind the one that warms up").quick
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(Path(folder), *((1, 1) if quick else (30, 150)))
    finish(figures, {"*": "x"}, at_most=AT_MOST, at_least=AT_LEAST, quick=quick)


if __name__ == "__main__":
    main()
