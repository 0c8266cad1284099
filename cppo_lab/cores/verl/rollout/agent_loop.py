"""verl's single-turn agent loop with a seed per request and mu's Top-K carried to TransferQueue.

Selected with `rollout.agent.default_agent_loop=cppo_single_turn`, together with
`rollout.agent.agent_loop_manager_class` (see below), which marks training and validation rows.
"""

from typing import Any

import numpy as np
import torch
from pydantic import Field
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils import tensordict_utils
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from cppo_lab.cores.verl.rollout import (
    ENGINE_KEY,
    POLICY_STEP,
    TOPK_DTYPE_REQUEST,
    TOPK_IDS,
    TOPK_LOGP,
    TOPK_REQUEST,
    VALIDATION_STEP,
    RolloutSettings,
    seed_of,
)
from cppo_lab.errors import UserError

AGENT_LOOP_NAME = "cppo_single_turn"
# Column that marks validation rows: verl's agent loop workers know, but do not pass it to their loops.
VALIDATE = "cppo_validate"


class TopKAgentLoopOutput(AgentLoopOutput):
    """A response with columns of ours: mu's Top-K, and the policy that sampled each token.

    Not in `extra_fields`: those travel to the reward workers as well, and as pickled objects.
    """

    # TOPK_IDS int32 [R, K], TOPK_LOGP float16 or float32 [R, K]; of asynchronous rollouts POLICY_STEP int32 [R]
    columns: dict[str, Any] = Field({}, exclude=True)

    def as_dict(self) -> dict[str, Any]:
        """verl's columns, and ours as tensors."""
        ours = {name: torch.from_numpy(column) for name, column in self.columns.items()}
        return super().as_dict() | ours


@register(AGENT_LOOP_NAME)
class TopKAgentLoop(SingleTurnAgentLoop):
    """One prompt, one response."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Generates the response to a data row.

        `row`: the columns of the data set, and verl's `global_steps`, `session_id` and our `VALIDATE`.

        Raises UserError if the Top-K of a training row is requested but missing, or if a row lacks the fields that its
        seed is derived from.
        """
        settings = RolloutSettings.read(self.rollout_config.engine_kwargs)
        validate = bool(row[VALIDATE])
        request = dict(sampling_params)  # verl passes the same dict to all sessions of a prompt
        if settings.seed_requests or validate:
            # verl's data set gives every row without `extra_info.index` the index 0: all problems would share their
            # seeds.
            index = (row.get("extra_info") or {}).get("index")
            if index is None:
                raise UserError(
                    "a data row has no extra_info.index, which its request's seed is made of: write the data with "
                    f"`cppo data prepare`, or set engine_kwargs.{ENGINE_KEY}.seed_requests=false"
                )
            step = VALIDATION_STEP if validate else int(row["global_steps"])
            # The source, since indices of different data sets overlap.
            source = str(row.get("data_source", ""))
            request["seed"] = seed_of(settings.seed, step, source, index, int(row["session_id"]))
        topk = 0 if validate else settings.topk
        if topk:
            request |= {TOPK_REQUEST: topk, TOPK_DTYPE_REQUEST: settings.topk_dtype}
        output = await super().run(request, **row)
        ids, logp, steps = (
            output.extra_fields.pop(name, None) for name in (TOPK_IDS, TOPK_LOGP, POLICY_STEP)
        )
        columns: dict[str, Any] = {}
        length = len(output.response_ids)
        if topk:
            shapes = [None if part is None else part.shape for part in (ids, logp)]
            rows = 0 if ids is None else len(ids)
            # verl cuts responses at its limit.
            if shapes != [(rows, topk)] * 2 or not (rows == length or rows > length == self.response_length):
                raise UserError(
                    f"the rollout server returned a Top-K of shapes {shapes} for {length} response tokens and "
                    f"engine_kwargs.{ENGINE_KEY}.topk={topk}: it is not ours (VERL_USE_EXTERNAL_MODULES="
                    "cppo_lab.cores.verl.plugin), or the chat template adds tokens"
                )
            # Copies: arrays that came over Ray cannot be written to, which torch tensors must allow.
            columns = {TOPK_IDS: ids[:length].copy(), TOPK_LOGP: logp[:length].copy()}
        if steps is not None and not validate:
            columns[POLICY_STEP] = steps[:length]
        given = {name: getattr(output, name) for name in output.model_fields_set}
        return TopKAgentLoopOutput(**given | {"extra_fields": output.extra_fields}, columns=columns)


# verl's agent loop manager for TransferQueue, which also marks every row as training or validation.
#
# Selected with `rollout.agent.agent_loop_manager_class=cppo_lab.cores.verl.rollout.agent_loop.MarkedAgentLoopManager`.


class MarkedAgentLoopManager(AgentLoopManagerTQ):
    """Sends prompts to the agent loop workers, each with a column `VALIDATE`."""

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Dispatches `prompts`; verl marks a validation batch with `validate`, which its workers take out again."""
        validate = bool(tensordict_utils.get_non_tensor_data(prompts, "validate", default=False))
        tensordict_utils.assign_non_tensor_data(prompts, VALIDATE, validate)
        super().generate_sequences(prompts)


# verl's client that resumes responses which the servers have aborted for new weights, with the columns that it loses.


class _PieceClient(LLMServerClient):
    """Asks for a piece of a response, and remembers it."""

    async def generate(
        self, request_id: str, *, sampling_params: dict[str, Any], pieces: list[TokenOutput], **arguments: Any
    ) -> TokenOutput:
        """verl's `generate`, which `ResumingClient` calls by way of verl's loop over the pieces."""
        sampled = sum(len(piece.token_ids) for piece in pieces)
        if sampled and sampling_params.get("seed") is not None:
            # The engine would draw the numbers of the first piece once more: its tokens, on which the next depend,
            # have used them.
            sampling_params = sampling_params | {"seed": seed_of(sampling_params["seed"], sampled)}
        output = await super().generate(request_id, sampling_params=sampling_params, **arguments)
        pieces.append(output)
        return output


class ResumingClient(FullyAsyncLLMServerClient, _PieceClient):
    """verl's, which also puts the Top-K together from the pieces, and says which policy sampled each token."""

    async def generate(self, request_id: str, **arguments: Any) -> TokenOutput:
        """One whole response; for each token mu's Top-K, if asked for, and `POLICY_STEP`."""
        pieces: list[TokenOutput] = []
        output = await super().generate(request_id, pieces=pieces, **arguments)
        sampled = [piece for piece in pieces if piece.token_ids]
        for name in (TOPK_IDS, TOPK_LOGP):
            parts = [piece.extra_fields[name] for piece in sampled if name in piece.extra_fields]
            if parts:
                output.extra_fields[name] = np.concatenate(parts)
        steps = [np.full(len(piece.token_ids), piece.extra_fields["global_steps"]) for piece in sampled]
        output.extra_fields[POLICY_STEP] = np.concatenate([np.empty(0), *steps]).astype(np.int32)
        return output
