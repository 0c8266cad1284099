"""A file of golden vectors, and our value of each of its arrays.

The file is an .npz of arrays `<case>/<part>/<name>` and a JSON string `manifest`, as `tests/oracles/vectors.npz`:
hyper-parameters and key lists per case are in the manifest, shapes are [B, T] right-padded with 0, `<case>/in/valid`
says which tokens count. Nothing in it is trusted: pickled objects are refused, and an unreadable file is one
`UserError`.

Every array is recomputed from the file's own inputs, in one dtype. Constants come from the manifest where it gives
them; the names of some methods carry their own:

    grpo_dual<c>            dual clip c
    cispo_hi<h>             clip_high h, lower side open; minpro_hi<h> likewise
    minpro_<l>_<h>          clip_low l, clip_high h
    <method>_logp_cap<c>    stopgrad(min(rho, c) M) A log pi with the mask M of <method>, as a release has it

`pg_is` is rho A without a trust region, `cppo_soft_sapo` the mask of SAPO's inadmissible gate. The block `theory` has
the constants of the bounds, and one process small enough to enumerate.
"""

import json
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from cppo_lab.errors import UserError
from cppo_lab.maths import bounds
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.aggregation import MODES, aggregate, group_advantages
from cppo_lab.maths.masks import ThresholdTests, threshold_tests, violation_score
from cppo_lab.maths.masks import sapo as sapo_gate
from cppo_lab.maths.metrics import relative_logprob_error
from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.tokens import RuleOutput, Tokens, decided
from cppo_lab.maths.weights import effective_delta_b, position_weights

# What numpy and zipfile raise on files that are cut short, damaged, encrypted, or hold pickled objects.
UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)
NOT_VECTORS = "pass a vectors file, an .npz of arrays CASE/PART/NAME with a manifest"


