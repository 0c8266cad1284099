"""The exact core's Markov process and its tabular policy.

The Markov process: states, transitions, sampling, and expectations by dynamic programming.

A state is (mode, previous token, slips so far). Ordinary symbols are odd or even; symbol 0, the branch token, is even.
In the first mode the right token has another parity than the token before it, in the second mode the same. Inside the
fork's eighth of the response the branch token is right and changes the mode; elsewhere it is a slip. A response is
rewarded with 1 if it makes at most `allowed_slips` slips, else with 0.

A policy depends on the position through K stretches of equal length, so it is a table [K, S, V]. A leading R
counts runs that are sampled or evaluated together; they are independent, and each gets the same numbers as alone.
Shapes: T = positions, S = states, V = symbols. float64 in NumPy: a step of the recursion is a few short
operations, which are faster there than in torch.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cppo_lab.spec import TableModel

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

BRANCH = 0  # the symbol that changes the mode
MODES = 2
WINDOW = 8  # the fork is in the first or last eighth


@dataclass(frozen=True)
class Process:
    """The process of `family` over `horizon` tokens; `stretches` is K."""

    family: str
    vocabulary: int
    horizon: int
    allowed_slips: int
    stretches: int

    @property
    def slip_levels(self) -> int:
        """The number of slip levels: 0..allowed_slips, and a level for too many."""
        return self.allowed_slips + 2

    @property
    def states(self) -> int:
        return MODES * self.vocabulary * self.slip_levels

    @cached_property
    def stretch(self) -> Indices:
        """[T] the stretch of each position, 0..K-1."""
        return np.arange(self.horizon) * self.stretches // self.horizon

    @cached_property
    def forks(self) -> NDArray[np.bool_]:
        """[T] whether the branch token changes the mode there."""
        width = math.ceil(self.horizon / WINDOW)
        position = np.arange(self.horizon)
        if self.family == "early_fork":
            return position < width
        if self.family == "late_fork":
            return position >= self.horizon - width
        return np.zeros(self.horizon, dtype=bool)

    @cached_property
    def starts(self) -> Indices:
        """[V - 1] the states in which responses begin: first mode, each ordinary symbol, no slip."""
        return np.arange(1, self.vocabulary) * self.slip_levels

    def right(self, forks: bool) -> NDArray[np.bool_]:
        """[2, V, V] whether a token (last) is right in a mode after a token; `forks`: inside the fork's window."""
        parity = np.arange(self.vocabulary) % 2
        same = parity[:, None] == parity[None, :]
        right = np.stack([~same, same])
        right[:, :, BRANCH] = forks
        return right

    @cached_property
    def successors(self) -> list[Indices]:
        """[S * V] the state after each (state, token): outside the fork's window, and inside it."""
        levels, symbols = self.slip_levels, self.vocabulary
        before, _, slips, token = np.indices((MODES, symbols, levels, symbols))
        tables = []
        for forks in (False, True):
            after = np.minimum(slips + ~self.right(forks)[:, :, None, :], levels - 1)
            mode = np.where((token == BRANCH) & forks, 1 - before, before)
            tables.append(((mode * symbols + token) * levels + after).reshape(-1))
        return tables

    @cached_property
    def rewards(self) -> Array:
        """[S] the reward of a response that ends there."""
        slips = np.arange(self.states) % self.slip_levels
        return (slips <= self.allowed_slips).astype(np.float64)

    @cached_property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each table of a policy as it is added to [K, 2, V, E, V]."""
        v, e, k = self.vocabulary, self.slip_levels, self.stretches
        return ((1, 1, v, 1, v), (1, MODES, v, 1, v), (1, 1, 1, e, v), (k, 1, 1, 1, v))

    def cut(self, parameters: Tensor) -> tuple[Tensor, ...]:
        """Views of a policy's `parameters` [P]: pair, mode, slips, stretch."""
        parts = parameters.split([math.prod(shape) for shape in self.tables])
        return tuple(part.view(shape) for part, shape in zip(parts, self.tables, strict=True))

    def logits(self, parameters: Tensor) -> Tensor:
        """[K, S, V] of a policy's `parameters` [P], differentiable."""
        pair, mode, slips, stretch = self.cut(parameters)
        return (pair + mode + slips + stretch).view(self.stretches, self.states, self.vocabulary)


