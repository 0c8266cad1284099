"""Supervised warm start: the role of the pre-trained checkpoint from which RL begins.

A warm start depends on the model, its seed and the task, so all runs of the same seed share one file. The first run
that needs it creates it, under a lock.
"""

import fcntl
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from cppo_lab.core_records import Doing, say_nothing
from cppo_lab.cores.checkpoint import load_whole, same_form, save_if_possible
from cppo_lab.cores.loop import AdamW
from cppo_lab.cores.mini.model import Transformer
from cppo_lab.cores.mini.tasks import (
    Tokenizer,
    identities,
    make_task,
    sample_training_problems,
    validation_sets,
)
from cppo_lab.errors import say
from cppo_lab.files import open_lock
from cppo_lab.spec import Spec, SyntheticModel, TaskData, WarmStart, fingerprint
from cppo_lab.spec.run import ANNEAL_STEPS

OWN_SHARE = 0.1  # random share of a further spelling's initial embedding; the rest is the first spelling's

RISING_STEPS = 100  # steps of learning-rate warm-up, with a target accuracy
TEST_EVERY, TEST_PROBLEMS = 50, 64  # steps between two measurements of it, and worked examples in each


class _Identity(Spec):
    """Everything that a warm start depends on."""

    model: dict[str, object]
    data: dict[str, object]


def warm_start_file(seeded: SyntheticModel, data: TaskData, folder: Path) -> Path:
    """The file of the warm start of `seeded` on the task of `data` below `folder`.

    Raises ValueError if the seed of the warm start is not set (`SyntheticModel.for_seed`).
    """
    _ = seeded.start_seed
    identity = _Identity(model=seeded.model_dump(mode="json"), data=data.model_dump(mode="json"))
    return folder / f"{seeded.name}-{fingerprint(identity)}.pt"


