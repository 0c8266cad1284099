"""Our value of every array of a vectors file, by the `<part>` of its key `<case>/<part>/<name>`."""

import re
from collections.abc import Callable

import torch
from torch import Tensor

from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.aggregation import MODES, aggregate, group_advantages
from cppo_lab.maths.masks import ThresholdTests, threshold_tests, violation_score
from cppo_lab.maths.masks import sapo as sapo_gate
from cppo_lab.maths.metrics import relative_logprob_error
from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.weights import effective_delta_b, position_weights
from cppo_lab.vectors import theory
from cppo_lab.vectors.archive import Vectors
from cppo_lab.vectors.methods import NUMBER
from cppo_lab.vectors.recompute import Recomputation

# `<case>/in/...` that nothing else in the file determines.
INPUTS = {
    *("valid", "advantage", "logp", "rollout_logp", "D", "KL", "perm", "tokens", "mu", "pi"),
    *("rollout_topk_ids", "rollout_topk_logp", "rewards", "groups"),
}


def is_input(vectors: Vectors, key: str) -> bool:
    """Whether an array is given rather than computed."""
    head, _, name = key.partition("/in/")
    if head == "extreme":
        return name in ("mu", "pi", "tokens")
    return (head in vectors.cases and name in INPUTS) or key in theory.INPUTS


def value(ours: Recomputation, key: str) -> Tensor | None:
    """What this package computes for an array, 0 at padding; None for an unknown key.

    Raises:
        LookupError: an array or a hyper-parameter that it needs is missing.
        ValueError, RuntimeError, TypeError: the inputs are not what the maths takes.
    """
    case, _, rest = key.partition("/")
    part, _, name = rest.partition("/")
    if case == "extreme" and part == "D":
        return _extreme(ours, name)
    if case == "theory":
        return theory.value(ours.vectors, key)
    if case not in ours.vectors.cases or part not in PARTS:
        return None
    return PARTS[part](ours, case, name)


def _derived_input(ours: Recomputation, case: str, name: str) -> Tensor | None:
    if name == "ratio":
        logp, rollout_logp = ours.given(case, "logp", "rollout_logp")
        return (logp - rollout_logp).exp() * ours.vectors.valid(case)
    if name == "lengths":
        return ours.vectors.valid(case).sum(1)
    if name not in ("advantage_seq", "advantage_seq_nostd", "group_keep"):
        return None
    [rewards], groups = ours.given(case, "rewards"), ours.vectors.tensor(f"{case}/in/groups")
    advantages, keep = group_advantages(rewards, groups, normalize_std=name != "advantage_seq_nostd")
    return keep.to(ours.dtype) if name == "group_keep" else advantages


def _divergence(ours: Recomputation, case: str, name: str) -> Tensor | None:
    measure, _, estimator = name.partition("_")
    logp, rollout_logp = ours.given(case, "logp", "rollout_logp")
    if name in ("k2", "k3"):
        values = getattr(divergences, name)(logp, rollout_logp)
    elif measure not in divergences.MEASURES:
        return None
    elif estimator == "":
        mu, pi = ours.given(case, "mu", "pi")
        values = divergences.exact(mu.log(), pi.log(), measure)
    elif estimator == "binary":
        values = divergences.binary(logp, rollout_logp, measure)
    elif convention := {"topk": "union", "topk_replace": "replace_kth"}.get(estimator):
        size = ours.vectors.cases[case].get("K", 20)
        pi, top_logp = ours.given(case, "pi", "rollout_topk_logp")
        ids, tokens = (ours.vectors.tensor(f"{case}/in/{key}") for key in ("rollout_topk_ids", "tokens"))
        top = ids[..., :size], top_logp[..., :size]  # the file stores one more than K
        values = divergences.topk(
            *top, pi.log(), tokens, rollout_logp, measure=measure, convention=convention
        )
    else:
        return None
    return torch.where(ours.vectors.valid(case), values, 0.0)


def _extreme(ours: Recomputation, name: str) -> Tensor | None:
    """Divergences of single positions with exact zeros; K is in the name: `tv_topk2`."""
    mu_logp, pi_logp = (ours.tensor(f"extreme/in/{key}").log() for key in ("mu", "pi"))
    tokens = ours.vectors.tensor("extreme/in/tokens")
    rollout_logp, logp = (each.gather(-1, tokens[:, None])[:, 0] for each in (mu_logp, pi_logp))
    match = re.fullmatch(r"(tv|kl)(?:_(binary|topk(\d+)(_replace)?))?", name)
    if match is None:
        return None
    measure, estimator, size, replace = match.groups()
    if estimator is None:
        return divergences.exact(mu_logp, pi_logp, measure)
    if estimator == "binary":
        return divergences.binary(logp, rollout_logp, measure)
    top = mu_logp.sort(dim=-1, descending=True, stable=True)  # among equals the lowest id, as the file
    return divergences.topk(
        top.indices[:, : int(size)],
        top.values[:, : int(size)],
        pi_logp,
        tokens,
        rollout_logp,
        measure=measure,
        convention="replace_kth" if replace else "union",
    )


