"""Log-probabilities, entropy and divergences from verl's logits, sharded or not."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.ulysses import get_ulysses_sequence_parallel_world_size, slice_input_tensor

from cppo_lab.errors import UserError, say
from cppo_lab.maths.divergence import Recorded, drift, logp_and_divergence, topk_from_logp

# Log-probabilities and entropy from logits whose vocabulary is sharded over the ranks of a process group.
#
# Rank r of p holds the logits of ids r V/p ... (r + 1) V/p - 1, as in Megatron's output layer. With m the largest
# logit and s = sum_v exp(x_v - m) over all ranks:
#
#     log pi(v) = x_v - m - log s,      H(pi) = log s - sum_v exp(x_v - m) (x_v - m) / s
#
# Two collectives whatever the number of rows: the maximum, and the sum of s, of the entropy's numerator and of the
# wanted logits, each of which exactly one rank holds.

_ELEMENTS = 2**24  # of a chunk's float32 copy


@torch.no_grad()
def logp_and_entropy(logits: Tensor, ids: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Log pi at `ids` [N, M] and the entropy of pi [N], in float32, the same on every rank.

    Args:
        logits: [N, V / p], this rank's part, already divided by the temperature.
        ids: [N, M] ids of the whole vocabulary; a negative id gives a meaningless finite value.
        group: the p ranks that share the vocabulary, in the order of their parts.
    """
    width = logits.shape[1]
    highest = logits.amax(1).float()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    local = ids.long() - dist.get_rank(group) * width
    ours = (local >= 0) & (local < width)
    local = local.clamp(0, width - 1)
    # Columns: s, the entropy's numerator, the wanted logits.
    sums = logits.new_zeros(len(logits), 2 + ids.shape[1], dtype=torch.float32)
    step = max(1, _ELEMENTS // width)
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        shifted = logits[rows].float() - highest[rows, None]
        mass = shifted.exp()
        sums[rows, 0] = mass.sum(1)
        sums[rows, 1] = torch.where(mass > 0, mass * shifted, 0.0).sum(1)  # 0 log 0 = 0
        sums[rows, 2:] = torch.where(ours[rows], shifted.gather(1, local[rows]), 0.0)
    dist.all_reduce(sums, group=group)
    log_sum = sums[:, 0].log()
    return sums[:, 2:] - log_sum[:, None], log_sum - sums[:, 1] / sums[:, 0]


# Computes log pi of the labels, the divergence from mu and the entropy of pi from logits inside verl's engines.
#
# verl calls its loss as a logits processor when the batch carries `distillation_use_topk`: on the packed rows of a
# micro-batch, after the division by the temperature. Row p predicts token p + 1. mu's Top-K columns hold response
# tokens only; here they are placed on the rows that predict those tokens. The other rows (all of a prompt except its
# last, and the last of a response) hold a harmless filler, and verl drops their outputs.
#
# FSDP (also with Ulysses sequence parallelism): one pass gives the log-probabilities, with gradient, and the divergence
# and the entropy, without. With `distillation_only` in the batch verl skips its log-probabilities.
#
# Megatron: logits are sharded over the vocabulary. verl keeps computing the log-probabilities, from the same logits;
# the divergence and the entropy are added. Written from the code of verl's
# `MegatronEngineWithLMHead._lm_head_logits_processor`, and tested on verl's packing with a stand-in for Megatron's
# process groups; Megatron itself was not run.
#
# N = packed rows of this rank, K = tokens kept of mu, V = vocabulary.

# Keys of the model's output. Not "entropy", which verl's loss would use for its entropy bonus.
LOGP, DIVERGENCE, ENTROPY = "log_probs", "divergence", "policy_entropy"
DRIFT = "divergence_drift"
TOPK = "topk_log_probs/"  # + place among mu's Top-K: verl takes a single number for each row
NO_TOKEN = -1  # an empty slot of the Top-K partition


def fsdp_outputs(logits: Tensor, data: Any, loss: Any) -> dict[str, Tensor]:
    """LOGP, ENTROPY, if `needs_topk` DIVERGENCE, if `needs_drift` DRIFT, each [1, N]; if `centering` TOPK, with
    gradient as LOGP.

    Args:
        logits: [1, N, V], divided by the temperature; under Ulysses this rank's rows.
        data: the micro-batch, see `packed_columns`.
        loss: a `TrustRegionLossConfig`. Where D_t needs no Top-K, it is computed later, from log-probabilities only.
    """
    columns = packed_columns(data, loss.needs_topk)
    if get_ulysses_sequence_parallel_world_size() > 1:
        # As verl splits its labels: zeros after the packed row up to a multiple of the ranks, then equal parts.
        columns = Recorded(*(slice_input_tensor(column, dim=0) for column in columns))
    # verl's log-probabilities or entropy would read the logits after us.
    alone = tu.get_non_tensor_data(data, "distillation_only", False) and not (
        tu.get_non_tensor_data(data, "calculate_entropy", False)
        or tu.get_non_tensor_data(data, "calculate_sum_pi_squared", False)
    )
    rows = logits.squeeze(0)
    result = logp_and_divergence(
        rows,
        columns,
        **loss.measuring,
        entropy=True,
        overwrite_logits=alone,
        fused=kernels_serve(rows.device, rows.dtype, rows.shape[1]),
        topk_gradient=loss.centering,
    )
    assert result.entropy is not None
    outputs = {LOGP: result.logp, ENTROPY: result.entropy}
    if loss.needs_topk:
        outputs[DIVERGENCE] = result.divergence
    if loss.needs_drift:
        outputs[DRIFT] = drift(columns, result.topk_logp, result.logp, **loss.measuring)
    if loss.centering:
        outputs |= {f"{TOPK}{place}": part for place, part in enumerate(result.topk_logp.unbind(1))}
    return {key: value.unsqueeze(0) for key, value in outputs.items()}


KERNELS = "Triton's kernels"
# What takes each kind of logits (device, dtype, vocabulary): KERNELS or why not.
CODE: dict[tuple[torch.device, torch.dtype, int], str] = {}


def kernels_serve(*kind: Any) -> bool:
    """Whether KERNELS take logits of this kind (device, dtype, vocabulary): on a GPU, if they pass a test there.

    The log has a warning if they do not.
    """
    if kind not in CODE:
        on_gpu = kind[0].type == "cuda"
        fault = kernel_fault(*kind) if on_gpu else "no GPU"
        CODE[kind] = f"eager code: {fault}" if fault else KERNELS
        if on_gpu and fault:
            say(f"the loss takes {kind[1]} logits by the {CODE[kind]}")
    return CODE[kind] == KERNELS


def kernel_fault(device: torch.device, dtype: torch.dtype, vocabulary: int) -> str:
    """Why the kernels cannot take such logits: they do not run, or differ from the eager code; empty if neither."""
    logits = (4 * torch.arange(8.0 * vocabulary, device=device).sin()).view(8, -1).to(dtype)
    logits[0, 0] = -torch.inf
    ids = 1 + torch.arange(40, device=device, dtype=torch.int32).view(8, 5) % (vocabulary - 1)
    mu = torch.full((8, 5), -2.0, device=device)

    @torch.enable_grad()
    def computed(fused: bool, topk_gradient: bool) -> Any:
        leaf = logits.clone().requires_grad_()
        result = logp_and_divergence(
            leaf * 1,
            Recorded(ids[:, 0], mu[:, 0], ids, mu),
            measure="kl",
            overwrite_logits=True,
            entropy=True,
            fused=fused,
            topk_gradient=topk_gradient,
        )
        loss = result.logp @ torch.arange(8.0, device=device)
        if topk_gradient:
            loss = loss + result.topk_logp.sin().sum()  # a weight of its own for each
        loss.backward()
        return result, leaf.grad

    try:
        for topk_gradient in (False, True):  # the second for `objective.centering`
            (values, gradient), (expected, slope) = (
                computed(fused, topk_gradient) for fused in (True, False)
            )
            torch.testing.assert_close(tuple(values), tuple(expected), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(gradient, slope, rtol=1e-4 + 2 * torch.finfo(dtype).eps, atol=1e-4)
    except Exception as error:  # noqa: BLE001  a compiler and a driver fail in ways of their own
        return f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
    return ""


def megatron_outputs(logits: Tensor, data: Any, data_format: str, loss: Any) -> dict[str, Tensor]:
    """ENTROPY, if `needs_topk` DIVERGENCE, if `needs_drift` DRIFT, shaped as the first two dimensions of the logits.

    Args:
        logits: this rank's part of the vocabulary, [1, N, V / p] ("thd") or [B, S, V / p] ("bshd").
        data_format: "thd" or "bshd".
        (the others as in `fsdp_outputs`)
    """
    from megatron.core.parallel_state import get_tensor_model_parallel_group
    from verl.models.mcore import util as packing

    place = packing.preprocess_thd_engine if data_format == "thd" else packing.preprocess_bshd_engine
    offsets = data["input_ids"].offsets()

    def placed(column: Tensor) -> Any:
        """The column, placed as verl places labels: padded to its alignment, and this context-parallel rank's part."""
        nested = torch.nested.nested_tensor_from_jagged(column, offsets)
        return place(nested, pre_process=True)[0].flatten(0, 1)

    columns = Recorded(*map(placed, packed_columns(data, loss.needs_topk)))
    flat = logits.detach().flatten(0, 1)
    if len(flat) != len(columns.tokens):
        raise UserError(
            f"logits have {len(flat)} rows, verl's packing gives {len(columns.tokens)}: switch off FP8 padding, "
            "pad_to_length and pad_bshd_to_minibatch_max, and use verl's default context-parallel layout"
        )
    ids = torch.cat([columns.tokens[:, None], columns.topk_ids], 1)
    logp, entropy = logp_and_entropy(flat, ids, get_tensor_model_parallel_group())
    outputs, known = {ENTROPY: entropy}, (columns, logp[:, 1:], logp[:, 0])
    if loss.needs_topk:
        outputs[DIVERGENCE] = topk_from_logp(*known, **loss.measuring)
    if loss.needs_drift:
        outputs[DRIFT] = drift(*known, **loss.measuring)
    return {key: value.view(logits.shape[:2]) for key, value in outputs.items()}


def packed_columns(data: Any, on_topk: bool) -> Recorded:
    """What the rollout recorded, on the packed rows of a micro-batch: of the token that each row predicts.

    Args:
        data: nested `input_ids` [B, P + R], `responses` and `old_log_probs` [B, R], and, if `on_topk`,
            `rollout_topk_ids` and `rollout_topk_logp` [B, R, K]; `rollout_log_probs` as in `of_mu`.

    Raises:
        UserError: Top-K columns that do not have a row for each response token.
    """
    sequences, responses = data["input_ids"], data["responses"]
    rows = predicting_rows(sequences.offsets(), responses.offsets())
    total = len(sequences.values())
    # As in verl: the last row of a sequence gets the first of the next.
    tokens = torch.roll(sequences.values(), -1)
    rollout_logp = laid(data[of_mu(data)].values(), rows, total, 0.0)
    if not on_topk:
        return Recorded(tokens, rollout_logp, tokens.view(-1, 1)[:, :0], rollout_logp.view(-1, 1)[:, :0])
    recorded = []
    for name, filler in (("rollout_topk_ids", NO_TOKEN), ("rollout_topk_logp", 0.0)):
        if not torch.equal(data[name].offsets().diff(), responses.offsets().diff()):
            raise UserError(
                f"{name} has {data[name].offsets().diff().tolist()} rows, the responses have "
                f"{responses.offsets().diff().tolist()} tokens: record one row per response token"
            )
        recorded.append(laid(data[name].values(), rows, total, filler))
    return Recorded(tokens, rollout_logp, *recorded)


def of_mu(data: Any) -> str:
    """The column of log mu. verl's trainer always has the first; in bypass mode the second, pi_old's, is its copy."""
    return "rollout_log_probs" if "rollout_log_probs" in data else "old_log_probs"


def predicting_rows(sequences: Tensor, responses: Tensor) -> Tensor:
    """Packed row that predicts each response token [sum R], from the offsets [B + 1] of both.

    Token t of response i is the row before the last R_i - t rows of its sequence, and predicted one row earlier.
    """
    lengths, count = responses.diff(), int(responses[-1])
    before = sequences[1:] - lengths - 1 - responses[:-1]
    return before.repeat_interleave(lengths, output_size=count) + torch.arange(count, device=lengths.device)


def laid(values: Tensor, rows: Tensor, total: int, filler: float) -> Tensor:
    """[sum R, ...] -> [total, ...]: `values` at `rows`, `filler` elsewhere."""
    out = values.new_full((total, *values.shape[1:]), filler)
    return out.index_copy_(0, rows, values)
