"""Compares the losses of other suites with ours on golden batches: does their DPPO equal our DPPO?

    python -m cppo_lab.testing.across trl                     # 0: every rule is equal; 1: a rule differs; 2: cannot run
    python -m cppo_lab.testing.across trl --csv FILE.csv      # and puts its rows into FILE.csv
    python -m cppo_lab.testing.across --matrix FILE.csv       # the table rule x suite, in Markdown

A suite is a black box: it gets logits, tokens, log mu, advantages and masks, and gives the loss of each
micro-batch as its trainer sums them, through its masking, padding and aggregation. We compare the sum and its
gradient in the logits. Where they differ, a grid of normalisations, clips and caps on our side is searched, fewest
changes first, for a point that makes all batches equal; else the first token that differs is described. `suites.json`
has our rules with their constants (`cases`), and what a suite calls them.

Needs torch, numpy and this package, so that it runs in the environment of any suite.
"""

import argparse
import csv
import importlib.abc
import importlib.machinery
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from cppo_lab.errors import UserError, message, one_line, unknown
from cppo_lab.maths.divergence import binary
from cppo_lab.maths.rules import AGGREGATIONS, aggregate, get_rule
from cppo_lab.maths.tokens import Tokens
from cppo_lab.plugins import load
from cppo_lab.rules import rule_of

TOLERANCE = 1e-4  # relative, of the loss and of each token's gradient: the suites compute in float32
FLOOR = 1e-6  # of gradients, of which a batch's largest is about 0.1: less is rounding


# Golden batches.


class Batch(NamedTuple):
    """What a trainer has for an optimiser step. B responses of up to T tokens, V tokens in the vocabulary.

    logits: [B, T, V] float32, before the temperature; the only field with a gradient.
    tokens: [B, T] sampled ids. Like every other value, arbitrary at padding.
    rollout_logp: [B, T] log mu at the temperature, or None on policy: then mu is pi.
    advantages: [B], per response.
    valid: [B, T] bool, right-padded; a response may be empty (filtered out because it was cut off).
    temperature: of sampling.
    parts: micro-batches, of B / parts rows each.
    updates: optimiser steps that share a rollout; the others have as many tokens as this step.
    """

    logits: Tensor
    tokens: Tensor
    rollout_logp: Tensor | None
    advantages: Tensor
    valid: Tensor
    temperature: float = 1.0
    parts: int = 1
    updates: int = 1

    def micro(self) -> "Iterator[Batch]":
        """The micro-batches, each of a single part."""
        rows = len(self.tokens) // self.parts
        for first in range(0, len(self.tokens), rows):
            values: list[Any] = [part if part is None else part[first : first + rows] for part in self[:5]]
            yield self._replace(**dict(zip(self._fields, values, strict=False)), parts=1)

    def logp(self, temperature: float | None = None) -> Tensor:
        """[B, T] log pi of the tokens, at the batch's temperature or another."""
        logp = (self.logits / (temperature or self.temperature)).log_softmax(-1)
        return logp.gather(-1, self.tokens[..., None])[..., 0]

    def old_logp(self, logp: Tensor) -> Tensor:
        """[B, T] log mu: as recorded, or `logp` on policy."""
        return logp.detach() if self.rollout_logp is None else self.rollout_logp

    @property
    def token_advantages(self) -> Tensor:
        """[B, T]: the response's at each of its tokens."""
        return self.advantages[:, None].expand_as(self.tokens)