@dataclass(frozen=True)
class Vectors:
    """The arrays of a file by key, without the manifest, and the manifest."""

    arrays: dict[str, numpy.ndarray]
    manifest: dict[str, Any]

    @property
    def cases(self) -> dict[str, dict[str, Any]]:
        cases: dict[str, dict[str, Any]] = self.manifest["cases"]  # `load` has checked it
        return cases

    def tensor(self, key: str, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of one array; `dtype` None keeps the stored one.

        Raises:
            LookupError: the file has no such array.
        """
        if key not in self.arrays:
            raise LookupError(f"the file has no array {key!r}")
        tensor = torch.from_numpy(self.arrays[key].copy())
        return tensor if dtype is None else tensor.to(dtype)

    def valid(self, case: str) -> Tensor:
        """[B, T] bool: which tokens of a case count."""
        return self.tensor(f"{case}/in/valid").bool()

    def constant(self, case: str, name: str) -> Any:
        """A hyper-parameter of a case.

        Raises:
            LookupError: the manifest does not give it.
        """
        constants = self.cases[case]["hp"]
        if name not in constants:
            raise LookupError(f"the manifest gives no {name!r} for case {case!r}")
        return constants[name]


def load(path: Path) -> Vectors:
    """Read a vectors file; nothing in it is unpickled.

    Raises:
        UserError: missing, no .npz, damaged, with pickled objects, or without a usable manifest.
    """
    if not path.is_file():
        raise UserError(f"vectors file {path} does not exist or is not a file: {NOT_VECTORS}")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is not an .npz archive, or cut short: {NOT_VECTORS}")
    try:
        with numpy.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read ({_first_line(error)}): {NOT_VECTORS}") from error
    for name, array in arrays.items():
        if not isinstance(array, numpy.ndarray):
            raise UserError(f"{path} holds {name!r}, which is not an array: {NOT_VECTORS}")
    manifest = arrays.pop("manifest", None)
    if manifest is None:
        raise UserError(f"{path} has no array 'manifest': {NOT_VECTORS}")
    try:
        return Vectors(arrays, _checked(json.loads(str(manifest))))
    except ValueError as error:
        raise UserError(
            f"the manifest of {path} is not usable ({_first_line(error)}): {NOT_VECTORS}"
        ) from error


def _checked(manifest: Any) -> dict[str, Any]:
    """The manifest, if it has the entries without which nothing can be computed."""
    if not isinstance(manifest, dict):
        raise ValueError("a JSON object was expected")
    if not isinstance(manifest.get("cases"), dict):
        raise ValueError("'cases' is missing")
    for name, case in manifest["cases"].items():
        if not isinstance(case, dict) or not isinstance(case.get("hp"), dict):
            raise ValueError(f"case {name!r} has no 'hp'")
    for where, entries in [
        (manifest, ("modes", "theory_columns")),
        *((case, ("methods", "objectives")) for case in manifest["cases"].values()),
    ]:
        for entry in entries:
            names = where.get(entry, [])
            if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
                raise ValueError(f"{entry!r} must be a list of names")
    return manifest


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


Constants = Callable[[str], Any]  # name of a hyper-parameter -> its value
UNMASKED = "unmasked"


def _budget(hp: Constants) -> dict[str, Any]:
    return {"delta": hp("delta"), "delta_b": hp("delta_b_min"), "delta_b_mode": hp("delta_b")}


def _cppo(hp: Constants) -> dict[str, Any]:
    return {**_budget(hp), "w_min": hp("w_min")}


def _cppo_kl(hp: Constants) -> dict[str, Any]:
    return {
        "delta": hp("delta_kl"),
        "delta_b": hp("delta_b_kl"),
        "delta_b_mode": "fixed",
        "w_min": hp("w_min"),
    }


CLIPS = {"clip_low": 0.2, "clip_high": 0.28}  # of GRPO; like PPO's and SAPO's, not in the manifest

# method -> (rule, divergence array, constants from the case's hyper-parameters)
METHODS: dict[str, tuple[str, str, Callable[[Constants], dict[str, Any]]]] = {
    "grpo": ("grpo", "D", lambda hp: CLIPS),
    "ppo": ("ppo", "D", lambda hp: {"clip_low": 0.2, "clip_high": 0.2}),
    "sapo": ("sapo", "D", lambda hp: {"tau_positive": 1.0, "tau_negative": 1.05}),
    "dppo": ("dppo", "D", lambda hp: {"delta": hp("delta")}),
    "cppo": ("cppo", "D", _cppo),
    "cppo_span": ("cppo", "D", lambda hp: {**_cppo(hp), "span": hp("span")}),
    "cppo_kl": ("cppo", "KL", _cppo_kl),
    "cppo_no_weight": ("cppo_no_position_weight", "D", _budget),
    "cppo_no_prefix": (
        "cppo_no_prefix_budget",
        "D",
        lambda hp: {"delta": hp("delta"), "w_min": hp("w_min")},
    ),
    # The file shuffles the weights of full CPPO; `in/perm` is added by the caller.
    "cppo_shuffled": ("cppo", "D", _cppo),
    "cppo_soft_inv": ("cppo_soft", "D", lambda hp: {**_cppo(hp), "gate": "inverse"}),
    "cppo_soft_sapo_adm": ("cppo_soft", "D", lambda hp: {**_cppo(hp), "gate": "sapo_admissible"}),
    "trm_max": ("trm_max", "KL", lambda hp: {"delta_max": hp("trm_max")}),
    "trm_avg": ("trm_avg", "KL", lambda hp: {"delta_avg": hp("trm_avg")}),
    "trm_max_avg": (
        "trm_max_avg",
        "KL",
        lambda hp: {"delta_max": hp("trm_max_loose"), "delta_avg": hp("trm_avg_loose")},
    ),
    "pg_is": (UNMASKED, "D", lambda hp: {}),
}
SHUFFLED = ("cppo_shuffled",)
SOFT = ("cppo_soft_inv", "cppo_soft_sapo", "cppo_soft_sapo_adm")  # weights in [0, 1], not masks of 0 and 1
NUMBER = r"(\d+\.?\d*|\.\d+)"


def find_method(name: str) -> tuple[str, str, Callable[[Constants], dict[str, Any]]] | None:
    """(rule, divergence array, constants) of a method, or None for a name that is not known."""
    found = METHODS.get(name)
    if match := re.fullmatch(rf"grpo_dual{NUMBER}", name):
        dual = float(match[1])
        found = "grpo", "D", lambda hp: {**CLIPS, "dual_clip": dual}
    elif match := re.fullmatch(rf"(cispo|minpro)_(?:{NUMBER}_|hi){NUMBER}", name):
        rule, low, high = match[1], match[2], float(match[3])
        clips = {"clip_high": high} | ({} if low is None else {"clip_low": float(low)})
        found = rule, "D", lambda hp: clips
    return found


def capped(name: str) -> tuple[str, float] | None:
    """(method that masks, cap) of `<method>_logp_cap<cap>`, or None for any other name."""
    match = re.fullmatch(rf"(.+)_logp_cap{NUMBER}", name)
    return (match[1], float(match[2])) if match else None


def unmasked(tokens: Tokens) -> RuleOutput:
    """rho A without a trust region: the objective that every mask multiplies."""
    return decided(tokens, tokens.valid, {})


def capped_logp(output: RuleOutput, cap: float, tokens: Tokens) -> RuleOutput:
    """stopgrad(min(rho, cap) keep) A log pi with the `keep` of a rule's output."""
    coefficient = tokens.log_ratio.detach().exp().clamp_max(cap) * output.keep
    return output._replace(objective=coefficient * tokens.advantages * tokens.logp)


class Recomputation:
    """Inputs and rule outputs of the cases of `vectors`, in `dtype`."""

    def __init__(self, vectors: Vectors, dtype: torch.dtype) -> None:
        self.vectors, self.dtype = vectors, dtype
        self._outputs: dict[tuple[str, str], tuple[RuleOutput, Tensor] | None] = {}

    def tensor(self, key: str) -> Tensor:
        """One array in our dtype. LookupError if the file lacks it."""
        return self.vectors.tensor(key, self.dtype)

    def given(self, case: str, *names: str) -> list[Tensor]:
        """The inputs `<case>/in/<name>` in our dtype. LookupError if the file lacks one."""
        return [self.tensor(f"{case}/in/{name}") for name in names]

    def output(self, case: str, method: str) -> tuple[RuleOutput, Tensor] | None:
        """A method's output on a case and the logp [B, T] it is differentiable in; None: no such method.

        Raises:
            LookupError: an array or a hyper-parameter that it needs is missing.
            ValueError, RuntimeError, TypeError: the inputs are not what the rule takes.
        """
        if (case, method) not in self._outputs:
            cap = capped(method)
            self._outputs[case, method] = self._capped(case, *cap) if cap else self._rule(case, method)
        return self._outputs[case, method]

    def _rule(self, case: str, method: str) -> tuple[RuleOutput, Tensor] | None:
        found = find_method(method)
        if found is None:
            return None
        rule, divergence, constants = found
        parameters = dict(constants(lambda name: self.vectors.constant(case, name)))
        permutation = self.vectors.tensor(f"{case}/in/perm") if method in SHUFFLED else None
        names = "logp", "rollout_logp", "advantage", "valid", divergence
        logp, rollout_logp, advantage, valid, d = self.given(case, *names)
        function = unmasked if rule == UNMASKED else get_rule(rule)
        tokens = Tokens(logp.requires_grad_(), rollout_logp, advantage, valid, d, permutation)
        return function(tokens, **parameters), logp

    def _capped(self, case: str, method: str, cap: float) -> tuple[RuleOutput, Tensor] | None:
        masking = self.output(case, method)
        if masking is None:
            return None
        logp, *rest = self.given(case, "logp", "rollout_logp", "advantage", "valid")
        return capped_logp(masking[0], cap, Tokens(logp.requires_grad_(), *rest)), logp


THEORY_INPUTS = {f"theory/mdp/{name}" for name in ("prefixes", "mu", "pi", "sequences", "reward")}
ARGUMENTS = {"xi", "T", "delta", "delta_b", "w_min"}
# The process respects these; the file does not say so.
PROCESS = {"delta": 0.15, "delta_b": 0.05, "w_min": 0.8}

COLUMNS: dict[str, Callable[[dict[str, Any]], float]] = {
    "C_uniform": lambda row: bounds.dppo_constant(row["T"], row["delta"], row["xi"]),
    "C_cppo(lbar=delta)": lambda row: bounds.cppo_constant(row["T"], row["delta_b"], row["delta"], row["xi"]),
    "C_impl": lambda row: bounds.weighted_constant(
        row["T"], row["delta"], row["delta_b"], row["w_min"], row["xi"]
    ),
    "C_terminal(lbar=delta)": lambda row: bounds.terminal_constant(
        row["T"], row["delta_b"], row["delta"], row["xi"]
    ),
    "terminal_ratio": lambda row: bounds.terminal_ratio(row["T"]),
    "product_bound": lambda row: bounds.product_bound(row["T"], row["delta_b"], row["delta"], row["xi"]),
    "slack_term(lbar=delta/w_min, eta=delta)": lambda row: bounds.slack_term(
        row["T"], bounds.largest_divergence(row["delta"], row["w_min"]), row["delta"], row["xi"]
    ),
}


def unknown_columns(vectors: Vectors) -> list[str]:
    """Columns of `theory/constants` with unknown names."""
    columns = vectors.manifest.get("theory_columns", []) if "theory/constants" in vectors.arrays else []
    return [name for name in columns if name not in COLUMNS and name not in ARGUMENTS]


def theory_value(vectors: Vectors, key: str) -> Tensor | None:
    """Our value of a `theory/...` array in float64; None for an unknown key.

    Raises:
        LookupError: an array or a column that it needs is missing.
        ValueError: a row with arguments out of range.
    """
    if key == "theory/constants":
        return _constants(vectors)
    name = key.removeprefix("theory/mdp/")
    if name == key or key in THEORY_INPUTS or name not in {*PROCESS_VALUES, "bound"}:
        return None
    process = EnumeratedProcess(vectors)
    return _bound(process, vectors) if name == "bound" else PROCESS_VALUES[name](process)


def _constants(vectors: Vectors) -> Tensor:
    """The rows with every column that we know recomputed."""
    table = vectors.tensor("theory/constants", torch.float64)
    columns = vectors.manifest.get("theory_columns", [])
    if missing := ARGUMENTS - set(columns):
        raise LookupError(f"the manifest's theory_columns lacks {sorted(missing)}")
    for row in table:
        arguments = dict(zip(columns, row.tolist(), strict=True))
        arguments["T"] = int(arguments["T"])
        for position, name in enumerate(columns):
            if name in COLUMNS:
                row[position] = COLUMNS[name](arguments)
    return table


class EnumeratedProcess:
    """An enumerated autoregressive process: probabilities and rewards along every sequence.

    mu, pi: [N, T] probability of each token of each sequence; tv: [N, T] TV(mu, pi) at the state before it;
    reward: [N]; index: state prefix -> row of the tables.
    """

    def __init__(self, vectors: Vectors) -> None:
        get = partial(vectors.tensor, dtype=torch.float64)
        sequences = vectors.tensor("theory/mdp/sequences")
        tables = get("theory/mdp/mu"), get("theory/mdp/pi")
        prefixes = vectors.tensor("theory/mdp/prefixes").tolist()
        index = {tuple(token for token in prefix if token >= 0): row for row, prefix in enumerate(prefixes)}
        length = sequences.shape[1]
        rows = torch.tensor([[index[tuple(y[:t])] for t in range(length)] for y in sequences.tolist()])
        self.mu, self.pi = (table[rows].gather(-1, sequences[..., None])[..., 0] for table in tables)
        self.tv = (0.5 * (tables[0] - tables[1]).abs().sum(-1))[rows]
        self.rows, self.reward, self.length = rows, get("theory/mdp/reward"), length

    def mean_reward(self, policy: Tensor) -> Tensor:
        return (policy.prod(1) * self.reward).sum()

    def surrogate(self) -> Tensor:
        """L' = E_mu[R sum_t (rho_t - 1)]."""
        return (self.mu.prod(1) * self.reward * (self.pi / self.mu - 1).sum(1)).sum()

    def residual(self) -> Tensor:
        """Delta = sum_t E_{s_t ~ mu} sum_a (pi - mu)(a) (Q_mu - Q_pi)(s_t, a), sequence by sequence."""
        terms = []
        for t in range(self.length):
            before = self.mu[:, :t].prod(1)
            after = self.mu[:, t + 1 :].prod(1) - self.pi[:, t + 1 :].prod(1)
            terms.append((before * (self.pi[:, t] - self.mu[:, t]) * after * self.reward).sum())
        return torch.stack(terms).sum()

    def mean_tv(self) -> Tensor:
        """u_t = E_mu[D_t], [T]."""
        return (self.mu.prod(1)[:, None] * self.tv).sum(0)

    def largest_tv(self) -> Tensor:
        """l_t = max over states of D_t, [T]."""
        return self.tv.amax(0)


PROCESS_VALUES: dict[str, Callable[[EnumeratedProcess], Tensor]] = {
    "J_mu": lambda process: process.mean_reward(process.mu),
    "J_pi": lambda process: process.mean_reward(process.pi),
    "L": EnumeratedProcess.surrogate,
    "Delta": EnumeratedProcess.residual,
    "u": EnumeratedProcess.mean_tv,
    "ell": EnumeratedProcess.largest_tv,
}


def _bound(process: EnumeratedProcess, vectors: Vectors) -> Tensor:
    """Theorem 1's constant, 2 xi T (T - 1) delta_b l.

    The file gives no limits for its process: either those of PROCESS or what the process reaches, l_1 for delta_b
    (the first token's whole budget) and max l_t for l, whichever comes nearer to the file's value.
    """
    xi, largest = float(process.reward.abs().amax()), process.largest_tv()
    reached = bounds.cppo_constant(process.length, float(largest[0]), float(largest.amax()), xi)
    candidates = torch.tensor(
        [bounds.weighted_constant(process.length, **PROCESS, xi=xi), reached], dtype=torch.float64
    )
    nearest = (candidates - vectors.tensor("theory/mdp/bound", torch.float64)).abs().argmin()
    return candidates[nearest]


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
    return (head in vectors.cases and name in INPUTS) or key in THEORY_INPUTS


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
        return theory_value(ours.vectors, key)
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


def _used_budget(ours: Recomputation, case: str, name: str) -> Tensor | None:
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
    weights, rate = _weights(ours, case, "linear"), _used_budget(ours, case, "used")
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
        stats = get_rule("cppo")(Tokens(*one), **hp, **rate, delta_b_mode=mode).stats
        counts.append(torch.stack([stats["masked"], stats["masked_by_prefix"], failing[row].to(ours.dtype)]))
    return torch.stack(counts)


PARTS: dict[str, Callable[[Recomputation, str, str], Tensor | None]] = {
    "in": _derived_input,
    "D": _divergence,
    "w": _weights,
    "delta_b": _used_budget,
    "score": _score,
    "mask": _mask,
    "val": _objective,
    "grad": _gradient,
    "loss": _loss,
    "dloss": _loss_gradient,
    "metric": _metric,
}
