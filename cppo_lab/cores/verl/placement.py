"""Checks a run against its layout for errors that would otherwise only show up after hours in the queue."""

from cppo_lab.errors import UserError
from cppo_lab.rules import MINIBATCH
from cppo_lab.spec import LayoutSpec, MathData, VerlRun

ROLLOUT = "actor_rollout_ref.rollout"


def check_placement(run: VerlRun, layout: LayoutSpec) -> None:
    """Raises UserError for a run that cannot train on the layout."""
    if run.rule.needs(MINIBATCH):
        raise UserError(
            f"configuration: rule={run.rule.name} decides over a whole minibatch, which core=verl cuts into "
            "micro-batches and spreads over ranks: choose core=mini, or another rule"
        )
    _check_length(run, layout)
    _check_ranks(run, layout)
    _check_rollout(run, layout)


def _check_length(run: VerlRun, layout: LayoutSpec) -> None:
    """A micro-batch must hold a sequence of maximum length; verl would fail only at the first update that has one."""
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
    """`layout.verl` must not keep the rollout from recording what the divergence needs of mu."""
    needed = {f"{ROLLOUT}.calculate_log_probs": True, f"{ROLLOUT}.logprobs_mode": "processed_logprobs"}
    if run.divergence.estimator == "topk":
        needed[f"{ROLLOUT}.engine_kwargs.cppo_lab.topk"] = run.divergence.k
    for key, value in needed.items():
        if layout.verl.get(key, value) != value:
            raise UserError(
                f"configuration: layout.verl {key}={layout.verl[key]!r} keeps from the loss mu's log-probabilities "
                f"that divergence.estimator={run.divergence.estimator!r} needs: drop it, or set it to {value!r}"
            )