@cache
def golden() -> Mapping[str, Batch]:
    """The batches by name: B = 4, T = 7, V = 8, from fixed seeds."""

    def batch(seed: int, drift: float, lengths: Sequence[int], **given: Any) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        logits, tokens = (
            1.5 * torch.randn(4, 7, 8, generator=generator),
            torch.arange(28).reshape(4, 7) * 5 % 8,
        )
        valid = torch.arange(7) < torch.tensor(lengths)[:, None]
        new = Batch(logits, tokens, None, torch.tensor([1.2, -0.8, 0.5, -1.5]), valid, **given)
        noise = drift * torch.randn(4, 7, generator=generator)
        return new._replace(rollout_logp=(new.logp() - noise).clamp_max(-0.01))

    extreme = batch(3, 0.3, (7, 6, 3, 4))
    assert extreme.rollout_logp is not None
    extreme.rollout_logp[:2, 2] = extreme.logp()[:2, 2] - 22  # log rho = 22, once for each sign of A
    return {
        "near": batch(0, 0.3, (7, 5, 4, 2)),
        "far": batch(1, 2.0, (6, 7, 3, 5)),
        "empty": batch(2, 0.3, (1, 5, 0, 3)),
        "extreme": extreme,
        "split": batch(4, 0.3, (7, 6, 2, 1), parts=2),
        "split_empty": batch(5, 0.3, (7, 0, 2, 1), parts=2),
        "updates": batch(6, 0.3, (7, 5, 4, 2), parts=2, updates=2),
        "temperature": batch(7, 0.3, (7, 5, 4, 2), temperature=0.6),
        "on_policy": batch(8, 0.0, (7, 5, 4, 2), temperature=0.6)._replace(rollout_logp=None),
    }


# The other suites as black boxes: each function only calls a suite's code.
#
# A function takes a `Batch` and the suite's settings from `suites.json`, and yields the loss of each micro-batch,
# scaled as the suite's trainer sums them before it steps; a loss without a gradient has gone backward already. What the
# trainer does outside of what is called is done here, and named. The temperature is divided out here, except in TRL,
# OpenRLHF, slime and open-instruct.

