"""Rules and divergences on the device, in float32 and from bfloat16, against float64 on the CPU.

The reference sees the same rounded numbers, so that the rounding of inputs counts for nothing. A decision of a mask may
differ where it hangs on rounding: where a relative change of NEAR in divergences, thresholds and log-probabilities
turns the reference's own decision. Such decisions are counted; one that takes a larger change is a fault.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.common import ROOT
from benchmarks.gpu_kit.record import Record
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.from_logits import logp_and_divergence
from cppo_lab.maths.rules import RULES
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import PERMUTATION
from cppo_lab.rules import RULES as RECORDS
from cppo_lab.sweep.compose import compose
from cppo_lab.testing.golden import Recomputation, Vectors, is_input, load
from cppo_lab.testing.vectors import DTYPES, TOLERANCE, Mismatch, check_array

NEAR = 1e-6
CPPO: dict[str, Any] = {"delta": 0.15, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "fixed"}
# In place of constants of conf/rule, with which these rules would drop all of `batch` or nothing.
CONSTANTS: dict[str, dict[str, float]] = {
    "trm_max": {"delta_max": 0.18},
    "trm_avg": {"delta_avg": 0.02},
    "trm_max_avg": {"delta_max": 0.2, "delta_avg": 0.021},
    "cispo": {"clip_high": 0.5},
    "minpro": {"clip_high": 0.5, "clip_low": 0.5},
    "icepop": {"ratio_low": 0.7, "ratio_high": 1.4},
    "m2po": {"m2": 0.02},
    "seq_mis": {"ratio_low": 0.1, "ratio_high": 10.0},
    "geo_mask": {"ratio_low": 0.995, "ratio_high": 1.005},
    "vaco": {"delta": 0.1},
}
THRESHOLDS = frozenset(
    [
        "delta",
        "delta_b",
        "delta_max",
        "delta_avg",
        "clip_low",
        "clip_high",
        "dual_clip",
        "log_clip_low",
        "log_clip_high",
        "ratio_low",
        "ratio_high",
        "m2",
    ]
)


class Batch(NamedTuple):
    """The arguments of a rule, in its order; every tensor [B, T]."""

    logp: Tensor
    rollout_logp: Tensor
    advantages: Tensor
    valid: Tensor
    divergence: Tensor

    def to(self, dtype: torch.dtype, device: str = "cpu") -> "Batch":
        """In another dtype (but `valid`) and place."""
        return Batch(*(t.to(device, t.dtype if t.dtype == torch.bool else dtype) for t in self))


@dataclass(frozen=True)
class OnDevice(Vectors):
    """Golden vectors whose tensors are on `device`."""

    device: str = "cpu"

    def tensor(self, key: str, dtype: torch.dtype | None = None) -> Tensor:
        return super().tensor(key, dtype).to(self.device)


def measure(device: str, record: Record) -> None:
    """The golden vectors, every rule on long responses, every divergence on a vocabulary."""
    checked, mismatches = golden(device)
    record.figure("golden_arrays_checked", checked, "arrays")
    record.figure("golden_mismatches", len(mismatches), "arrays", at_most=0)
    for mismatch in mismatches[:10]:
        record.note(f"golden vectors: {mismatch}")
    rows, width = (16, 8192) if device == "cuda" else (6, 512)
    places, vocabulary = (64, 151936) if device == "cuda" else (16, 512)
    record.note(
        f"rules on {rows} x {width} tokens, divergences at {places} states of {vocabulary:,} symbols, K = 20; "
        f"near a threshold: a relative change of {NEAR:g} turns the float64 decision"
    )
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        rules(device, dtype, name, batch(rows, width), record)
        for key, error in divergence_errors(device, dtype, places, vocabulary).items():
            record.figure(f"{name}_{key}_error", error, "of 1 + |value|", at_most=_tolerance(dtype, key))


def golden(device: str) -> tuple[int, list[Mismatch]]:
    """How many arrays of the golden vectors were compared, in float64 and float32, and those that differ by more than
    `cppo_lab.testing.vectors` allows.

    The theory's constants are left out: they are a few float64 numbers that nobody computes on a GPU.
    """
    vectors = load(ROOT / "tests" / "oracles" / "vectors.npz")
    both = [Recomputation(OnDevice(vectors.arrays, vectors.manifest, device), dtype) for dtype in DTYPES]
    computed = [key for key in vectors.arrays if not is_input(vectors, key) and not key.startswith("theory/")]
    checks = [check_array(both, key) for key in computed]
    return sum(known for known, _ in checks), [mismatch for _, mismatch in checks if mismatch]


def batch(rows: int, width: int) -> Batch:
    """Ragged responses in float64, whose divergences spend about CPPO's budget; a row with A = 0.

    In every second row every second token lies within 3e-5 of `cppo_fixed`'s prefix threshold.
    """
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    logp = -3 * uniform(rows, width) - 0.1
    rollout_logp = logp - 0.2 * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.float64).expand(rows, width).clone()
    advantages[-1] = 0.0
    lengths = torch.randint(width // 4, width + 1, (rows, 1), generator=generator)
    lengths[0] = width
    valid = torch.arange(width) < lengths
    divergence = -0.02 * uniform(rows, width).clamp_min(1e-9).log()
    offset = 10 ** (-8 + 3.5 * uniform(rows, width)) * torch.where(uniform(rows, width) < 0.5, 1.0, -1.0)
    weights = 1 - (1 - CPPO["w_min"]) * torch.arange(width) / (lengths - 1)
    excess = torch.zeros(rows, dtype=torch.float64)
    for t in range(width):
        if t % 2:
            limit = (CPPO["delta"] - excess).clamp_max(CPPO["delta"])
            pressed = ((limit + offset[:, t]) / weights[:, t]).clamp_min(0)
            divergence[1::2, t] = pressed[1::2]
        else:
            divergence[1::2, t] = CPPO["delta_b"] * uniform(rows)[1::2]
        excess += weights[:, t] * (divergence[:, t] - CPPO["delta_b"])
    return Batch(logp, rollout_logp, advantages, valid, divergence)


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(title, rule, constants): every rule, and CPPO with the budget to which `batch` presses divergences."""
    yield "cppo_fixed", "cppo", CPPO
    for rule in RULES:
        constants = compose([f"rule={rule}"]).run.rule.parameters()
        yield rule, rule, constants | CONSTANTS.get(rule, {})


