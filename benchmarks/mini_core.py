"""Speed of the embedded core, compared with Hugging Face transformers, with the machine's peak, and between rules.

    python benchmarks/mini_core.py [--quick]

sampled_tokens_per_second        `Trainer.collect`: problems, sampling up to the end token, recording, grading.
sampler_*, hugging_face_*        `sample` and `generate` on the same weights and prompts: ours gets each prompt once
                                 and the number of copies, theirs the prompts repeated. No token ends a response
                                 (ours gets an end token that does not exist, theirs `eos_token_id=None`): both make
                                 rows x max_response_length tokens. Ours records log-probs, entropies and the top K;
                                 theirs the sampled log-probs, from `output_scores`. `_bare`: neither records.
trained_tokens_per_second*       response tokens through `Trainer.update` under cppo and grpo; Hugging Face: forward,
                                 log_softmax, gather, PPO clipping, backward, clip_grad_norm_, AdamW (`_fused`: with
                                 fused=True), in the same minibatches. Ours reads a prompt once for the responses of
                                 its group, theirs with every row. Logits and gradients are compared beforehand.
cppo_update_over_grpo_update     one update under `cppo` (Top-K divergence, position weights, prefix budget) over the
                                 same under `grpo`.
cppo_step_over_without_mismatch  a step under `cppo`, sampling and update, over one that leaves out `mismatch/*`
                                 (`tracking.mismatch=false`); of processor times, since it is small.
training_share_of_gemm           training_gflops, the useful work of `Trainer.update` under cppo, over gemm_gflops, the
                                 machine's matrix-product rate. A prompt counts once per group, as it is read: see
                                 `baselines/machine.py`.
stacking_upper_bound_*           three times the prompts through one set of weights, speed per token over that of one
                                 time the prompts: what stacking the parameters of three seeds can gain at most.
stacked_update_speedup           forward and backward of three models one after the other over all three by
                                 stack_module_state and vmap; null if PyTorch cannot stack the model.

Ratios are of speeds, ours over theirs (`cppo_update_over_*`, `cppo_step_over_*`: of times), and like the speeds medians
over rounds in which all take turns, on one thread. The last line is JSON, see `summary/form.py`. The
figures against Hugging Face need transformers 5 (`pip install -c constraints-cpu.txt -e '.[dev]'`).
"""

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from baselines import machine, stacking
from summary.form import result

from cppo_lab.cores.base import Resources
from cppo_lab.cores.mini.sampler import sample
from cppo_lab.cores.mini.tasks.tokenizer import Tokenizer
from cppo_lab.cores.mini.trainer import GradedRollout, Trainer
from cppo_lab.sweep.compose import compose

hugging_face = None
if importlib.util.find_spec("transformers"):
    from baselines import hugging_face

    from cppo_lab.cores.verl.export_hf import as_qwen3

AT_MOST = {"cppo_update_over_grpo_update": 1.25, "cppo_step_over_without_mismatch": 1.02}
AT_LEAST = {
    "sampler_over_hugging_face": 5.0,
    "grpo_update_over_hugging_face": 1.5,
    "cppo_update_over_hugging_face": 1.5,
}
WITHOUT = "cppo_without_mismatch"
NO_TRANSFORMERS = "no transformers: pip install -c constraints-cpu.txt -e '.[dev]'"


class Endless(Tokenizer):
    """The task's tokens without one that ends a response."""

    @property
    def eos(self) -> int:
        return -1


