"""Runs that can be exported, made without a trainer: a recorded run, with a checkpoint of verl's own engine."""

import shutil
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from cppo_lab import schema
from cppo_lab.cores.verl.checkpoints import BEST
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose

SCORES = {0: 0.125, 2: 0.5, 4: 0.25}
BEST_STEP = 2


def verl_spec(seed: int = 3) -> RunSpec:
    return compose(["core=verl", "model=tiny_qwen3", "training.t_stop=4", f"seed={seed}"]).run


def record(runs: Path, spec: RunSpec, ends: bool = True) -> Path:
    """The folder of a recorded run: of a sweep, validated at each step of SCORES."""
    folder = runs / spec.run_id
    tags = {schema.sweep_tag("mine"): "cppo w_min=0.8", schema.TAG_CODE_VERSION: "0.1.0+0123456789ab"}
    recorder = Recorder(spec, tags, folder)
    recorder.begin(None)
    names = [schema.validation_metric(name, spec.validation.samples) for name in spec.data.benchmarks]
    mean = schema.validation_metric(schema.MEAN, spec.validation.samples)
    for step in range(5):
        score = SCORES.get(step)
        row = {} if score is None else {mean: score} | {name: score + i / 100 for i, name in enumerate(names)}
        recorder.log(step, {"train/reward": 0.5, **row})
    if ends:
        recorder.finish(Outcome(schema.DONE, 4))
    return folder


def keep(folder: Path, actor: Path) -> None:
    """Make `actor`, verl's folder of weights, the best checkpoint of a run."""
    shutil.copytree(actor, folder / BEST / "actor")
    (folder / BEST / "step").write_text(f"{BEST_STEP}\n")


def sequences(vocabulary: int, length: int = 12) -> Tensor:
    """Token ids [5, length]."""
    return torch.randint(0, vocabulary, (5, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logp(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Log-probabilities [B, S - 1] of each token after the first, in float64."""
    logits = model.double().eval()(tokens).logits[:, :-1]
    return logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]


def loaded(folder: Path) -> PreTrainedModel:
    """As a user loads it; nothing may be missing."""
    model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(found.values()), found
    return model