def sample(process: Process, policy: Array, starts: Indices, uniforms: Array) -> tuple[Indices, Array]:
    """N responses for each of R runs of `policy` [R, K, S, V] (probabilities) from the states `starts` [R, N]: flat
    indices [R, N, T] into a run's table [K, S, V], whose remainder by V is the token, and rewards [R, N].

    `uniforms` [R, N, T] in [0, 1) decide every token, by inversion of the cumulative distribution.
    """
    runs, stretches, states, symbols = policy.shape
    cumulative = policy.cumsum(-1)
    cumulative /= cumulative[..., -1:]
    # Symbols first: a sum over a short last axis takes five times as long.
    bounds = cumulative[..., :-1].reshape(-1, symbols - 1).T.copy()
    run = np.repeat(np.arange(runs) * stretches * states, starts.shape[1])
    # [T, R * N]; NumPy takes twice as long.
    points = torch.from_numpy(uniforms.reshape(len(run), -1)).t().contiguous().numpy()
    places = np.empty(points.shape, dtype=np.int64)
    state = starts.reshape(-1)
    for t in range(process.horizon):
        visited = state + process.stretch[t] * states
        token = (bounds.take(run + visited, axis=1) <= points[t]).sum(0)
        places[t] = visited * symbols + token
        state = process.successors[int(process.forks[t])].take(state * symbols + token)
    return places.T.reshape(uniforms.shape), process.rewards[state].reshape(starts.shape)


class PolicyPair(NamedTuple):
    """Exact comparison of a rollout policy mu with a policy pi; expectations over responses of mu from a uniform start.

        J(pi) - J(mu) = L' - Delta,   L' = E_mu[R sum_t (rho_t - 1)] = sum_t E_mu[sum_a (pi - mu)(a) Q_mu(s_t, a)]
        Delta = sum_t E_mu[sum_a (pi - mu)(a) (Q_mu - Q_pi)(s_t, a)]

    (`maths/bounds.py`). Both sums are kept by position.
    """

    rollout_return: Array  # [R] J(mu)
    returns: Array  # [R] J(pi)
    surrogate: Array  # [R, T]; L' is the sum
    error: Array  # [R, T]; Delta is the sum
    movement: Array  # [R, T] u_t = E_mu[D_t]
    largest: Array  # [R, T] l_t, the largest D_t of a state that mu reaches
    visits: Array  # [R, K, S] expected visits of each state in each stretch


def compare(process: Process, mu: Array, pi: Array, divergence: Array) -> PolicyPair:
    """Compare `mu` and `pi` [R, K, S, V] (probabilities); `divergence` [R, K, S] is D of each state."""
    runs, occupancy = len(mu), state_probabilities(process, mu)
    both, successors, symbol = _laid_out(process, np.concatenate([mu, pi]))
    values = np.empty((process.horizon + 1, 2 * runs, process.states))
    values[-1] = process.rewards
    crossed = np.empty((process.horizon, runs, process.states))
    for t in reversed(range(process.horizon)):
        policy = both[process.stretch[t]]
        behind = values[t + 1].take(successors[int(process.forks[t])], 1)
        (policy * behind).sum(symbol, out=values[t])
        (policy[runs:] * behind[:runs]).sum(symbol, out=crossed[t])  # a token of pi, then mu to the end
    surrogate, movement, largest = (np.empty((process.horizon, runs)) for _ in range(3))
    visits = np.empty((runs, process.stretches, process.states))
    for k in range(process.stretches):
        part, apart = process.stretch == k, divergence[:, k]
        here = occupancy[:-1][part]
        surrogate[part] = (here * (crossed[part] - values[:-1, :runs][part])).sum(2)
        visits[:, k] = here[::-1].copy().sum(0)
        movement[part] = (here * apart).sum(2)
        largest[part] = np.where(here > 0, apart, 0.0).max(2)
    returns = (occupancy * values[:, runs:]).sum(2)  # sum_s d_mu[t](s) V_pi[t](s)
    error = surrogate - (returns[:-1] - returns[1:])
    first = values[0][:, process.starts].mean(1)
    return PolicyPair(first[:runs], first[runs:], surrogate.T, error.T, movement.T, largest.T, visits)


