"""What no config can check by itself: a run against its layout, a rule against its file in conf/rule."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from cppo_lab.errors import UserError, unknown
from cppo_lab.rules import MINIBATCH, RULES
from cppo_lab.spec import LayoutSpec, MathData, RunSpec, VerlRun
from cppo_lab.spec.rule import PAPER
from cppo_lab.sweep.compose.settings import settings
from cppo_lab.sweep.groups import groups

ROLLOUT = "actor_rollout_ref.rollout"


def check_model(values: Mapping[str, Any]) -> None:
    """Say which core a published model needs before its keys are compared with those of another kind of model."""
    model, core = values.get("model"), values.get("core")
    if core == "mini" and isinstance(model, dict) and "repository" in model:
        raise UserError(
            f"configuration: model={model.get('name')!r} is a published model, which core='mini' cannot train: add "
            "core=verl, or choose a model of its own"
        )


def check_placement(run: VerlRun, layout: LayoutSpec) -> None:
    """What verl, or a rollout on GPUs, would refuse after hours in the queue."""
    if run.rule.needs(MINIBATCH):
        raise UserError(
            f"configuration: rule={run.rule.name} decides over a whole minibatch, which core=verl cuts into "
            "micro-batches and spreads over ranks: choose core=mini, or another rule"
        )
    _check_length(run, layout)
    _check_ranks(run, layout)
    _check_rollout(run, layout)


def _check_length(run: VerlRun, layout: LayoutSpec) -> None:
    """A micro-batch holds at least one longest sequence; verl would say so only in the first update that meets one."""
    data = run.data
    prompt = data.max_prompt_length if isinstance(data, MathData) else data.prompt_length
    longest = prompt + run.rollout.max_response_length
    group = layout.sequence_parallel * (layout.megatron.context if layout.megatron else 1)
    if layout.tokens_per_device * group < longest:
        raise UserError(
            f"configuration: layout.tokens_per_device={layout.tokens_per_device} on {group} devices per sequence is "
            f"less than the longest sequence, {prompt} + {run.rollout.max_response_length} tokens: set "
            f"layout.tokens_per_device={-(-longest // group)} or more, or raise layout.sequence_parallel"
        )


def _check_ranks(run: VerlRun, layout: LayoutSpec) -> None:
    rows = run.batch.minibatch_prompts * run.batch.responses
    if rows % layout.data_parallel_ranks:
        raise UserError(
            f"configuration: layout={layout.name!r} has {layout.data_parallel_ranks} data-parallel ranks, which cannot "
            f"share a minibatch of {run.batch.minibatch_prompts} prompts x {run.batch.responses} responses equally: "
            f"choose a layout whose ranks divide {rows}"
        )


def _check_rollout(run: VerlRun, layout: LayoutSpec) -> None:
    """The rollout keeps of mu what the divergence needs, whatever `layout.verl` says."""
    needed = {f"{ROLLOUT}.calculate_log_probs": True, f"{ROLLOUT}.logprobs_mode": "processed_logprobs"}
    if run.divergence.estimator == "topk":
        needed[f"{ROLLOUT}.engine_kwargs.cppo_lab.topk"] = run.divergence.k
    for key, value in needed.items():
        if layout.verl.get(key, value) != value:
            raise UserError(
                f"configuration: layout.verl {key}={layout.verl[key]!r} keeps from the loss mu's log-probabilities "
                f"that divergence.estimator={run.divergence.estimator!r} needs: drop it, or set it to {value!r}"
            )


def check_constants(run: RunSpec) -> None:
    """A rule has exactly the constants that its file in conf/rule names; those that are null there may stay null.

    verl's own losses have theirs in `rule.options`, under verl's names.
    """
    name = run.rule.name
    if name not in groups()["rule"]:
        raise unknown("rule", name, groups()["rule"])
    if run.rule.path is None and run.rule.verl_loss is None and name not in RULES:
        raise UserError(f"configuration: rule.name={name!r} is of another package: choose rule={name}")
    options = run.rule.options or {}
    own = {key: value for key, value in run.rule.parameters().items() if key not in options}
    _compare(name, "rule", _declared_constants(name), own)
    _compare(name, "rule.options", _declared_constants(name, "options"), options)


def _compare(name: str, section: str, declared: Mapping[str, bool], given: Mapping[str, Any]) -> None:
    """The constants of one section against those that the file of the rule names."""
    for key, needed in declared.items():
        if needed and key not in given:
            raise UserError(f"configuration: {section}.{key}=null: rule {name!r} needs a value")
    for key in given:
        if key not in declared:
            kind = "constant" if section == "rule" else "option"
            raise UserError(
                f"configuration: rule {name!r} has no {kind} {key!r} (valid: {', '.join(declared) or 'none'})"
            )


@cache
def _declared_constants(name: str, section: str = "") -> dict[str, bool]:
    """Constants of a rule's file, or its options, and whether each must have a value; a recipe's need none."""
    rule = settings([f"rule={name}"])["rule"].value
    values = rule.get(section) or {} if section else rule
    return {
        key: value is not None and key not in PAPER
        for key, value in values.items()
        if key not in ("name", "path", "options")
    }
