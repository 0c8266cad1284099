"""The other suites, as black boxes for `across.py`: each function only calls a suite's own code.

A function takes a `Batch` and the suite's own settings, and yields the loss of each micro-batch, scaled as the suite's
trainer sums them before it steps; one without a gradient has gone backward already. `on our side` says in its
docstring what the suite's trainer does outside of what is called. The temperature is on our side except in TRL,
OpenRLHF, slime and open-instruct.
"""

import importlib.abc
import importlib.machinery
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from cppo_lab.plugins import load
from cppo_lab.testing.across import Batch

Losses = Callable[..., Iterator[Tensor]]


@dataclass(frozen=True)
class Suite:
    """A suite.

    losses: the function.
    distribution: the package that has its version.
    native: the suite's settings for each of our cases that it has.
    absent: packages that its modules import and its losses do not use; empty ones stand for those not installed.
    """

    losses: Losses
    distribution: str
    native: Mapping[str, Mapping[str, Any]]
    absent: tuple[str, ...] = ()

    def open(self) -> Losses:
        """The function, once what it needs can be imported."""
        sys.meta_path.append(_Absent(self.absent))
        torch.compiler.set_stance("force_eager")  # no C++ compiler is needed
        return self.losses


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty packages of these names, and all modules in them, where Python finds no others."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        empty = any(f"{name}.".startswith(f"{one}.") or one.startswith(f"{name}.") for one in self.names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if empty else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return mock.MagicMock(name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _of(name: str) -> Any:
    """A part of the suite, `package.module:name`."""
    return load(name, "part of the suite")


def _verl(batch: Batch, *, loss_mode: str, **settings: Any) -> Iterator[Tensor]:
    """`ppo_loss` of its engine workers, which also puts the responses without padding back into rows."""
    policy = _of("verl.workers.config:PolicyLossConfig")(loss_mode=loss_mode)
    config = _of("verl.workers.config:ActorConfig")(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy, **settings
    )
    for part in batch.micro():
        logp = _of("verl.utils.torch_functional:logprobs_from_logits")(
            part.logits / part.temperature, part.tokens
        )
        rows = len(logp)
        data = _of("tensordict:TensorDict")(
            {
                "prompts": torch.zeros(rows, 1, dtype=torch.long),
                "responses": part.tokens,
                "attention_mask": _after_prompt(part.valid.long(), 1),
                "response_mask": part.valid.long(),
                "old_log_probs": part.old_logp(logp),
                "advantages": part.advantages[:, None].expand_as(logp),
            },
            batch_size=[rows],
        )
        whole = {"batch_num_tokens": int(batch.valid.sum()), "global_batch_size": len(batch.tokens)}
        _of("verl.utils.tensordict_utils:assign_non_tensor")(data, dp_size=1, **whole)
        # An output stands at the token before the one that it scores; that at the last token of a row is not used.
        packed = torch.cat(
            [torch.cat([row[valid], row[:1] * 0]) for row, valid in zip(logp, part.valid, strict=True)]
        )
        yield _of("verl.workers.utils.losses:ppo_loss")(config, {"log_probs": packed}, data)[0]


def _after_prompt(values: Tensor, prompt: float) -> Tensor:
    """[B, T] -> [B, 1 + T], with a prompt of one token."""
    return torch.cat([torch.full_like(values[:, :1], prompt), values], 1)


class _Given(torch.nn.Module):
    """A language model's body whose states are given: with an identity as its head they are the logits."""

    states: Tensor

    def forward(self, *_: Any, **__: Any) -> Any:
        return _of("transformers.modeling_outputs:BaseModelOutputWithPast")(last_hidden_state=self.states)


