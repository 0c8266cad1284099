"""What readers see instead of identifiers: display names, the order of rows, and where results come from."""

import re
from collections.abc import Iterable

from cppo_lab import schema

METHOD_ORDER = ("grpo", "minpro", "cispo", "dppo", "trm_max", "trm_avg", "cppo")
OURS = "cppo"  # the row that the paper shades

_NAMES = {
    "grpo": "GRPO",
    "ppo": "PPO",
    "dr_grpo": "Dr. GRPO",
    "gspo": "GSPO",
    "geo_mean": "GMPO",
    "sapo": "SAPO",
    "minpro": "MinPRO",
    "cispo": "CISPO",
    "dppo": "DPPO",
    "trm_max": "TRM-Max",
    "trm_avg": "TRM-Avg",
    "trm_max_avg": "TRM-Max&Avg",
    "cppo": "CPPO",
    "cppo_no_position_weight": "CPPO without position weight",
    "cppo_no_prefix_budget": "CPPO without prefix budget",
    "cppo_no_prefix_budget_shuffled": "CPPO without prefix budget, shuffled weights",
    "cppo_soft": "CPPO soft gate",
    "cppo_kl": "CPPO, KL",
    "cppo_tv": "CPPO, TV",
    "cppo_topk_tv": "CPPO, Top-K TV",
    "cppo_binary_tv": "CPPO, Binary TV",
    "cppo_fixed_budget": "CPPO, fixed budget rate",
    "cppo_low_w_min": "CPPO, lower w_min",
    "no_trust_region": "no trust region",
}
_CONSTANTS = re.compile(r"cppo_db(?P<delta_b>[\d.]+)_w(?P<w_min>[\d.]+)")
_BENCHMARK = re.compile(r"(?P<letters>[A-Za-z]+)(?P<digits>\d+)")


def display_name(variant: str) -> str:
    """The name of a variant in tables and legends; an unknown one is shown as it is."""
    constants = _CONSTANTS.fullmatch(variant)
    if constants:
        return f"CPPO, delta_b {constants['delta_b']}, w_min {constants['w_min']}"
    return _NAMES.get(variant, variant)


def benchmark_name(benchmark: str) -> str:
    """`aime24` -> `AIME24`; any other benchmark as it is logged."""
    match = _BENCHMARK.fullmatch(benchmark)
    return benchmark.upper() if match and match["letters"].lower() == "aime" else benchmark


def in_order(variants: Iterable[str]) -> tuple[str, ...]:
    """The paper's methods in the paper's order, then the others as declared."""
    declared = tuple(dict.fromkeys(variants))
    known = tuple(name for name in METHOD_ORDER if name in declared)
    return known + tuple(name for name in declared if name not in known)


def origin(core: str) -> str:
    """One line on where numbers come from. Numbers of different origins never share a table unmarked."""
    if core == schema.PAPER:
        return "the paper's own curves (arXiv 2606.10968), not trained here"
    if core == "mini":
        return "core=mini: a miniature model on a synthetic task, not comparable with the paper's numbers"
    return f"core={core}"


def objective_name(objective: str) -> str:
    """What a search maximises, in words: `final_score` -> `final score`."""
    return objective.replace("_", " ")


def value_text(value: float | str | bool | None) -> str:
    """A setting to read: four significant digits; `true`, `false`, `null` as in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) else f"{value:.4g}"