def _laid_out(process: Process, policy: Array) -> tuple[Array, list[Indices], int]:
    """`policy` [R, K, S, V] as [K, R, V, S], the successors alike, and the axis of the symbols behind K.

    A sum over a short last axis takes several times as long. Eight symbols or more stay last: there NumPy adds them in
    another order than along other axes, and the results would differ in their last digits.
    """
    tables = [table.reshape(-1, process.vocabulary) for table in process.successors]
    if process.vocabulary < 8:
        return policy.transpose(1, 0, 3, 2).copy(), [table.T for table in tables], 1
    return policy.swapaxes(0, 1), tables, 2


def state_probabilities(process: Process, policy: Array) -> Array:
    """[T + 1, R, S] the probability of each state before each token, and at the end."""
    runs, states = len(policy), process.states
    probability = np.zeros((process.horizon + 1, runs, states))
    probability[0][:, process.starts] = 1 / len(process.starts)
    offset = np.arange(runs)[:, None] * states
    targets = [(offset + successors).reshape(-1) for successors in process.successors]
    for t in range(process.horizon):
        joint = probability[t][:, :, None] * policy[:, process.stretch[t]]
        flat = np.bincount(targets[int(process.forks[t])], joint.reshape(-1), runs * states)
        probability[t + 1] = flat.reshape(runs, states)
    return probability


def returns_by_start(process: Process, policy: Array) -> Array:
    """[R, V - 1] the expected reward of `policy` [R, K, S, V] from each starting symbol."""
    table, successors, symbol = _laid_out(process, policy)
    value = np.tile(process.rewards, (len(policy), 1))
    for t in reversed(range(process.horizon)):
        value = (table[process.stretch[t]] * value.take(successors[int(process.forks[t])], 1)).sum(symbol)
    return value[:, process.starts]


# The policy, a sum of four tables of logits that are shared between states, and its initial parameters.
#
#     logits(k, (m, v, e))[y] = pair[v, y] + mode[m, v, y] + slips[e, y] + stretch[k, y]
#
# for stretch k of the response, mode m, previous token v, slips so far e and token y. An update for a state moves
# every other state that shares a term with it, as in a neural network. float64 throughout.

FREEDOM = 3  # degrees of freedom of the Student-t noise: heavy tails, and still a variance


def starting_parameters(process: Process, model: TableModel, generator: torch.Generator) -> Tensor:
    """[P] the initial parameters that `model` describes, plus normal noise from `generator`.

    In each mode every position makes a slip with the probability that gives the mode's slips per response; right
    tokens are equally likely, and so are wrong ones. Inside the fork's window the branch token has the probability
    that makes `model.fork` over the whole window.
    """
    parameters = torch.zeros(sum(map(math.prod, process.tables)), dtype=torch.float64)
    _, mode, _, stretch = process.cut(parameters)
    right = torch.from_numpy(process.right(forks=False))
    shares = (model.slips / process.horizon, model.second_mode_slips / process.horizon)
    for m, share in enumerate(shares):
        good = right[m].sum(1, keepdim=True).double()
        odds = (process.vocabulary - good) * (1 - share) / (good * share)  # of a right token to a wrong token
        mode[0, m, :, 0] = torch.where(right[m], odds.log(), 0.0)
    width = int(process.forks.sum())
    if width:
        hazard = 1 - (1 - model.fork) ** (1 / width)
        within = torch.from_numpy(process.stretch[process.forks]).unique()
        # The normalisers of previous tokens differ a little: the hazard is exact for their mean.
        scale = mode[0, 0, :, 0].logsumexp(1).mean()
        stretch[within, 0, 0, 0, BRANCH] = scale + math.log(hazard / (1 - hazard))
    noise = torch.randn(parameters.shape, generator=generator, dtype=torch.float64)
    return parameters + model.start_noise * noise


def student(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws of Student's t with FREEDOM degrees of freedom, float64."""
    drawn = torch.randn((FREEDOM + 1, *shape), generator=generator, dtype=torch.float64)
    return drawn[0] / (drawn[1:].square().mean(0)).sqrt()