def _trl(batch: Batch, **settings: Any) -> Iterator[Tensor]:
    """`training_step` of a GRPOTrainer with a tiny Llama, whose body gives the logits; generation is left out."""
    size, length = batch.logits.shape[-1], batch.tokens.shape[1]
    config, words = _of("trl:GRPOConfig"), {f"w{index}": index for index in range(size)}
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "output_dir": folder,
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "per_device_train_batch_size": len(batch.tokens) // batch.parts,
            "gradient_accumulation_steps": batch.parts,
            "steps_per_generation": batch.parts * batch.updates,
            "num_generations": 2,
            "max_completion_length": length,
            "temperature": batch.temperature,
            "beta": 0.0,
            **settings,
        }
        words_only = _of("tokenizers:Tokenizer")(_of("tokenizers.models:WordLevel")(words, unk_token="w0"))
        llama = _of("transformers:LlamaConfig")(
            vocab_size=size,
            hidden_size=size,
            intermediate_size=size,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            tie_word_embeddings=False,
        )
        trainer = _of("trl:GRPOTrainer")(
            model=_of("transformers:LlamaForCausalLM")(llama),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            # A version that lacks a setting has one loss only.
            args=config(**{key: value for key, value in given.items() if key in config.__dataclass_fields__}),
            train_dataset=_of("datasets:Dataset").from_dict({"prompt": ["w2"] * 16}),
            processing_class=_of("transformers:PreTrainedTokenizerFast")(
                tokenizer_object=words_only, pad_token="w0", eos_token="w1"
            ),
        )
        trainer._prepare_inputs = lambda inputs: inputs
        trainer.current_gradient_accumulation_steps = batch.parts
        trainer.model.model = _Given()
        trainer.model.lm_head.weight.data = torch.eye(size)
        for part in batch.micro():
            after = torch.zeros_like(part.logits[:, :1])
            trainer.model.model.states = torch.cat([part.logits, after], 1)
            prompt = torch.full_like(part.tokens[:, :1], 2)
            inputs = {
                "prompt_ids": prompt,
                "prompt_mask": torch.ones_like(prompt),
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
    loss = _of("prime_rl.trainer.rl.loss:setup_rl_loss_fn")(
        _of(f"prime_rl.configs.trainer:{config}")(**settings)
    )
    for part in batch.micro():
        logp = _of("prime_rl.trainer.rl.loss:selective_log_softmax")(
            part.logits / part.temperature, part.tokens
        )
        rows = {"ref_logprobs": None, "rl_weights": None, "ce_weights": None, "ref_kl_weights": None}
        yield _of("prime_rl.trainer.rl.loss:compute_loss")(
            trainer_logprobs=list(logp),
            inference_logprobs=list(part.old_logp(logp)),
            advantages=list(part.advantages[:, None].expand_as(logp)),
            loss_mask=list(part.valid),
            rl_loss_fn=loss,
            rl_scale=max(int(batch.valid.sum()), 1),
            ce_scale=1,
            ref_kl_scale=1,
            **rows,
        )[0]


def _skyrl(batch: Batch, *, loss: str, **settings: Any) -> Iterator[Tensor]:
    """A registered policy loss, on advantages that carry the reduction, as in its trainer."""
    maths = "skyrl.backends.skyrl_train.utils.ppo_utils"
    _of("ray:is_initialized").return_value = False  # an empty package: no actor registers the losses
    config = _of("skyrl.train.config:AlgorithmConfig")(max_seq_len=batch.tokens.shape[1])
    for key, value in settings.items():
        holder, _, name = key.rpartition(".")
        setattr(getattr(config, holder) if holder else config, name, value)
    scaled = _of(f"{maths}:apply_loss_reduction_to_advantages_minibatch")(
        advantages=batch.advantages[:, None].expand_as(batch.tokens),
        loss_mask=batch.valid.float(),
        loss_reduction=config.loss_reduction,
        micro_batch_size=len(batch.tokens) // batch.parts,
        max_seq_len=config.max_seq_len,
    )
    for part, advantages in zip(batch.micro(), scaled.chunk(batch.parts), strict=True):
        logp = _of("skyrl.backends.skyrl_train.utils.torch_utils:logprobs_from_logits")(
            part.logits / part.temperature, part.tokens
        )
        yield _of(f"{maths}:{loss}")(logp, part.old_logp(logp), advantages, config, part.valid.float(), None)[
            0
        ]


def _openrlhf(batch: Batch, **settings: Any) -> Iterator[Tensor]:
    """`PolicyLoss`, with the counts of the whole step; DeepSpeed's division by the micro-batches cancels with them."""
    loss = _of("openrlhf.models.loss:PolicyLoss")(**settings)
    for part in batch.micro():
        logits = part.logits * 1  # log_probs_from_logits divides in place
        logp = _of("openrlhf.models.utils:log_probs_from_logits")(logits, part.tokens, part.temperature)
        yield loss(
            logp,
            part.old_logp(logp),
            part.advantages[:, None].expand_as(logp),
            action_mask=part.valid.float(),
            batch_num_tokens=batch.valid.sum().float(),
            global_batch_size=batch.valid.any(1).sum().float(),
        )[0]


def _nemo_rl(batch: Batch, **settings: Any) -> Iterator[Tensor]:
    """`ClippedPGLossFn`, with the counts of the whole step."""
    losses = "nemo_rl.algorithms.loss.loss_functions"
    config = _of(f"{losses}:ClippedPGLossConfig")(reference_policy_kl_penalty=0.0, **settings)
    loss = _of(f"{losses}:ClippedPGLossFn")(config)
    for part in batch.micro():
        logp = (part.logits / part.temperature).log_softmax(-1).gather(-1, part.tokens[..., None])[..., 0]
        old = _after_prompt(part.old_logp(logp), 0.0)
        data = {
            "token_mask": _after_prompt(part.valid.float(), 0.0),
            "sample_mask": part.valid.any(1).float(),
            "advantages": _after_prompt(part.advantages[:, None].expand_as(logp), 0.0),
            "prev_logprobs": old,
            "generation_logprobs": old,
        }
        yield loss(logp, data, batch.valid.any(1).sum(), batch.valid.sum())[0]


def _slime(batch: Batch, **settings: Any) -> Iterator[Tensor]:
    """`loss_function`; Megatron's division by the micro-batches, or by the tokens that it counts, is on our side."""
    module = "slime.backends.megatron_utils.loss"
    mpu = _of(f"{module}:mpu")  # an empty package: one rank
    mpu.get_context_parallel_world_size.return_value = mpu.get_data_parallel_world_size.return_value = 1
    mpu.get_tensor_model_parallel_group.return_value = None
    off = (
        "use_rollout_logprobs",
        "use_opsm",
        "get_mismatch_metrics",
        "use_tis",
        "use_kl_loss",
        "allgather_cp",
    )
    off += ("calculate_per_token_loss", "recompute_loss_function")
    args = SimpleNamespace(
        **dict.fromkeys(off, False) | {"loss_type": "policy_loss", "entropy_coef": 0.0, "eps_clip_c": None},
        log_probs_chunk_size=-1,
        rollout_temperature=batch.temperature,
        rollout_top_p=1.0,
    )
    vars(args).update(settings)
    losses, counts = [], []
    for part in batch.micro():
        # Without padding; an empty response is one whose mask is 0.
        lengths = [int(valid.sum()) or len(valid) for valid in part.valid]
        ids, states = _after_prompt(part.tokens, 0), torch.cat([part.logits, part.logits[:, :1] * 0], 1)
        logp = (part.logits / part.temperature).log_softmax(-1).gather(-1, part.tokens[..., None])[..., 0]

        def packed(values: Tensor, lengths: list[int] = lengths) -> list[Tensor]:
            return [row[:length] for row, length in zip(values, lengths, strict=True)]

        totals = [length + 1 for length in lengths]
        masks = packed(part.valid.float())
        data = {
            "advantages": packed(part.advantages[:, None].expand_as(logp)),
            "log_probs": packed(part.old_logp(logp)),
            "unconcat_tokens": packed(ids, totals),
            "response_lengths": lengths,
            "total_lengths": totals,
            "loss_masks": masks,
            "rollout_mask_sums": [mask.sum() for mask in masks],
        }
        logits = torch.cat(packed(states, totals))[None]
        loss, count, _ = _of(f"{module}:loss_function")(args, data, batch.parts, len(batch.tokens), logits)
        losses.append(loss)
        counts.append(count)
    whole = sum(counts) if args.calculate_per_token_loss else batch.parts
    yield from (loss / whole for loss in losses)


def _open_instruct(batch: Batch, *, loss_fn: str, **settings: Any) -> Iterator[Tensor]:
    """`compute_grpo_loss` between the functions that its trainer calls before and after it."""
    maths = "open_instruct.grpo_utils"
    off = {
        "clip_lower": 0.2,
        "clip_higher": 0.28,
        "use_rho_correction": False,
        "rho_mask_sequence_level": False,
    }
    config = SimpleNamespace(loss_fn=_of(f"{maths}:GRPOLossType")(loss_fn), **off | settings)
    for part in batch.micro():
        states = SimpleNamespace(logits=torch.cat([part.logits, part.logits[:, :1] * 0], 1))
        logp, _ = _of(f"{maths}:forward_for_logprobs")(
            lambda states=states, **_: states, _after_prompt(part.tokens, 0), None, None, -1, part.temperature
        )
        logp = _of(f"{maths}:mask_logprobs")(logp, part.valid)
        mu = _of(f"{maths}:mask_logprobs")(part.old_logp(logp), part.valid)
        old = logp.detach() if config.use_rho_correction else mu
        advantages = part.advantages[:, None].expand_as(logp)
        rho = _of(f"{maths}:compute_rho_correction")(old, mu, part.valid, advantages, config)
        values, _, _ = _of(f"{maths}:compute_grpo_loss")(
            logp, (logp - old).exp(), advantages, None, config, rho.weights
        )
        yield _of("open_instruct.rl_utils:masked_mean")(values, part.valid, None, float(batch.valid.sum()))


def _clips(low: str, high: str, response: bool = False) -> dict[str, float]:
    return {low: 0.1, high: 0.15} if response else {low: 0.2, high: 0.28}


_VERL = _clips("clip_ratio_low", "clip_ratio_high")
_TRL, _TRL_RESPONSES = _clips("epsilon", "epsilon_high"), _clips("epsilon", "epsilon_high", response=True)
_SKYRL = {"loss": "ppo_policy_loss", "policy_loss_type": "regular"} | _clips("eps_clip_low", "eps_clip_high")
_OPENRLHF = _clips("clip_eps_low", "clip_eps_high")
_NEMO = _clips("ratio_clip_min", "ratio_clip_max")
_SLIME = {"advantage_estimator": "grpo"} | _clips("eps_clip", "eps_clip_high")
_RESPONSES = "seq-mean-token-mean"
SUITES: Mapping[str, Suite] = {
    "verl": Suite(
        _verl,
        "verl",
        {
            "grpo": _VERL | {"loss_mode": "vanilla", "loss_agg_mode": _RESPONSES},
            "dapo": _VERL | {"loss_mode": "vanilla", "loss_agg_mode": "token-mean"},
            "dr_grpo": _VERL | {"loss_mode": "vanilla", "loss_agg_mode": "seq-mean-token-sum-norm"},
            "gspo": _clips("clip_ratio_low", "clip_ratio_high", response=True)
            | {"loss_mode": "gspo", "loss_agg_mode": _RESPONSES},
            "gmpo": {"loss_mode": "geo_mean", "clip_ratio_low": 0.4, "clip_ratio_high": 0.4},
            "cispo": {"loss_mode": "cispo", "clip_ratio_low": 1.0, "clip_ratio_high": 4.0},
            "dppo_tv": {"loss_mode": "dppo_tv", "clip_ratio_low": 0.15, "clip_ratio_high": 0.15},
            "dppo_kl": {"loss_mode": "dppo_kl", "clip_ratio_low": 0.05, "clip_ratio_high": 0.05},
            "sapo": {"loss_mode": "sapo"},
        },
    ),
    "trl": Suite(
        _trl,
        "trl",
        {
            "grpo": _TRL | {"loss_type": "grpo"},
            "dapo": _TRL | {"loss_type": "dapo"},
            "dr_grpo": _TRL | {"loss_type": "dr_grpo"},
            "gspo": _TRL_RESPONSES | {"loss_type": "grpo", "importance_sampling_level": "sequence"},
            "luspo": _TRL_RESPONSES | {"loss_type": "luspo", "importance_sampling_level": "sequence"},
            "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
            "sapo": {"loss_type": "sapo"},
            "opsm": _TRL | {"loss_type": "grpo", "off_policy_mask_threshold": 0.05},
            "vespo": {"loss_type": "vespo"},
        },
    ),
    "prime-rl": Suite(
        _prime_rl,
        "prime-rl",
        {
            "dppo_tv": {
                "config": "DefaultLossConfig",
                "dppo_mask_low": 0.15,
                "dppo_mask_high": 0.15,
                "kl_tau": 0.0,
            },
            "ipo": {"config": "IPOLossConfig", "ipo_threshold": 0.15, "kl_tau": 0.001},
        },
        absent=("wandb", "loguru"),
    ),
    "skyrl": Suite(
        _skyrl,
        "skyrl",
        {
            "grpo": _SKYRL | {"loss_reduction": "sequence_mean"},
            "dapo": _SKYRL | {"loss_reduction": "token_mean"},
            "dr_grpo": _SKYRL | {"loss_reduction": "seq_mean_token_sum_norm"},
            "gspo": {"loss": "gspo_policy_loss", "loss_reduction": "sequence_mean"}
            | _clips("eps_clip_low", "eps_clip_high", response=True),
            "cispo": {
                "loss": "compute_policy_loss_cispo",
                "cispo.cispo_eps_clip_low": 1.0,
                "cispo.cispo_eps_clip_high": 4.0,
            },
            "dppo_tv": {"loss": "dppo_policy_loss", "dppo.delta_low": 0.15, "dppo.delta_high": 0.15},
            "dppo_kl": {
                "loss": "dppo_policy_loss",
                "dppo.dppo_type": "binary_kl",
                "dppo.delta_low": 0.05,
                "dppo.delta_high": 0.05,
            },
            "sapo": {"loss": "sapo_policy_loss", "loss_reduction": "sequence_mean"},
        },
        absent=("ray", "jaxtyping", "skyrl_gym", "loguru", "pydantic"),
    ),
    "openrlhf": Suite(
        _openrlhf,
        "openrlhf",
        {
            "grpo": _OPENRLHF | {"token_level_loss": False},
            "dapo": _OPENRLHF | {"token_level_loss": True},
            "gspo": _clips("clip_eps_low", "clip_eps_high", response=True) | {"policy_loss_type": "gspo"},
        },
        absent=("deepspeed", "peft", "transformers", "flash_attn.bert_padding", "flash_attn.utils"),
    ),
    "nemo-rl": Suite(
        _nemo_rl,
        "nemo-rl",
        {
            "grpo": _NEMO | {"token_level_loss": False},
            "dapo": _NEMO,
            "gspo": _clips("ratio_clip_min", "ratio_clip_max", response=True)
            | {"token_level_loss": False, "sequence_level_importance_ratios": True},
            "cispo": {"use_cispo": True, "ratio_clip_min": 1.0, "ratio_clip_max": 4.0},
        },
        absent=(
            "transformers",
            "ray",
            "hydra",
            "megatron",
            "wandb",
            "mlflow",
            "swanlab",
            "rich",
            "matplotlib",
        ),
    ),
    "slime": Suite(
        _slime,
        "slime",
        {
            "grpo": _SLIME,
            "dapo": _SLIME | {"calculate_per_token_loss": True},
            "gspo": {"advantage_estimator": "gspo"} | _clips("eps_clip", "eps_clip_high", response=True),
            "cispo": {
                "advantage_estimator": "cispo",
                "eps_clip": 1.0,
                "eps_clip_high": 4.0,
                "calculate_per_token_loss": True,
            },
            "opsm": _SLIME | {"use_opsm": True, "opsm_delta": 0.05},
        },
        absent=("megatron", "ray", "sglang", "transformers", "httpx", "packaging"),
    ),
    "open-instruct": Suite(
        _open_instruct,
        "open-instruct",
        {
            "dapo": {"loss_fn": "dapo"},
            "cispo": {"loss_fn": "cispo", "clip_higher": 4.0},
            "vaco": {
                "loss_fn": "dapo",
                "use_rho_correction": True,
                "rho_mask_tv_divergence": True,
                "rho_mask_upper_bound": 0.2,
                "rho_mask_lower_bound": 0.0,
                "rho_clamp_lower_bound": 0.0,
                "rho_clamp_upper_bound": 0.0,
            },
        },
        absent=("ray", "vllm", "wandb", "datasets", "deepspeed", "olmo_core", "beaker"),
    ),
}