Losses = Callable[..., Iterator[Tensor]]


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules of these names where Python finds no others: imported by a suite, and not used by its losses."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = names

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        empty = any(
            f"{name}.".startswith(f"{absent}.") or absent.startswith(f"{name}.") for absent in self.names
        )
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if empty else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return mock.MagicMock(name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def suite(name: str, absent: Iterable[str]) -> Losses:
    """The function of a suite, once what it calls can be imported; `absent`: empty modules, also parts of the suite."""
    package = name.replace("-", "_")
    parts = {module for module in absent if module.startswith(f"{package}.")}
    sys.modules.update({part: mock.MagicMock(name=part) for part in parts})
    sys.meta_path.append(_Absent({*absent} - parts))
    torch.compiler.set_stance("force_eager")  # some compile their losses; no compiler is needed here
    return SUITES[name]


def _of(name: str) -> Any:
    """A part of the suite, `package.module:name`."""
    return load(name, "part of the suite")


def _after_prompt(values: Tensor, prompt: float = 0) -> Tensor:
    """[B, T, ...] -> [B, 1 + T, ...], with a prompt of one token."""
    return torch.cat([torch.full_like(values[:, :1], prompt), values], 1)


def _verl(batch: Batch, *, loss_mode: str, **settings: Any) -> Iterator[Tensor]:
    """`ppo_loss` of its engine workers, which also puts the responses without padding back into rows."""
    policy = _of("verl.workers.config:PolicyLossConfig")(loss_mode=loss_mode)
    config = _of("verl.workers.config:ActorConfig")(policy_loss=policy, **settings)
    for part in batch.micro():
        logits = part.logits / part.temperature
        logp = _of("verl.utils.torch_functional:logprobs_from_logits")(logits, part.tokens)
        fields = {
            "prompts": torch.zeros_like(part.tokens[:, :1]),
            "responses": part.tokens,
            "attention_mask": _after_prompt(part.valid.long(), 1),
            "response_mask": part.valid.long(),
            "old_log_probs": part.old_logp(logp),
            "advantages": part.token_advantages,
        }
        data = _of("tensordict:TensorDict")(fields, batch_size=[len(logp)])
        whole = {"batch_num_tokens": batch.valid.sum().item(), "global_batch_size": len(batch.tokens)}
        _of("verl.utils.tensordict_utils:assign_non_tensor")(data, dp_size=1, **whole)
        # An output scores the token after its own, so the output at a row's last token is not used.
        outputs = _one_longer(logp)[_after_prompt(part.valid, 1)]
        yield _of("verl.workers.utils.losses:ppo_loss")(config, {"log_probs": outputs}, data)[0]


def _one_longer(values: Tensor) -> Tensor:
    """`values` [B, T, ...] with a zero behind each row."""
    return torch.cat([values, values[:, :1] * 0], 1)


def _trl(batch: Batch, **settings: Any) -> Iterator[Tensor]:
    """`training_step` of a GRPOTrainer with a tiny Llama, whose body gives the logits. Generation is left out."""
    size, rows = batch.logits.shape[-1], len(batch.tokens) // batch.parts
    config, shape = (
        _of("trl:GRPOConfig"),
        dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), size),
    )
    layers = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    words = _of("tokenizers.models:WordLevel")({f"w{word}": word for word in range(size)}, "w0")
    tokenizer = _of("transformers:PreTrainedTokenizerFast")(
        tokenizer_object=_of("tokenizers:Tokenizer")(words)
    )
    tokenizer.pad_token, tokenizer.eos_token = "w0", "w1"
    with tempfile.TemporaryDirectory() as folder:
        settings |= {
            "output_dir": folder,
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": batch.parts,
            "steps_per_generation": batch.parts * batch.updates,
            "max_completion_length": batch.tokens.shape[1],
            "temperature": batch.temperature,
        }
        trainer = _of("trl:GRPOTrainer")(
            model=_of("transformers:LlamaForCausalLM")(_of("transformers:LlamaConfig")(**shape, **layers)),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            # A version that lacks a setting has one loss only.
            args=config(**{key: settings[key] for key in settings if key in config.__dataclass_fields__}),
            train_dataset=_of("datasets:Dataset").from_dict({"prompt": ["w2"] * 16}),
            processing_class=tokenizer,
        )
    trainer._prepare_inputs = lambda inputs: inputs
    trainer.current_gradient_accumulation_steps = batch.parts
    trainer.model.lm_head.weight.data = torch.eye(size)  # so that the body's states are the logits
    for part in batch.micro():
        states = _one_longer(part.logits)
        output = _of("transformers.modeling_outputs:BaseModelOutputWithPast")(last_hidden_state=states)
        trainer.model.model.forward = partial(lambda given, *_, **__: given, output)
        inputs = {
            "prompt_ids": torch.full_like(part.tokens[:, :1], 2),
            "prompt_mask": torch.ones_like(part.tokens[:, :1]),
            "completion_ids": part.tokens,
            "completion_mask": part.valid.long(),
            "advantages": part.advantages,
            "old_per_token_logps": part.rollout_logp,
            "ref_per_token_logps": torch.zeros_like(part.logits[..., 0]),
            "num_items_in_batch": batch.valid.sum() * batch.updates,
        }
        yield trainer.training_step(trainer.model, inputs, None)


def _prime_rl(batch: Batch, *, config: str, **settings: Any) -> Iterator[Tensor]:
    """`compute_loss`, with the tokens of the whole step as its scale."""
    module = "prime_rl.trainer.rl.loss"
    loss = _of(f"{module}:setup_rl_loss_fn")(_of(f"prime_rl.configs.trainer:{config}")(**settings))
    for part in batch.micro():
        logp = _of(f"{module}:selective_log_softmax")(part.logits / part.temperature, part.tokens)
        yield _of(f"{module}:compute_loss")(
            list(logp),
            list(part.old_logp(logp)),
            ref_logprobs=None,
            advantages=list(part.token_advantages),
            loss_mask=list(part.valid),
            rl_weights=None,
            ce_weights=None,
            ref_kl_weights=None,
            rl_loss_fn=loss,
            rl_scale=batch.valid.sum().item(),
            ce_scale=1,
            ref_kl_scale=1,
        )[0]