def rules(device: str, dtype: torch.dtype, name: str, given: Batch, record: Record) -> None:
    """Every case on the device in `dtype` against float64 on the CPU, from the same rounded numbers."""
    narrow = given.to(dtype)
    wide, there = narrow.to(torch.float64), narrow.to(dtype, device)
    for title, rule, constants in cases():
        expected, measured = evaluate(rule, wide, constants), evaluate(rule, there, constants)
        keep = expected["keep"]
        soft = bool(((keep > 0) & (keep < 1)).any())
        differs = (measured["keep"] - keep).abs() > (1e-3 if soft else 0)
        near, key = turned(rule, wide, constants, NEAR), f"{name}_{title}"
        record.figure(f"{key}_near_threshold", int(near.sum()), "tokens")
        record.figure(f"{key}_masks_differ_near", int((differs & near).sum()), "tokens")
        record.figure(f"{key}_masks_differ_elsewhere", int((differs & ~near).sum()), "tokens", at_most=0)
        for what in ("objective", "gradient"):
            error = ((measured[what] - expected[what]).abs() / (1 + expected[what].abs()))[~differs].max()
            limit = _tolerance(dtype, what)
            record.figure(f"{key}_{what}_error", float(error), "of 1 + |value|", at_most=limit)


def _tolerance(dtype: torch.dtype, what: str) -> float:
    """That of `cppo_lab.testing.vectors` for float32, in which all is computed; gradients have their tensor's dtype."""
    narrow = dtype == torch.bfloat16 and "gradient" in what
    return float(torch.finfo(dtype).eps) if narrow else TOLERANCE[torch.float32]


def tokens_of(rule: str, given: Batch, logp: Tensor) -> Tokens:
    """The argument of a rule, with each response's own positions in another order where the rule takes it."""
    if PERMUTATION not in RECORDS[rule].needs:
        return Tokens(logp, *given[1:])
    draws = torch.rand(given.valid.shape, generator=torch.Generator().manual_seed(1))
    order = torch.where(given.valid.cpu(), draws, 2.0).argsort(1)
    return Tokens(logp, *given[1:], order.to(logp.device))


