"""The other suites as black boxes for `across.py`: each function only calls a suite's code.

A function takes a `Batch` and the suite's settings from `suites.json`, and yields the loss of each micro-batch, scaled
as the suite's trainer sums them before it steps; a loss without a gradient has gone backward already. What the trainer
does outside of what is called is done here, and named. The temperature is divided out here, except in TRL, OpenRLHF,
slime and open-instruct.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor

from cppo_lab.plugins import load

if TYPE_CHECKING:
    from cppo_lab.testing.across import Batch

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
        # An output stands at the token before the one that it scores; that at a row's last token is not used.
        outputs = torch.cat([logp, logp[:, :1] * 0], 1)[_after_prompt(part.valid, 1)]
        yield _of("verl.workers.utils.losses:ppo_loss")(config, {"log_probs": outputs}, data)[0]


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
        states = torch.cat([part.logits, part.logits[:, :1] * 0], 1)
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
        logits = torch.cat(packed(torch.cat([part.logits, part.logits[:, :1] * 0], 1), 1))[None]
        loss, count, _ = _of(f"{module}:loss_function")(args, data, batch.parts, len(batch.tokens), logits)
        losses.append(loss)
        counts.append(count)
    yield from (loss / (sum(counts) if args.calculate_per_token_loss else batch.parts) for loss in losses)


def _open_instruct(batch: Batch, *, loss_fn: str, **settings: Any) -> Iterator[Tensor]:
    """`compute_grpo_loss` between the functions that its trainer calls before and after it."""
    module = "open_instruct.grpo_utils"
    config = SimpleNamespace(loss_fn=_of(f"{module}:GRPOLossType")(loss_fn), **settings)
    for part in batch.micro():
        model = partial(SimpleNamespace, logits=torch.cat([part.logits, part.logits[:, :1] * 0], 1))
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
SUITES: Mapping[str, Losses] = {each.__name__[1:].replace("_", "-"): each for each in _ADAPTERS}