def _skyrl(batch: Batch, *, loss: str, **settings: Any) -> Iterator[Tensor]:
    """A registered policy loss, on advantages that carry the reduction, as in its trainer."""
    module, valid = "skyrl.backends.skyrl_train.utils", batch.valid.float()
    _of("ray:is_initialized").return_value = False  # an empty module: no actor registers the losses
    config = _of("skyrl.train.config:AlgorithmConfig")(max_seq_len=valid.shape[1])
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        setattr(getattr(config, section) if section else config, name, value)
    scaled = _of(f"{module}.ppo_utils:apply_loss_reduction_to_advantages_minibatch")(
        batch.token_advantages, valid, config.loss_reduction, len(valid) // batch.parts, config.max_seq_len
    )
    for part, advantages in zip(batch.micro(), scaled.chunk(batch.parts), strict=True):
        logits = part.logits / part.temperature
        logp = _of(f"{module}.torch_utils:logprobs_from_logits")(logits, part.tokens)
        yield _of(f"{module}.ppo_utils:{loss}")(
            logp, part.old_logp(logp), advantages, config, part.valid.float()
        )[0]


def _openrlhf(batch: Batch, **settings: Any) -> Iterator[Tensor]:
    """`PolicyLoss`, with the counts of the whole step; DeepSpeed's division by the micro-batches cancels with it."""
    loss = _of("openrlhf.models.loss:PolicyLoss")(**settings)
    whole = {"batch_num_tokens": batch.valid.sum(), "global_batch_size": batch.valid.any(1).sum()}
    for part in batch.micro():
        logits = part.logits * 1  # they are divided in place
        logp = _of("openrlhf.models.utils:log_probs_from_logits")(logits, part.tokens, part.temperature)
        yield loss(logp, part.old_logp(logp), part.token_advantages, part.valid.float(), **whole)[0]


def _nemo_rl(batch: Batch, **settings: Any) -> Iterator[Tensor]:
    """`ClippedPGLossFn`, with the counts of the whole step."""
    module = "nemo_rl.algorithms.loss.loss_functions"
    loss = _of(f"{module}:ClippedPGLossFn")(_of(f"{module}:ClippedPGLossConfig")(**settings))
    for part in batch.micro():
        logp = part.logp()
        old = _after_prompt(part.old_logp(logp))
        data = {
            "token_mask": _after_prompt(part.valid.float()),
            "sample_mask": part.valid.any(1).float(),
            "advantages": _after_prompt(part.token_advantages),
            "prev_logprobs": old,
            "generation_logprobs": old,
        }
        yield loss(logp, data, batch.valid.any(1).sum(), batch.valid.sum())[0]


def _slime(batch: Batch, **settings: Any) -> Iterator[Tensor]:
    """`loss_function`; Megatron's division by the micro-batches, or by the tokens that slime counts, is done here."""
    module = "slime.backends.megatron_utils.loss"
    mpu = _of(f"{module}:mpu")  # an empty module: one rank
    mpu.get_context_parallel_world_size.return_value = mpu.get_data_parallel_world_size.return_value = 1
    mpu.get_tensor_model_parallel_group.return_value = None
    args, losses, counts = SimpleNamespace(rollout_temperature=batch.temperature, **settings), [], []
    for part in batch.micro():
        # Without padding, but a response that was filtered out has its tokens, with a mask of 0.
        lengths = [valid.sum().item() or len(valid) for valid in part.valid]

        def packed(values: Tensor, prompt: int = 0, lengths: list[int] = lengths) -> list[Tensor]:
            return [row[: length + prompt] for row, length in zip(values, lengths, strict=True)]

        masks = packed(part.valid.float())
        data = {
            "advantages": packed(part.token_advantages),
            "log_probs": packed(part.old_logp(part.logp())),
            "unconcat_tokens": packed(_after_prompt(part.tokens), 1),
            "response_lengths": lengths,
            "total_lengths": [length + 1 for length in lengths],
            "loss_masks": masks,
            "rollout_mask_sums": [mask.sum() for mask in masks],
        }
        logits = torch.cat(packed(_one_longer(part.logits), 1))[None]
        loss, count, _ = _of(f"{module}:loss_function")(args, data, batch.parts, len(batch.tokens), logits)
        losses.append(loss)
        counts.append(count)
    yield from (loss / (sum(counts) if args.calculate_per_token_loss else batch.parts) for loss in losses)