def evaluate(rule: str, given: Batch, constants: dict[str, Any]) -> dict[str, Tensor]:
    """A rule's mask, objective and the gradient of its sum in logp, computed where its arguments are."""
    logp = given.logp.detach().clone().requires_grad_()
    output = RULES[rule](tokens_of(rule, given, logp), **constants)
    output.objective.sum().backward()
    assert logp.grad is not None
    parts = {"keep": output.keep, "objective": output.objective, "gradient": logp.grad}
    return {name: part.detach().cpu().double() for name, part in parts.items()}


def turned(rule: str, given: Batch, constants: dict[str, Any], size: float) -> Tensor:
    """[B, T]: where a relative change of `size` turns the decision. Values between 0 and 1 count if they jump."""
    keeps = []
    for divergence, logp in itertools.product((-size, size), repeat=2):
        moved = given._replace(
            logp=given.logp + logp * (1 + given.logp.abs()), divergence=given.divergence * (1 + divergence)
        )
        # Thresholds go the other way: both make a test harder, or both easier to pass.
        thresholds = {key: value * (1 - divergence) for key, value in constants.items() if key in THRESHOLDS}
        keeps.append(RULES[rule](tokens_of(rule, moved, moved.logp), **constants | thresholds).keep)
    decisions = torch.stack(keeps)
    return decisions.amax(0) - decisions.amin(0) > 1e-3


def divergence_errors(device: str, dtype: torch.dtype, places: int, vocabulary: int) -> dict[str, float]:
    """Largest error of each divergence, of log pi and the entropy from logits, and of the gradient in the logits."""
    generator = torch.Generator().manual_seed(2)
    logits = (3 * torch.randn(places, vocabulary, generator=generator, dtype=torch.float64)).to(dtype)
    moved = logits.double() + 0.3 * torch.randn(places, vocabulary, generator=generator, dtype=torch.float64)
    mu = moved.log_softmax(-1)
    tokens = torch.multinomial(mu.exp(), 1, generator=generator)[:, 0]
    top = mu.to(dtype).double().topk(20)
    rollout_logp = mu.gather(-1, tokens[:, None])[:, 0]
    pi = logits.double().log_softmax(-1)
    logp = pi.gather(-1, tokens[:, None])[:, 0]
    recorded = [t.to(dtype) for t in (mu, pi, logp, top.values, rollout_logp)]
    expected = _divergences(logits.double(), tokens, top.indices, *(t.double() for t in recorded))
    measured = _divergences(*(t.to(device) for t in (logits, tokens, top.indices, *recorded)))
    return {
        key: float(((measured[key].cpu().double() - value).abs() / (1 + value.abs())).max())
        for key, value in expected.items()
    }


def _divergences(logits: Tensor, tokens: Tensor, ids: Tensor, *recorded: Tensor) -> dict[str, Tensor]:
    """Everything that maths/divergence.py and maths/from_logits.py say of these states.

    `recorded`: log mu and log pi of every symbol, log pi of the tokens, log mu of the Top-K and of the tokens.
    """
    mu, pi, logp, topk_logp, rollout_logp = recorded
    values = {name: getattr(divergences, name)(logp, rollout_logp) for name in ("k2", "k3")}
    for measure in divergences.MEASURES:
        values[f"{measure}_exact"] = divergences.exact(mu, pi, measure)
        values[f"{measure}_binary"] = divergences.binary(logp, rollout_logp, measure)
        for convention in divergences.CONVENTIONS:
            leaf = logits.detach().clone().requires_grad_()
            given = (leaf, tokens, ids, topk_logp, rollout_logp)
            both = logp_and_divergence(*given, measure=measure, convention=convention, entropy=True)
            assert both.entropy is not None
            values[f"{measure}_topk_{convention}"] = both.divergence
            if measure == "tv" and convention == "union":
                [gradient] = torch.autograd.grad(both.logp.sum(), leaf)
                values |= {"logp_from_logits": both.logp.detach(), "entropy_from_logits": both.entropy}
                values["logits_gradient"] = gradient
    return values