def timed(step: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def sampling_steps(trainer: Trainer, prompts: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Ways to sample a rollout batch for `prompts` [G, P] without an end."""
    tokenizer = Endless(trainer.tokenizer.modulus, trainer.tokenizer.spellings)
    new_tokens, copies = trainer.spec.rollout.max_response_length, trainer.spec.batch.responses
    top_k = trainer.objective.top_k

    def ours(prompts: torch.Tensor, top_k: int) -> None:
        rollout = sample(
            trainer.model,
            prompts,
            tokenizer,
            copies=copies,
            max_response_length=new_tokens,
            temperature=1.0,
            top_p=1.0,
            generator=trainer.sampling,
            top_k=top_k,
        )
        assert rollout.responses.shape == (copies * len(prompts), new_tokens)
        assert rollout.lengths.eq(new_tokens).all()

    steps: dict[str, Callable[[], object]] = {
        "sampler": lambda: ours(prompts, top_k),
        "sampler_bare": lambda: ours(prompts, 0),
        "sampler_wide": lambda: ours(prompts.repeat(stacking.SEEDS, 1), top_k),
    }
    if hugging_face is not None:
        model = as_qwen3(trainer.model, trainer.tokenizer).eval()
        difference = hugging_face.logit_difference(trainer.model, model, torch.Generator().manual_seed(0))
        assert difference < 1e-4, f"logits differ by {difference}"

        rows = prompts.repeat_interleave(copies, dim=0)

        def theirs(recorded: bool) -> None:
            responses = hugging_face.generate(model, rows, tokenizer.pad, new_tokens, recorded)
            assert responses.shape == (len(rows), new_tokens)

        steps |= {"hugging_face": lambda: theirs(True), "hugging_face_bare": lambda: theirs(False)}
    return steps


def updates(
    trainers: dict[str, Trainer], batch: GradedRollout
) -> dict[str, Callable[[GradedRollout], object]]:
    """Ways to train on a batch."""
    steps: dict[str, Callable[[GradedRollout], object]] = {name: t.update for name, t in trainers.items()}
    if hugging_face is not None:
        plain, fused = (hugging_face.PlainTrainer(trainers["grpo"], fused) for fused in (False, True))
        difference = hugging_face.gradient_difference(trainers["grpo"], plain, batch)
        assert difference < 1e-3, f"gradients differ by {difference}"
        steps |= {"hugging_face": plain.update, "hugging_face_fused": fused.update}
    return steps


class Rounds:
    """Everything measured, one number per round and name; all take turns in a round."""

    def __init__(self, trainers: dict[str, Trainer], wide: Trainer) -> None:
        self.trainers, self.wide = trainers, wide
        batch = trainers["grpo"].collect()
        self.sampling = sampling_steps(trainers["grpo"], batch.rollout.prompts)
        self.training = updates(trainers, batch)
        self.made = batch.rollout.responses.numel()  # tokens of one endless sampling
        self.length = batch.rollout.prompts.shape[1] + int(batch.rollout.lengths.max()) - 1
        self.speeds: dict[str, list[float]] = {}  # tokens or FLOPs per second

    def run(self, repeats: int) -> None:
        """`repeats` rounds after one that warms caches up."""
        for repeat in range(repeats + 1):
            if repeat == 1:
                self.speeds = {}
            self._round()

    def _round(self) -> None:
        speeds: dict[str, float] = {}
        for name, step in self.sampling.items():
            speeds[name] = self.made / timed(step)
        speeds["sampler_wide"] *= stacking.SEEDS
        started, began = time.perf_counter(), time.process_time()
        batch = self.trainers["grpo"].collect()
        sampling = time.process_time() - began
        speeds["collect"] = float(batch.rollout.lengths.sum()) / (time.perf_counter() - started)
        for name, update in self.training.items():
            began = time.process_time()
            seconds = timed(lambda update=update: update(batch))
            speeds[f"step_{name}"] = trained_tokens(batch) / (sampling + time.process_time() - began)
            speeds[f"train_{name}"] = trained_tokens(batch) / seconds
            if name == "cppo":
                speeds["flops"] = machine.useful_flops(self.trainers[name], batch) / seconds
        wide_batch = self.wide.collect()
        speeds["train_wide"] = trained_tokens(wide_batch) / timed(lambda: self.wide.update(wide_batch))
        speeds["gemm"] = machine.gemm_flops_per_second()
        for name, speed in speeds.items():
            self.speeds.setdefault(name, []).append(speed)

    def speed(self, name: str) -> float | None:
        """Median speed; None if it was not measured."""
        return statistics.median(self.speeds[name]) if name in self.speeds else None

    def ratio(self, ours: str, theirs: str) -> float | None:
        """Median over rounds of the ratio of two speeds; None if either was not measured."""
        if ours not in self.speeds or theirs not in self.speeds:
            return None
        pairs = zip(self.speeds[ours], self.speeds[theirs], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def stacked_speedup(self, repeats: int) -> float | None:
        """Speed of stacked models over separate ones; None if PyTorch cannot stack them."""
        batch = self.trainers["grpo"].spec.batch
        rows = batch.minibatch_prompts * batch.responses
        seconds = stacking.stacked_seconds(self.trainers["grpo"].model, rows, self.length, repeats)
        return None if seconds is None else statistics.median(b / a for a, b in seconds)


def trained_tokens(batch: GradedRollout) -> float:
    """Response tokens that take part in the update."""
    return float(batch.rollout.lengths[batch.keep].sum())


def measure(folder: Path, repeats: int, warm_steps: int) -> dict[str, float | None]:
    """All figures."""
    resources = Resources(folder, folder, device="cpu")
    # Speed does not depend on how good the start is.
    start = [f"model.warm_start.steps={warm_steps}", "model.warm_start.target_accuracy=null"]
    trainers = {rule: Trainer(compose([f"rule={rule}", *start]).run, resources) for rule in ("grpo", "cppo")}
    trainers[WITHOUT] = Trainer(trainers["cppo"].spec, replace(resources, mismatch=False))
    shape = trainers["grpo"].spec.batch
    wide = [
        f"batch.{name}={stacking.SEEDS * getattr(shape, name)}" for name in ("prompts", "minibatch_prompts")
    ]
    rounds = Rounds(trainers, Trainer(compose(["rule=grpo", *start, *wide]).run, resources))
    rounds.run(repeats)
    speed, ratio = rounds.speed, rounds.ratio
    gemm = max(rounds.speeds["gemm"])
    return {
        "sampled_tokens_per_second": speed("collect"),
        "sampler_tokens_per_second": speed("sampler"),
        "sampler_bare_tokens_per_second": speed("sampler_bare"),
        "hugging_face_tokens_per_second": speed("hugging_face"),
        "hugging_face_bare_tokens_per_second": speed("hugging_face_bare"),
        "sampler_over_hugging_face": ratio("sampler", "hugging_face"),
        "sampler_bare_over_hugging_face_bare": ratio("sampler_bare", "hugging_face_bare"),
        "trained_tokens_per_second": speed("train_cppo"),
        "trained_tokens_per_second_grpo": speed("train_grpo"),
        "trained_tokens_per_second_hugging_face": speed("train_hugging_face"),
        "trained_tokens_per_second_hugging_face_fused": speed("train_hugging_face_fused"),
        "grpo_update_over_hugging_face": ratio("train_grpo", "train_hugging_face"),
        "cppo_update_over_hugging_face": ratio("train_cppo", "train_hugging_face"),
        "grpo_update_over_hugging_face_fused": ratio("train_grpo", "train_hugging_face_fused"),
        "cppo_update_over_hugging_face_fused": ratio("train_cppo", "train_hugging_face_fused"),
        "cppo_update_over_grpo_update": ratio("train_grpo", "train_cppo"),
        "cppo_step_over_without_mismatch": ratio(f"step_{WITHOUT}", "step_cppo"),
        "gemm_gflops": gemm / 1e9,
        "training_gflops": statistics.median(rounds.speeds["flops"]) / 1e9,
        "training_share_of_gemm": statistics.median(rounds.speeds["flops"]) / gemm,
        "stacking_upper_bound_rollout": ratio("sampler_wide", "sampler"),
        "stacking_upper_bound_update": ratio("train_wide", "train_grpo"),
        "stacked_update_speedup": rounds.stacked_speedup(3 * repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round behind the one that warms up")
    quick = parser.parse_args().quick
    if hugging_face is None:
        print(NO_TRANSFORMERS, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), *((1, 20) if quick else (30, 150)))
    units = {"*_tokens_per_second*": "tokens/s", "*_gflops": "GFLOP/s", "*_share_*": "", "*": "x"}
    absent = {"stacked_*": "PyTorch cannot stack the model", "*hugging_face*": "no transformers"}
    print(
        result(
            "mini_core", figures, units, at_most=AT_MOST, at_least=AT_LEAST, absent=absent, quick=quick
        ).line()
    )


if __name__ == "__main__":
    main()
