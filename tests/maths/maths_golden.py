"""The golden vectors as torch tensors, and which rule with which constants each golden method stands for."""

import functools
import json
from pathlib import Path

import numpy
import torch

from cppo_lab.maths.output import RuleOutput, common_stats, importance_objective, tokens
from cppo_lab.maths.rules import get_rule

_PATH = Path(__file__).parents[1] / "oracles" / "vectors.npz"
with numpy.load(_PATH, allow_pickle=False) as _archive:
    ARRAYS = {name: _archive[name] for name in _archive.files}
MANIFEST = json.loads(str(ARRAYS["manifest"]))
CASES = MANIFEST["cases"]
MODES = MANIFEST["modes"]
KEYS = [key for key in ARRAYS if key != "manifest"]

DTYPES = (torch.float64, torch.float32)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5}


def golden(key: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """One golden array; `dtype` None keeps the stored one."""
    tensor = torch.from_numpy(ARRAYS[key].copy())
    return tensor if dtype is None else tensor.to(dtype)


def valid(case: str) -> torch.Tensor:
    return golden(f"{case}/in/valid").bool()


def keys(*parts: str, of: tuple[str, ...] | None = None) -> list[str]:
    """Keys `<case>/<part>/<name>...` whose part is one of `parts`, and name one of `of`."""
    found = []
    for key in KEYS:
        pieces = key.split("/")
        if pieces[0] in CASES and pieces[1] in parts and (of is None or pieces[2] in of):
            found.append(key)
    return found


def budget(hp: dict) -> dict:
    return {"delta_b": hp["delta_b_min"], "delta_b_mode": hp["delta_b"]}


# golden method -> (rule, divergence array, constants from the case's hyper-parameters)
METHODS = {
    "grpo": ("grpo", "D", lambda hp: {"clip_low": 0.2, "clip_high": 0.28}),
    "grpo_dual10": ("grpo", "D", lambda hp: {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10.0}),
    "ppo": ("ppo", "D", lambda hp: {"clip_low": 0.2, "clip_high": 0.2}),
    "dppo": ("dppo", "D", lambda hp: {"delta": hp["delta"]}),
    "cppo": ("cppo", "D", lambda hp: {"delta": hp["delta"], "w_min": hp["w_min"], **budget(hp)}),
    "cppo_span": (
        "cppo",
        "D",
        lambda hp: {"delta": hp["delta"], "w_min": hp["w_min"], "span": hp["span"], **budget(hp)},
    ),
    "cppo_kl": (
        "cppo",
        "KL",
        lambda hp: {
            "delta": hp["delta_kl"],
            "delta_b": hp["delta_b_kl"],
            "delta_b_mode": "fixed",
            "w_min": hp["w_min"],
        },
    ),
    "cppo_no_weight": (
        "cppo_no_position_weight",
        "D",
        lambda hp: {"delta": hp["delta"], **budget(hp)},
    ),
    "cppo_no_prefix": (
        "cppo_no_prefix_budget",
        "D",
        lambda hp: {"delta": hp["delta"], "w_min": hp["w_min"]},
    ),
    # The golden file shuffles the weights of full CPPO; the permutation is added in `output`.
    "cppo_shuffled": ("cppo", "D", lambda hp: {"delta": hp["delta"], "w_min": hp["w_min"], **budget(hp)}),
    "cppo_soft_inv": (
        "cppo_soft",
        "D",
        lambda hp: {"delta": hp["delta"], "w_min": hp["w_min"], "gate": "inverse", **budget(hp)},
    ),
    "cppo_soft_sapo_adm": (
        "cppo_soft",
        "D",
        lambda hp: {"delta": hp["delta"], "w_min": hp["w_min"], "gate": "sapo_admissible", **budget(hp)},
    ),
    "trm_max": ("trm_max", "KL", lambda hp: {"delta_max": hp["trm_max"]}),
    "trm_avg": ("trm_avg", "KL", lambda hp: {"delta_avg": hp["trm_avg"]}),
    "trm_max_avg": (
        "trm_max_avg",
        "KL",
        lambda hp: {"delta_max": hp["trm_max_loose"], "delta_avg": hp["trm_avg_loose"]},
    ),
    "cispo_hi4": ("cispo", "D", lambda hp: {"clip_high": 4.0}),
    "cispo_hi0.28": ("cispo", "D", lambda hp: {"clip_high": 0.28}),
    "minpro_hi4": ("minpro", "D", lambda hp: {"clip_high": 4.0}),
    "minpro_.2_.28": ("minpro", "D", lambda hp: {"clip_low": 0.2, "clip_high": 0.28}),
    "pg_is": ("unmasked", "D", lambda hp: {}),
}


def _unmasked(*arguments: torch.Tensor) -> RuleOutput:
    """rho A without any trust region: the objective that every mask multiplies."""
    batch = tokens(*arguments)
    keep = batch.valid.to(batch.logp.dtype)
    return RuleOutput(importance_objective(batch, keep), keep, common_stats(batch, keep))


@functools.cache
def output(case: str, method: str, dtype: torch.dtype) -> tuple[RuleOutput, torch.Tensor]:
    """The rule's output on a golden case, and the logp it is differentiable in."""
    rule, divergence, constants = METHODS[method]
    parameters = constants(CASES[case]["hp"])
    if method == "cppo_shuffled":
        parameters["permutation"] = golden(f"{case}/in/perm")
    logp = golden(f"{case}/in/logp", dtype).requires_grad_()
    function = _unmasked if rule == "unmasked" else get_rule(rule)
    result = function(
        logp,
        golden(f"{case}/in/rollout_logp", dtype),
        golden(f"{case}/in/advantage", dtype),
        golden(f"{case}/in/valid"),
        golden(f"{case}/in/{divergence}", dtype),
        **parameters,
    )
    return result, logp
