"""Checks a file of golden vectors: every array against our value, in float64 and in float32.

    python -m cppo_lab.testing.vectors FILE.npz     # 0: all agree; 1: an array differs; 2: the file cannot be read

Masks must agree exactly in both; everything else within TOLERANCE, relative or absolute. An array stored in
less than float64 is compared with float32's tolerance throughout. One that we do not know is listed, and no mismatch.

The file is an .npz of arrays `<case>/<part>/<name>` and a JSON string `manifest`, as `tests/oracles/vectors.npz`:
hyper-parameters and key lists per case are in the manifest, shapes are [B, T] right-padded with 0, `<case>/in/valid`
says which tokens count. Nothing in it is trusted: pickled objects are refused, and an unreadable file is a
`UserError`.

Every array is recomputed from the file's inputs, in one dtype. Constants come from the manifest where it gives
them; the names of some methods carry them:

    grpo_dual<c>            dual clip c
    cispo_hi<h>             clip_high h, lower side open; minpro_hi<h> likewise
    minpro_<l>_<h>          clip_low l, clip_high h
    <method>_logp_cap<c>    stopgrad(min(rho, c) M) A log pi with the mask M of <method>, as a release has it

`pg_is` is rho A without a trust region, `cppo_soft_sapo` the mask of SAPO's inadmissible gate. The block `theory` has
the constants of the bounds, and a process small enough to enumerate.
"""

import argparse
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from cppo_lab.errors import UserError, message, printable
from cppo_lab.maths import bounds
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.divergence import CONVENTIONS, Recorded
from cppo_lab.maths.masks import limits_of, violation_score
from cppo_lab.maths.masks import sapo as sapo_gate
from cppo_lab.maths.mismatch import relative_logprob_error
from cppo_lab.maths.rules import AGGREGATIONS, aggregate, get_rule, group_advantages
from cppo_lab.maths.tokens import RuleOutput, Tokens, rule_output
from cppo_lab.maths.weights import effective_delta_b, position_weights

# What numpy and zipfile raise on files that are cut short, damaged, encrypted, or hold pickled objects.
UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)
# And what a manifest of another form raises.
UNUSABLE = (*UNREADABLE, LookupError, TypeError, AttributeError)
NOT_VECTORS = "pass a vectors file, an .npz of arrays CASE/PART/NAME with a manifest"