def load_warm_start(
    seeded: SyntheticModel, data: TaskData, model: Transformer, folder: Path, doing: Doing = say_nothing
) -> str:
    """Load the warm-started weights into `model`, training them first if no run has done so yet.

    An unusable file is reported and created again. Returns their digest. `seeded` has the seed of its warm start
    (`SyntheticModel.for_seed`).
    """
    path = warm_start_file(seeded, data, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open_lock(path.with_suffix(".lock")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            doing("waiting for the warm start of another run")
            fcntl.flock(lock, fcntl.LOCK_EX)
        weights: dict[str, Tensor] | None = None
        if path.exists():
            try:
                weights = load_whole(path)
                if not same_form(weights, model.state_dict()):
                    raise ValueError("it contains the weights of another model")
            except ValueError as error:
                say(f"warm start {path} is ignored and trained again: {error}")
                weights = None
        if weights is None:
            train_warm_start(seeded, data, model, doing)
            weights = model.state_dict()
            save_if_possible(path, weights, f"warm start {path}, which the next run trains again,")
    model.load_state_dict(weights)
    return weights_digest(weights)


def weights_digest(weights: dict[str, Tensor]) -> str:
    """First 12 hex digits of the SHA-256 of all weights, in the order of their names.

    Another processor rounds differently and gets other weights from the same seed; two runs with the same digest
    started from the same policy.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


class NotLearned(ValueError):
    """A warm start that did not reach its accuracy within its steps."""


def train_warm_start(
    seeded: SyntheticModel, data: TaskData, model: Transformer, doing: Doing = say_nothing
) -> None:
    """Train a new `model` in place on noisy worked examples; the validation problems are not among them.

    Raises NotLearned if `warm_start.target_accuracy` is not reached in time.
    """
    settings, task = seeded.warm_start, make_task(data)
    generator = torch.Generator().manual_seed(seeded.start_seed)
    held_out = identities(validation_sets(task))
    optimizer = AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    _tie_spellings(model, task.tokenizer)
    if settings.target_accuracy is None:
        steps = _one_cycle(settings, optimizer)
    else:
        # The same examples without noise for every seed.
        drawn = torch.Generator().manual_seed(data.validation_seed)
        examples = sample_training_problems(task, TEST_PROBLEMS, drawn, held_out)
        worked = examples.prompts, task.noisy_traces(examples, 0.0, drawn)
        steps = _until_learned(seeded, optimizer, lambda: _accuracy(model, *worked, task.tokenizer))
    for progress in steps:
        doing(*progress)
        problems = sample_training_problems(task, settings.batch, generator, held_out)
        responses = task.noisy_traces(problems, settings.step_noise, generator)
        tokens = torch.cat([problems.prompts, responses], dim=1)
        loss = _imitation_loss(model, tokens, responses, task.tokenizer)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _one_cycle(settings: WarmStart, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, int, int]]:
    """The progress before each step of a warm start of fixed length, under OneCycleLR: activity, done, of."""
    # OneCycleLR divides by this share of the steps less one step
    rising = 0.2 if settings.steps == 10 else 0.1
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=settings.steps, pct_start=rising
    )
    for step in range(settings.steps):
        yield "warm start", step, settings.steps
        schedule.step()


def _until_learned(
    seeded: SyntheticModel, optimizer: torch.optim.Optimizer, accuracy: Callable[[], float]
) -> Iterator[tuple[str, int, int]]:
    """The progress before each step of a warm start with a target: activity, done, of.

    The rate rises linearly, is constant until the target is reached, and falls linearly to 0.

    Raises NotLearned when the linear fall no longer fits into the limit.
    """
    settings = seeded.warm_start
    target = settings.target_accuracy
    assert target is not None
    end: int | None = None  # known once the target is reached
    reached = 0.0
    for step in range(settings.steps):
        if end is None and step % TEST_EVERY == 0 and (reached := accuracy()) >= target:
            end = step + ANNEAL_STEPS
        if step == end:
            return
        if end is None and step >= settings.steps - ANNEAL_STEPS:
            raise NotLearned(
                f"the warm start of {seeded.name}, seed {seeded.start_seed}, had {reached:.1%} of the tokens of worked "
                f"examples right after {step} steps, below model.warm_start.target_accuracy={target}: raise "
                f"model.warm_start.steps={settings.steps} or set target_accuracy=null"
            )
        share = min(1.0, (step + 1) / RISING_STEPS) if end is None else (end - step) / ANNEAL_STEPS
        for group in optimizer.param_groups:
            group["lr"] = share * settings.learning_rate
        if end is None:
            yield (
                f"warm start, {100 * reached:.0f} % right (until {100 * target:g} %), step",
                step,
                settings.steps,
            )
        else:
            yield "warm start, annealing, step", step, end


@torch.no_grad()
def _accuracy(model: Transformer, prompts: Tensor, responses: Tensor, tokenizer: Tokenizer) -> float:
    """Share of the tokens of `responses` [N, R] at which the most likely token has the right value."""
    device = next(model.parameters()).device
    read = torch.cat([prompts, responses], dim=1)[:, :-1].to(device)
    guesses = model(read)[:, -responses.shape[1] :].argmax(-1).cpu()
    number = tokenizer.values(responses) >= 0
    same_value = tokenizer.values(guesses) == tokenizer.values(responses)
    return float(torch.where(number, same_value, guesses == responses).float().mean())


@torch.no_grad()
def _tie_spellings(model: Transformer, tokenizer: Tokenizer) -> None:
    """Initialise all spellings of a number close to its first; with one spelling nothing changes.

    A pre-trained model knows synonyms. Learning a thousand of them from scratch would take most of the warm start.
    """
    rows = model.embedding.weight[: tokenizer.operator].unflatten(0, (tokenizer.spellings, tokenizer.modulus))
    rows[1:] = rows[0] + OWN_SHARE * rows[1:]


def _imitation_loss(model: Transformer, tokens: Tensor, responses: Tensor, tokenizer: Tokenizer) -> Tensor:
    """Mean cross-entropy (nats) of `responses` [B, R], the last part of the model's input `tokens` [B, P + R].

    It is the expectation over the spellings of the numbers.
    """
    device = next(model.parameters()).device
    read = tokens[:, :-1].to(device)
    logits = model(read)[:, -responses.shape[1] :]
    logits, targets = logits.flatten(0, 1), responses.to(device).flatten()
    if tokenizer.spellings == 1:
        return F.cross_entropy(logits, targets)
    # The writer draws spellings by a known law. Its expectation in place of the draw has the same gradient on average,
    # and every token then teaches all spellings of its number: a large vocabulary is learned in far fewer steps.
    logp = logits.log_softmax(-1)
    by_spelling = logp[:, : tokenizer.operator].unflatten(1, (tokenizer.spellings, tokenizer.modulus))
    by_value = (by_spelling * tokenizer.spelling_probabilities().to(logp)[:, None]).sum(1)
    values = tokenizer.values(targets)
    number = by_value.gather(1, values.clamp(min=0)[:, None])[:, 0]
    return -torch.where(values >= 0, number, logp.gather(1, targets[:, None])[:, 0]).mean()