def _open_instruct(batch: Batch, *, loss_fn: str, **settings: Any) -> Iterator[Tensor]:
    """`compute_grpo_loss` between the functions that its trainer calls before and after it."""
    module = "open_instruct.grpo_utils"
    config = SimpleNamespace(loss_fn=_of(f"{module}:GRPOLossType")(loss_fn), **settings)
    for part in batch.micro():
        model = partial(SimpleNamespace, logits=_one_longer(part.logits))
        ids = _after_prompt(part.tokens)
        logp, _ = _of(f"{module}:forward_for_logprobs")(model, ids, None, None, -1, part.temperature)
        mu = part.old_logp(logp)
        logp, mu = (_of(f"{module}:mask_logprobs")(values, part.valid) for values in (logp, mu))
        old = logp.detach() if config.use_rho_correction else mu
        advantages = part.token_advantages
        rho = _of(f"{module}:compute_rho_correction")(old, mu, part.valid, advantages, config).weights
        loss = _of(f"{module}:compute_grpo_loss")(logp, (logp - old).exp(), advantages, None, config, rho)[0]
        yield _of("open_instruct.rl_utils:masked_mean")(loss, part.valid, None, batch.valid.sum().item())


_ADAPTERS = (_verl, _trl, _prime_rl, _skyrl, _openrlhf, _nemo_rl, _slime, _open_instruct)
SUITES: Mapping[str, Losses] = {adapter.__name__[1:].replace("_", "-"): adapter for adapter in _ADAPTERS}


# Our side.


class Case(NamedTuple):
    """A rule of ours with constants, an aggregation, and the measure of its binary divergence, if needed."""

    rule: str
    constants: Mapping[str, float]
    aggregation: str
    measure: str | None = None


SETTINGS = json.loads(Path(__file__).with_name("suites.json").read_text(encoding="utf-8"))
CASES = {name: Case(**case) for name, case in SETTINGS["cases"].items()}
# What is changed on our side. `mean over`: what a loss is a mean of; unchanged, of the responses with a token.
EACH, ALL = "each micro-batch", "all responses"
LIMITS: Mapping[str, tuple[float, ...]] = {
    "dual_clip": (3.0,),
    "ratio_cap": (3.0, 5.0, 20.0, 1e4),
    "log_ratio_clamp": (10.0, 20.0),
}
GRID: Mapping[str, tuple[Any, ...]] = {
    **LIMITS,
    "mean over": (ALL, EACH),
    "aggregation": AGGREGATIONS,
    "temperature": (1.0,),
    "scale": (0.5, 2.0),
}


class Outcome(NamedTuple):
    """loss: of a batch. gradient: [B, T, V] of it in the logits."""

    loss: float
    gradient: Tensor


def ours(batch: Batch, case: Case, changes: Mapping[str, Any]) -> Outcome:
    """Our loss of a batch in float64, with changes from GRID."""
    mode, over = changes.get("aggregation", case.aggregation), changes.get("mean over")
    constants = {**case.constants, **{key: changes[key] for key in LIMITS if key in changes}}
    whole = batch._replace(logits=batch.logits.double().requires_grad_())
    parts = list(whole.micro()) if over == EACH else [whole]
    losses = []
    for part in parts:
        logp = part.logp(changes.get("temperature"))
        mu = part.old_logp(logp).double()
        divergence = binary(logp.detach(), mu, case.measure) if case.measure else None
        tokens = Tokens(logp, mu, part.token_advantages.double(), part.valid, divergence)
        objective = get_rule(case.rule)(tokens, **constants).objective
        count = len(part.valid) if over == ALL and mode != "token-mean" else None
        losses.append(-aggregate(objective, part.valid, mode, denominator=count))
    loss = torch.stack(losses).sum() * changes.get("scale", 1.0) / len(parts)
    return Outcome(loss.item(), torch.autograd.grad(loss, whole.logits)[0])