class Vectors(NamedTuple):
    """The arrays of a file by key, without the manifest, and the manifest."""

    arrays: dict[str, numpy.ndarray]
    manifest: dict[str, Any]

    def tensor(self, key: str, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of an array; `dtype` None keeps the stored dtype.

        Raises:
            LookupError: the file has no such array.
        """
        if key not in self.arrays:
            raise LookupError(f"the file has no array {key!r}")
        tensor = torch.from_numpy(self.arrays[key].copy())
        return tensor if dtype is None else tensor.to(dtype)


def load(path: Path) -> Vectors:
    """Read a vectors file; nothing in it is unpickled.

    Raises:
        UserError: missing, no .npz, damaged, with pickled objects, or without a usable manifest.
    """
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is not an .npz archive, or cut short: {NOT_VECTORS}")
    try:
        with numpy.load(path, allow_pickle=False) as archive:
            arrays = {name: numpy.asarray(archive[name]) for name in archive.files}
        vectors = Vectors(arrays, json.loads(str(arrays.pop("manifest"))))
        lists = [vectors.manifest.get(entry, []) for entry in ("modes", "theory_columns")]
        for case in vectors.manifest["cases"].values():
            lists += [list(case["hp"]), case.get("methods", []), case.get("objectives", [])]
        if not all(
            isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists
        ):
            raise ValueError("the manifest lacks a list of names")
    except UNUSABLE as error:
        why = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise UserError(f"{path} cannot be read ({why}): {NOT_VECTORS}") from error
    return vectors


UNMASKED = "unmasked"
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}  # of GRPO; like PPO's and SAPO's, not in the manifest
_BUDGET = {"delta": "delta", "delta_b": "delta_b_min", "delta_b_mode": "delta_b"}
_CPPO = {**_BUDGET, "w_min": "w_min"}
_KL_BUDGET = {"delta": "delta_kl", "delta_b": "delta_b_kl", "w_min": "w_min"}
_LOOSE = {"delta_max": "trm_max_loose", "delta_avg": "trm_avg_loose"}


class Method(NamedTuple):
    """How a method of the file is computed: `given` names the hyper-parameter of the case that each constant has."""

    rule: str
    given: Mapping[str, str] = MappingProxyType({})
    constants: Mapping[str, Any] = MappingProxyType({})
    divergence: str = "D"


METHODS = {
    "grpo": Method("grpo", constants=CLIPS),
    "ppo": Method("ppo", constants={"clip_low": 0.2, "clip_high": 0.2}),
    "sapo": Method("sapo", constants={"tau_positive": 1.0, "tau_negative": 1.05}),
    "dppo": Method("dppo", {"delta": "delta"}),
    "cppo": Method("cppo", _CPPO),
    "cppo_span": Method("cppo", {**_CPPO, "span": "span"}),
    "cppo_kl": Method("cppo", _KL_BUDGET, {"delta_b_mode": "fixed"}, "KL"),
    "cppo_no_weight": Method("cppo_no_position_weight", _BUDGET),
    "cppo_no_prefix": Method("cppo_no_prefix_budget", {"delta": "delta", "w_min": "w_min"}),
    "cppo_shuffled": Method("cppo", _CPPO),  # the file shuffles the weights of full CPPO, by `in/perm`
    "cppo_soft_inv": Method("cppo_soft", _CPPO, {"gate": "inverse"}),
    "cppo_soft_sapo_adm": Method("cppo_soft", _CPPO, {"gate": "sapo_admissible"}),
    "trm_max": Method("trm_max", {"delta_max": "trm_max"}, divergence="KL"),
    "trm_avg": Method("trm_avg", {"delta_avg": "trm_avg"}, divergence="KL"),
    "trm_max_avg": Method("trm_max_avg", _LOOSE, divergence="KL"),
    "pg_is": Method(UNMASKED),
}
SOFT = ("cppo_soft_inv", "cppo_soft_sapo", "cppo_soft_sapo_adm")  # weights in [0, 1], not masks of 0 and 1
NUMBER = r"(\d+\.?\d*|\.\d+)"


def _find_method(name: str) -> Method | None:
    """The method of a name, or None for a name that is not known."""
    if match := re.fullmatch(rf"grpo_dual{NUMBER}", name):
        return Method("grpo", constants={**CLIPS, "dual_clip": float(match[1])})
    if match := re.fullmatch(rf"(cispo|minpro)_(?:{NUMBER}_|hi){NUMBER}", name):
        low = {} if match[2] is None else {"clip_low": float(match[2])}
        return Method(match[1], constants={**low, "clip_high": float(match[3])})
    return METHODS.get(name)


class Case:
    """A case of `vectors`: its inputs in `dtype`, its hyper-parameters, and what rules give on it."""

    def __init__(self, vectors: Vectors, name: str, dtype: torch.dtype) -> None:
        self.vectors, self.name, self.dtype = vectors, name, dtype
        self.facts = vectors.manifest["cases"].get(name, {})
        self.output = cache(self._output)

    def stored(self, name: str) -> Tensor:
        """The input `<case>/in/<name>` in its stored dtype. LookupError if the file lacks it."""
        return self.vectors.tensor(f"{self.name}/in/{name}")

    def given(self, *names: str) -> list[Tensor]:
        """The inputs `<case>/in/<name>` in our dtype. LookupError if the file lacks any."""
        return [self.stored(name).to(self.dtype) for name in names]

    @property
    def valid(self) -> Tensor:
        """[B, T] bool: which tokens count."""
        return self.stored("valid").bool()

    def constant(self, name: str) -> Any:
        """A hyper-parameter.

        Raises:
            LookupError: the manifest does not give it.
        """
        if name not in self.facts["hp"]:
            raise LookupError(f"the manifest gives no {name!r} for case {self.name!r}")
        return self.facts["hp"][name]

    def constants(self, given: Mapping[str, str]) -> dict[str, Any]:
        """The constants of a rule by name, of the hyper-parameters that `given` names."""
        return {key: self.constant(name) for key, name in given.items()}

    def _output(self, name: str) -> tuple[RuleOutput, Tensor] | None:
        """A method's output and the logp [B, T] it is computed in; None: no such method.

        Raises:
            LookupError: an array or a hyper-parameter that it needs is missing.
            ValueError, RuntimeError, TypeError: the inputs are not what the rule takes.
        """
        match = re.fullmatch(rf"(.+)_logp_cap{NUMBER}", name)
        masking = self.output(match[1]) if match else None
        method = _find_method(match[1] if match else name)
        if method is None or (match and masking is None):
            return None
        permutation = self.stored("perm") if name == "cppo_shuffled" else None
        names = "logp", "rollout_logp", "advantage", "valid", method.divergence
        logp, rollout_logp, advantage, valid, divergence = self.given(*names)
        tokens = Tokens(logp.requires_grad_(), rollout_logp, advantage, valid, divergence, permutation)
        if match and masking:  # the release's form: stopgrad(min(rho, cap) keep) A log pi
            weight = tokens.log_ratio.detach().exp().clamp_max(float(match[2])) * masking[0].keep
            return masking[0]._replace(objective=weight * tokens.advantages * tokens.logp), logp
        if method.rule == UNMASKED:  # rho A without a trust region: the objective that every mask multiplies
            return rule_output(tokens, tokens.valid, {}), logp
        return get_rule(method.rule)(tokens, **self.constants(method.given), **method.constants), logp


THEORY_INPUTS = {f"theory/mdp/{name}" for name in ("prefixes", "mu", "pi", "sequences", "reward")}
ARGUMENTS = {"xi", "T", "delta", "delta_b", "w_min"}
# The process respects these; the file does not say so.
PROCESS = {"delta": 0.15, "delta_b": 0.05, "w_min": 0.8}

COLUMNS: dict[str, tuple[Callable[..., float], tuple[str, ...]]] = {
    "C_uniform": (bounds.dppo_constant, ("T", "delta", "xi")),
    "C_cppo(lbar=delta)": (bounds.cppo_constant, ("T", "delta_b", "delta", "xi")),
    "C_impl": (bounds.weighted_constant, ("T", "delta", "delta_b", "w_min", "xi")),
    "C_terminal(lbar=delta)": (bounds.terminal_constant, ("T", "delta_b", "delta", "xi")),
    "terminal_ratio": (bounds.terminal_ratio, ("T",)),
    "product_bound": (bounds.product_bound, ("T", "delta_b", "delta", "xi")),
    "slack_term(lbar=delta/w_min, eta=delta)": (bounds.slack_term, ("T", "largest", "delta", "xi")),
}


def _constants(case: Case, _: str) -> Tensor:
    """The rows of `theory/constants` with every column that we know recomputed.

    Raises:
        LookupError: a column that it needs is missing.
        ValueError: a row with arguments out of range.
    """
    table = case.vectors.tensor("theory/constants", torch.float64)
    columns = case.vectors.manifest.get("theory_columns", [])
    if missing := ARGUMENTS - set(columns):
        raise LookupError(f"the manifest's theory_columns lacks {sorted(missing)}")
    for row in table:
        arguments = dict(zip(columns, row.tolist(), strict=True))
        arguments["T"] = int(arguments["T"])
        arguments["largest"] = bounds.largest_divergence(arguments["delta"], arguments["w_min"])
        for position, name in enumerate(columns):
            if name in COLUMNS:
                function, names = COLUMNS[name]
                row[position] = function(*(arguments[argument] for argument in names))
    return table


class EnumeratedProcess:
    """An enumerated autoregressive process: probabilities and rewards along every sequence.

    mu, pi: [N, T] probability of each token of each sequence; tv: [N, T] TV(mu, pi) at the state before it;
    reward: [N].
    """

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors
        prefixes, sequences = (vectors.tensor(f"theory/mdp/{name}") for name in ("prefixes", "sequences"))
        mu, pi, self.reward = (
            vectors.tensor(f"theory/mdp/{name}", torch.float64) for name in ("mu", "pi", "reward")
        )
        index = {
            tuple(token for token in prefix if token >= 0): n for n, prefix in enumerate(prefixes.tolist())
        }
        self.length = sequences.shape[1]
        rows = torch.tensor([[index[tuple(y[:t])] for t in range(self.length)] for y in sequences.tolist()])
        self.mu, self.pi = (table[rows].gather(-1, sequences[..., None])[..., 0] for table in (mu, pi))
        self.tv = (0.5 * (mu - pi).abs().sum(-1))[rows]

    def residual(self) -> Tensor:
        """Delta = sum_t E_{s_t ~ mu} sum_a (pi - mu)(a) (Q_mu - Q_pi)(s_t, a), sequence by sequence."""
        terms = []
        for t in range(self.length):
            before = self.mu[:, :t].prod(1)
            after = self.mu[:, t + 1 :].prod(1) - self.pi[:, t + 1 :].prod(1)
            terms.append((before * (self.pi[:, t] - self.mu[:, t]) * after * self.reward).sum())
        return torch.stack(terms).sum()

    def bound(self) -> Tensor:
        """Theorem 1's constant, 2 xi T (T - 1) delta_b l.

        The file gives no limits for its process: either those of PROCESS or what the process reaches, l_1 for delta_b
        (the first token's whole budget) and max l_t for l, whichever comes nearer to the file's value.
        """
        xi, largest = float(self.reward.abs().amax()), self.tv.amax(0)
        reached = bounds.cppo_constant(self.length, float(largest[0]), float(largest.amax()), xi)
        candidates = torch.tensor(
            [bounds.weighted_constant(self.length, **PROCESS, xi=xi), reached], dtype=torch.float64
        )
        nearest = (candidates - self.vectors.tensor("theory/mdp/bound", torch.float64)).abs().argmin()
        return candidates[nearest]


PROCESS_VALUES: dict[str, Callable[[EnumeratedProcess], Tensor]] = {
    "J_mu": lambda process: (process.mu.prod(1) * process.reward).sum(),
    "J_pi": lambda process: (process.pi.prod(1) * process.reward).sum(),
    # L' = E_mu[R sum_t (rho_t - 1)]
    "L": lambda p: (p.mu.prod(1) * p.reward * (p.pi / p.mu - 1).sum(1)).sum(),
    "Delta": EnumeratedProcess.residual,
    "bound": EnumeratedProcess.bound,
    "u": lambda process: (process.mu.prod(1)[:, None] * process.tv).sum(0),  # E_mu[D_t], [T]
    "ell": lambda process: process.tv.amax(0),  # max over states of D_t, [T]
}


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
    return (head in vectors.manifest["cases"] and name in INPUTS) or key in THEORY_INPUTS


def value(case: Case, key: str) -> Tensor | None:
    """What this package computes for an array of a case, 0 at padding; None for an unknown key.

    Raises:
        LookupError: an array or a hyper-parameter that it needs is missing.
        ValueError, RuntimeError, TypeError: the inputs are not what the maths takes.
    """
    part, _, name = key.removeprefix(f"{case.name}/").partition("/")
    parts = PARTS if case.facts else BLOCKS.get(case.name, {})
    return parts[part](case, name) if part in parts else None


def _derived_input(case: Case, name: str) -> Tensor | None:
    if name == "ratio":
        logp, rollout_logp = case.given("logp", "rollout_logp")
        return (logp - rollout_logp).exp() * case.valid
    if name == "lengths":
        return case.valid.sum(1)
    if name not in ("advantage_seq", "advantage_seq_nostd", "group_keep"):
        return None
    [rewards], groups = case.given("rewards"), case.stored("groups")
    advantages, keep = group_advantages(rewards, groups, normalize_std=name != "advantage_seq_nostd")
    return keep.to(case.dtype) if name == "group_keep" else advantages


def _divergence(case: Case, name: str) -> Tensor | None:
    match = re.fullmatch(r"k2|k3|(tv|kl)(?:_(binary|topk)(_replace)?)?", name)
    if match is None:
        return None
    measure, estimator, replace = match.groups()
    logp, rollout_logp = case.given("logp", "rollout_logp")
    if measure is None:
        values = divergences.ESTIMATES[name](logp, rollout_logp)
    elif estimator is None:
        mu, pi = case.given("mu", "pi")
        values = divergences.exact(mu.log(), pi.log(), measure)
    elif estimator == "binary":
        values = divergences.binary(logp, rollout_logp, measure)
    else:
        size = case.facts.get("K", 20)  # the file stores one more
        pi, top_logp = case.given("pi", "rollout_topk_logp")
        ids = case.stored("rollout_topk_ids")[..., :size]
        top = Recorded(case.stored("tokens"), rollout_logp, ids, top_logp[..., :size])
        values = divergences.topk(top, pi.log(), measure=measure, convention=CONVENTIONS[bool(replace)])
    return torch.where(case.valid, values, 0.0)


def _extreme(case: Case, name: str) -> Tensor | None:
    """Divergences of single positions with exact zeros; K is in the name: `tv_topk2`."""
    match = re.fullmatch(r"(tv|kl)(?:_(binary|topk(\d+)(_replace)?))?", name)
    if match is None:
        return None
    measure, estimator, size, replace = match.groups()
    mu_logp, pi_logp = (table.log() for table in case.given("mu", "pi"))
    tokens = case.stored("tokens")
    rollout_logp, logp = (part.gather(-1, tokens[:, None])[:, 0] for part in (mu_logp, pi_logp))
    if estimator is None:
        return divergences.exact(mu_logp, pi_logp, measure)
    if estimator == "binary":
        return divergences.binary(logp, rollout_logp, measure)
    top = mu_logp.sort(dim=-1, descending=True, stable=True)  # among equals the lowest id, as the file
    mu = Recorded(tokens, rollout_logp, top.indices[:, : int(size)], top.values[:, : int(size)])
    return divergences.topk(mu, pi_logp, measure=measure, convention=CONVENTIONS[bool(replace)])


def _of_process(case: Case, name: str) -> Tensor | None:
    compute = PROCESS_VALUES.get(name)
    return None if compute is None else compute(EnumeratedProcess(case.vectors))


def _weights(case: Case, name: str) -> Tensor | None:
    if name not in ("linear", "span"):
        return None
    span = case.constant("span") if name == "span" else None
    return position_weights(case.valid, case.constant("w_min"), span, dtype=case.dtype)


def _used_budget(case: Case, name: str) -> Tensor | None:
    match = re.fullmatch(rf"used|adaptive_x{NUMBER}", name)
    if match is None:
        return None
    mode, cap = (case.constant("delta_b"), 2.0) if name == "used" else ("adaptive", float(match[1]))
    [divergence] = case.given("D")
    return effective_delta_b(divergence, case.valid, case.constant("delta_b_min"), mode, cap)


def _score(case: Case, name: str) -> Tensor | None:
    """CPPO's score x_t or the limit c_t with our weights and budgets."""
    if name not in ("cppo", "threshold_c"):
        return None
    constants, [divergence], valid = case.constants(_CPPO), case.given("D"), case.valid
    delta: float = constants["delta"]
    weights, rate, tests = limits_of(constants, divergence, valid)
    if name == "cppo":
        return violation_score(tests, weights, valid, delta, rate)
    return (delta - tests.excess).clamp_max(delta) * valid


def _of_rule(case: Case, name: str, part: str) -> Tensor | None:
    """A rule's mask, its objective or the loss of `<method>/<mode>`, or the gradient of any of these in logp."""
    # SAPO's gate is not admissible, hence no gate of the rule.
    if name == "cppo_soft_sapo" and part == "mask":
        [advantage, ratio], score = case.given("advantage", "ratio"), _score(case, "cppo")
        assert score is not None
        return torch.where(advantage * (ratio - 1) > 0, sapo_gate(score), 1.0) * case.valid
    method, mode = name, ""
    if part in ("loss", "dloss"):
        method, _, mode = name.partition("/")
        if mode not in AGGREGATIONS:
            return None
    if (computed := case.output(method)) is None:
        return None
    output, logp = computed
    if part == "mask":
        return output.keep
    value = output.objective
    if mode:
        horizon = case.facts.get("horizon") if mode == "seq-mean-token-sum-norm" else None
        value = -aggregate(value, case.valid, mode, horizon=horizon)
    if part in ("grad", "dloss"):
        return torch.autograd.grad(value.sum(), logp, retain_graph=True)[0]
    return value.detach()


def _metric(case: Case, name: str) -> Tensor | None:
    if name == "rel_logp_err":
        difference, scale = relative_logprob_error(*case.given("logp", "rollout_logp", "valid"))
        return difference / scale
    cppo = case.output("cppo")
    if name != "prefix_counts" or cppo is None:
        return None
    output = cppo[0]
    # [B, 3]: masked, of them rejected by the prefix test alone, of them failing the prefix test at all
    dropped = case.valid & (output.keep == 0)
    by_token, by_prefix = (dropped & output.tests[name] for name in ("threshold", "budget"))
    counts = [part.sum(1) for part in (dropped, by_prefix & ~by_token, by_prefix)]
    return torch.stack(counts, 1).to(case.dtype)


PARTS: dict[str, Callable[[Case, str], Tensor | None]] = {
    "in": _derived_input,
    "D": _divergence,
    "w": _weights,
    "delta_b": _used_budget,
    "score": _score,
    **{part: partial(_of_rule, part=part) for part in ("mask", "val", "grad", "loss", "dloss")},
    "metric": _metric,
}
# Of the blocks that are no cases.
BLOCKS: dict[str, dict[str, Callable[[Case, str], Tensor | None]]] = {
    "extreme": {"D": _extreme},
    "theory": {"constants": _constants, "mdp": _of_process},
}


# The check of a file.

DTYPES = (torch.float64, torch.float32)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5}
UNCOMPUTABLE = (LookupError, ValueError, RuntimeError, TypeError, ArithmeticError)


class Mismatch(NamedTuple):
    """One array that differs from ours, at the first such place."""

    key: str
    place: str
    expected: str
    got: str
    where: str

    def __str__(self) -> str:
        return f"{self.key}{self.place}: expected {self.expected}, got {self.got} ({self.where})"


@dataclass
class Report:
    """What a check found."""

    checked: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One line per mismatch and per unknown key, the summary last."""
        return [
            *(f"MISMATCH {printable(str(mismatch))}" for mismatch in self.mismatches),
            *(f"UNKNOWN  {printable(key)}: not checked" for key in self.unknown),
            f"{self.checked} arrays checked, {len(self.mismatches)} mismatches, {len(self.unknown)} unknown keys",
        ]


def check(vectors: Vectors) -> Report:
    """Check every array of `vectors`, and that no array is missing that its manifest lists."""
    report = Report(mismatches=_missing(vectors))
    columns = vectors.manifest.get("theory_columns", []) if "theory/constants" in vectors.arrays else []
    strange = [name for name in columns if name not in COLUMNS and name not in ARGUMENTS]
    report.unknown += [f"theory/constants column {name!r}" for name in strange]
    case_of = cache(partial(Case, vectors))
    for key in vectors.arrays:
        if is_input(vectors, key):
            continue
        report.checked += 1
        for dtype in DTYPES:
            where = str(dtype).removeprefix("torch.")
            try:
                actual, expected = value(case_of(key.partition("/")[0], dtype), key), vectors.tensor(key)
            except UNCOMPUTABLE as error:
                text = (str(error).splitlines() or [type(error).__name__])[0]
                missing = "inputs to compute it from", "none", f"{where}: {text}"
                mismatch: Mismatch | None = Mismatch(key, "", *missing)
            else:
                if actual is None:
                    report.checked -= 1
                    report.unknown.append(key)
                    break
                tolerance = TOLERANCE[dtype if expected.dtype == torch.float64 else torch.float32]
                mismatch = compare(key, where, expected, actual, 0.0 if is_exact(key) else tolerance)
            if mismatch:
                report.mismatches.append(mismatch)
                break
    return report


def is_exact(key: str) -> bool:
    """Masks of 0 and 1, counts and flags have no tolerance."""
    _, part, name = (*key.split("/", 2), "", "")[:3]
    return (part == "mask" and name not in SOFT) or name in ("group_keep", "lengths", "prefix_counts")


def compare(key: str, where: str, expected: Tensor, actual: Tensor, tolerance: float) -> Mismatch | None:
    """None if |actual - expected| <= tolerance (1 + |expected|) everywhere; NaN never is."""
    if expected.shape != actual.shape:
        shapes = f"shape {list(expected.shape)}", f"shape {list(actual.shape)}"
        return Mismatch(key, "", *shapes, where)
    # In our dtype, so that a float32 value equals the float64 number it was rounded from.
    wanted = expected.to(actual.dtype) if actual.is_floating_point() else expected
    bad = ~((actual - wanted).abs() <= tolerance * (1 + wanted.abs()))
    if not bool(bad.any()):
        return None
    first = tuple(bad.nonzero()[0].tolist())
    others = int(bad.sum()) - 1
    where += f", and {others} more places" if others else ""
    values = f"{expected[first].item():.9g}", f"{actual[first].item():.9g}"
    return Mismatch(key, str(list(first)) if first else "", *values, where)


def _missing(vectors: Vectors) -> list[Mismatch]:
    """Arrays that the manifest lists and the file lacks."""
    listed = []
    for case, facts in vectors.manifest["cases"].items():
        listed += [f"{case}/mask/{method}" for method in facts.get("methods", [])]
        for method in facts.get("objectives", []):
            listed += [f"{case}/{part}/{method}" for part in ("val", "grad")]
            modes = vectors.manifest.get("modes", [])
            listed += [f"{case}/{part}/{method}/{mode}" for part in ("loss", "dloss") for mode in modes]
    absent = [key for key in listed if key not in vectors.arrays]
    missing = [Mismatch(key, "", "an array", "none", "listed in the manifest") for key in absent]
    # More arrays than the manifest counts are no mismatch: the unknown ones are listed.
    total = vectors.manifest.get("keys")
    if isinstance(total, int) and total > len(vectors.arrays) + 1 and not missing:
        missing = [
            Mismatch("manifest", "/keys", f"{total} arrays", str(len(vectors.arrays) + 1), "with itself")
        ]
    return missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what a check finds; 0 if nothing differs, 1 if something does."""
    parser = argparse.ArgumentParser(
        prog="python -m cppo_lab.testing.vectors",
        description="Check the rules against a file of golden vectors.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE.npz", help="in the format of tests/oracles/vectors.npz"
    )
    try:
        path = parser.parse_args(arguments).file
        report = check(load(path))
        if not report.checked:
            raise UserError(f"{path} holds no array that can be checked: pass a vectors file with cases")
    except UserError as error:
        parser.exit(2, f"cppo: error: {message(str(error))}\n")
    print("\n".join(report.lines()))
    return 1 if report.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