def _weights(ours: Recomputation, case: str, name: str) -> Tensor | None:
    if name not in ("linear", "span"):
        return None
    span = ours.vectors.constant(case, "span") if name == "span" else None
    [valid] = ours.given(case, "valid")
    return position_weights(valid, ours.vectors.constant(case, "w_min"), span, dtype=ours.dtype)


def _budget(ours: Recomputation, case: str, name: str) -> Tensor | None:
    match = re.fullmatch(rf"used|adaptive_x{NUMBER}", name)
    if match is None:
        return None
    mode = ours.vectors.constant(case, "delta_b") if name == "used" else "adaptive"
    cap = 2.0 if name == "used" else float(match[1])
    floor = ours.vectors.constant(case, "delta_b_min")
    divergence, valid = ours.given(case, "D", "valid")
    return effective_delta_b(divergence, valid, floor, mode, cap)


def _threshold_tests(ours: Recomputation, case: str) -> tuple[ThresholdTests, Tensor]:
    """CPPO's tests and score x_t with our own weights and budgets."""
    [divergence], valid = ours.given(case, "D"), ours.vectors.valid(case)
    weights, rate = _weights(ours, case, "linear"), _budget(ours, case, "used")
    assert weights is not None and rate is not None
    arguments = divergence, weights, valid, ours.vectors.constant(case, "delta"), rate
    return threshold_tests(*arguments), violation_score(*arguments)


def _score(ours: Recomputation, case: str, name: str) -> Tensor | None:
    tests, score = _threshold_tests(ours, case)
    delta = ours.vectors.constant(case, "delta")
    values = {"cppo": score, "threshold_c": (delta - tests.excess).clamp_max(delta)}.get(name)
    return None if values is None else values * ours.vectors.valid(case)


def _mask(ours: Recomputation, case: str, name: str) -> Tensor | None:
    if name == "cppo_soft_sapo":  # SAPO's own gate is not admissible, hence no gate of the rule
        [advantage, ratio] = ours.given(case, "advantage", "ratio")
        gate = sapo_gate(_threshold_tests(ours, case)[1])
        return torch.where(advantage * (ratio - 1) > 0, gate, 1.0) * ours.vectors.valid(case)
    found = ours.output(case, name)
    return found and found[0].keep


def _objective(ours: Recomputation, case: str, name: str) -> Tensor | None:
    found = ours.output(case, name)
    return found and found[0].objective.detach()


def _gradient(ours: Recomputation, case: str, name: str) -> Tensor | None:
    if (found := ours.output(case, name)) is None:
        return None
    return torch.autograd.grad(found[0].objective.sum(), found[1], retain_graph=True)[0]


def _loss(ours: Recomputation, case: str, name: str) -> Tensor | None:
    found = _differentiable_loss(ours, case, name)
    return found and found[0].detach()


def _loss_gradient(ours: Recomputation, case: str, name: str) -> Tensor | None:
    found = _differentiable_loss(ours, case, name)
    return found and torch.autograd.grad(*found, retain_graph=True)[0]


def _differentiable_loss(ours: Recomputation, case: str, name: str) -> tuple[Tensor, Tensor] | None:
    """The loss of `<method>/<mode>` and the logp it is differentiable in."""
    method, _, mode = name.partition("/")
    found = ours.output(case, method)
    if found is None or mode not in MODES:
        return None
    horizon = ours.vectors.cases[case].get("horizon") if mode == "seq-mean-token-sum-norm" else None
    return -aggregate(found[0].objective, ours.vectors.valid(case), mode, horizon=horizon), found[1]


def _metric(ours: Recomputation, case: str, name: str) -> Tensor | None:
    if name == "rel_logp_err":
        difference, scale = relative_logprob_error(*ours.given(case, "logp", "rollout_logp", "valid"))
        return difference / scale
    found = ours.output(case, "cppo")
    if name != "prefix_counts" or found is None:
        return None
    # [B, 3]: masked, of them rejected by the prefix test alone, of them failing the prefix test at all
    dropped = ours.vectors.valid(case) & (found[0].keep == 0)
    failing = (dropped & _threshold_tests(ours, case)[0].prefix_fails).sum(1)
    inputs = ours.given(case, "logp", "rollout_logp", "advantage", "valid", "D")
    hp = {key: ours.vectors.constant(case, key) for key in ("delta", "w_min")}
    rate = {"delta_b": ours.vectors.constant(case, "delta_b_min")}
    mode = ours.vectors.constant(case, "delta_b")
    counts = []
    for row in range(len(failing)):
        one = [tensor[row : row + 1] for tensor in inputs]
        stats = get_rule("cppo")(*one, **hp, **rate, delta_b_mode=mode).stats
        counts.append(torch.stack([stats["masked"], stats["masked_by_prefix"], failing[row].to(ours.dtype)]))
    return torch.stack(counts)


PARTS: dict[str, Callable[[Recomputation, str, str], Tensor | None]] = {
    "in": _derived_input,
    "D": _divergence,
    "w": _weights,
    "delta_b": _budget,
    "score": _score,
    "mask": _mask,
    "val": _objective,
    "grad": _gradient,
    "loss": _loss,
    "dloss": _loss_gradient,
    "metric": _metric,
}