def theirs(losses: Callable[..., Iterable[Tensor]], batch: Batch, native: Mapping[str, Any]) -> Outcome:
    """A suite's loss of a batch, summed over its micro-batches, and the gradient that this accumulates."""
    logits = batch.logits.clone().requires_grad_()
    total = 0.0
    for loss in losses(batch._replace(logits=logits), **native):
        if loss.requires_grad:  # else the suite has gone backward itself
            loss.backward()
        total += loss.item()
    assert logits.grad is not None
    return Outcome(total, logits.grad.double())


def _changes_of(case: Case) -> Iterator[dict[str, Any]]:
    """Up to three changes of the grid that this case can have, fewest first, none at the start."""
    takes = rule_of(case.rule).constants()
    axes = {key: values for key, values in GRID.items() if key in takes or key not in LIMITS}
    for size in range(4):
        for keys in itertools.combinations(axes, size):
            for values in itertools.product(*(axes[key] for key in keys)):
                yield dict(zip(keys, values, strict=True))


# The comparison.


def difference(theirs: Outcome, mine: Outcome, batch: Batch) -> str:
    """What differs beyond TOLERANCE, in words: a factor, or the first token with another gradient. Empty: nothing."""
    if not torch.isfinite(theirs.gradient).all() or theirs.loss != theirs.loss:
        return "the loss or a gradient is NaN or infinite"
    error, scale = (part.abs().amax(-1) for part in (theirs.gradient - mine.gradient, mine.gradient))
    off = error > TOLERANCE * scale + FLOOR
    if not off.any():
        near = abs(theirs.loss - mine.loss) <= TOLERANCE * (abs(mine.loss) + 0.1)
        return "" if near else f"gradient equal, loss {theirs.loss:.4g}, here {mine.loss:.4g}"
    if (off & ~batch.valid).any():
        return "padding has a gradient"
    # In the logit of the sampled token, the gradient is a multiple of that in log pi(y), the same on both sides.
    there, here = (part.gradient.gather(-1, batch.tokens[..., None])[..., 0] for part in (theirs, mine))
    rows = [there[row][here[row] != 0] / here[row][here[row] != 0] for row in range(len(here))]
    steady = all(len(row) == 0 or row.max() - row.min() < 1e-3 * row.max().abs() for row in rows)
    if steady and not (off & (here == 0)).any():
        factors = " and ".join(dict.fromkeys(f"{row[0].item():.4g}" for row in rows if len(row)))
        return f"the gradients of the responses are {factors} times ours"
    row, token = off.nonzero()[0].tolist()
    ratio = (batch.logp() - batch.old_logp(batch.logp()))[row, token].exp().item()
    return (
        f"{off.sum()} of {batch.valid.sum()} tokens, first token {token + 1} of response {row + 1} with A = "
        f"{batch.advantages[row]:g} and ratio {ratio:.4g}: gradient {there[row, token]:.4g} in its logit, here "
        f"{here[row, token]:.4g}"
    )


class Row(NamedTuple):
    """A rule of a suite, compared. equal_if: our best setting; differences under it: `batch: what; batch: what`."""

    suite: str
    version: str
    rule: str
    settings: str
    equal_if: str
    differences: str

    @property
    def verdict(self) -> str:
        """In words."""
        batches = ", ".join(part.partition(":")[0] for part in self.differences.split("; "))
        setting = f"equal if {self.equal_if}" if self.equal_if else "equal"
        return f"{setting} except {batches}" if batches else setting


