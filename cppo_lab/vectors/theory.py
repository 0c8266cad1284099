"""The `theory` block: constants of the bounds, and one process small enough to enumerate.

theory/constants       rows of arguments and constants; the manifest's `theory_columns` names the columns
theory/mdp/prefixes    [P, T] the states s_t as token prefixes, -1 behind their end
theory/mdp/mu, pi      [P, V] next-token probabilities at each of them
theory/mdp/sequences   [N, T] every complete sequence,   theory/mdp/reward  [N] its reward
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cppo_lab.maths import bounds
from cppo_lab.vectors.archive import Vectors

INPUTS = {f"theory/mdp/{name}" for name in ("prefixes", "mu", "pi", "sequences", "reward")}
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


def value(vectors: Vectors, key: str) -> Tensor | None:
    """Our value of a `theory/...` array in float64; None for an unknown key.

    Raises:
        LookupError: an array or a column that it needs is missing.
        ValueError: a row with arguments out of range.
    """
    if key == "theory/constants":
        return _constants(vectors)
    name = key.removeprefix("theory/mdp/")
    if name == key or key in INPUTS or name not in {*PROCESS_VALUES, "bound"}:
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