def compare(
    losses: Callable[..., Iterable[Tensor]], native: Mapping[str, Any], case: Case
) -> tuple[dict[str, Any], dict[str, str]]:
    """Our changes with which most batches are equal to a suite's loss with its settings, and what still differs."""
    outcomes: dict[str, Outcome] = {}
    raised: dict[str, str] = {}
    for name, batch in golden().items():
        try:
            outcomes[name] = theirs(losses, batch, native)
        except UserError:  # it cannot be imported
            raise
        except Exception as error:  # noqa: BLE001  whatever another suite raises is its answer
            raised[name] = f"{type(error).__name__}, {one_line(str(error))[:120]}".replace(";", ",")
    best: tuple[dict[str, Any], dict[str, str]] = {}, dict.fromkeys([*golden(), "one more"], "")
    for changes in _changes_of(case):
        texts: dict[str, str] = {}
        for name, outcome in outcomes.items():
            batch = golden()[name]
            if text := difference(outcome, ours(batch, case, changes), batch):
                texts[name] = text
                if len(texts) == len(best[1]):
                    break  # no better
        else:
            best = changes, texts
        if not best[1]:
            break
    return best[0], best[1] | raised


# The table.


def matrix(rows: Sequence[Row]) -> str:
    """The Markdown table rule x suite: = equal, `if` equal under a setting, ≠ differs in some batch."""
    cells = {
        (row.rule, f"{row.suite}-{row.version}"): "≠" if row.differences else "if" if row.equal_if else "="
        for row in rows
    }
    suites = list(dict.fromkeys(suite for _, suite in cells))
    lines = [["rule", *suites], ["---"] * (len(suites) + 1)]
    rules = [rule for rule in CASES if any(rule == row.rule for row in rows)]
    lines += [[rule, *(cells.get((rule, suite), "") for suite in suites)] for rule in rules]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read_rows(path: Path) -> list[Row]:
    """The rows of a table. Raises UserError if it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [Row(**row) for row in csv.DictReader(file)]
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): pass a table that --csv has written") from error


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Put the rows into a table, in place of those that it has of the same suite, version and rule."""
    before = read_rows(path) if path.exists() else []
    table = {row[:3]: row for row in (*before, *rows)}
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([Row._fields, *(table[key] for key in sorted(table))])


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare a suite, or print a table; 0 if no rule differs, 1 if any does."""
    parser = argparse.ArgumentParser(
        prog="python -m cppo_lab.testing.across",
        description="Compare the losses of another suite with ours, or print a table of comparisons.",
    )
    parser.add_argument("suite", nargs="?", default="", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--rule", metavar="RULE", help="this one alone")
    parser.add_argument(
        "--version", metavar="TEXT", help="of a suite that runs from a checkout, such as its commit"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE.csv", help="put the rows into this table")
    parser.add_argument("--matrix", type=Path, metavar="FILE.csv", help="print this table as rule x suite")
    options = parser.parse_args(arguments)
    rows = []
    try:
        if options.matrix:
            print(matrix(read_rows(options.matrix)))
            return 0
        if options.suite not in SUITES:
            raise unknown("suite", options.suite, SUITES)
        facts = SETTINGS["suites"][options.suite]
        if options.rule not in (None, *facts["rules"]):
            raise unknown(f"rule of suite {options.suite!r}", options.rule, facts["rules"])
        losses = suite(options.suite, facts["absent"])
        version = options.version or metadata.version(options.suite)
        for rule, native in facts["rules"].items():
            if options.rule in (None, rule):
                changes, differences = compare(losses, facts["common"] | native, CASES[rule])
                settings, equal_if = (
                    ", ".join(f"{key}={value}" for key, value in values.items())
                    for values in (native, changes)
                )
                what = [f"{name}: {text}" for name, text in differences.items()]
                rows.append(Row(options.suite, version, rule, settings, equal_if, "; ".join(what)))
                print("\n    ".join([f"{rule}: {rows[-1].verdict}", *what]), flush=True)
        if options.csv:
            write_rows(options.csv, rows)
    except (UserError, metadata.PackageNotFoundError, OSError) as error:
        parser.exit(2, f"cppo: error: {message(str(error))}\n")
    return int(any(row.differences for row in rows))


if __name__ == "__main__":
    sys.exit(main())
