"""Slow reference for tiny autoregressive processes: every sequence, one token at a time, in plain Python.

A policy is a dict: state (tuple of tokens, shorter than T) -> list of next-token probabilities. A reward is a
dict: complete sequence (tuple of T tokens) -> number. It imports nothing of the package.
"""

import itertools
from random import Random

Policy = dict[tuple[int, ...], list[float]]
Reward = dict[tuple[int, ...], float]


def states(vocabulary: int, length: int) -> list[tuple[int, ...]]:
    """Every prefix of fewer than `length` tokens, shorter ones first."""
    return [state for t in range(length) for state in itertools.product(range(vocabulary), repeat=t)]


def sequences(vocabulary: int, length: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(vocabulary), repeat=length))


def random_simplex(vocabulary: int, random: Random) -> list[float]:
    """A random distribution with every probability above 0."""
    raw = [random.expovariate(1) + 1e-3 for _ in range(vocabulary)]
    return [value / sum(raw) for value in raw]


def random_policy(vocabulary: int, length: int, random: Random) -> Policy:
    return {state: random_simplex(vocabulary, random) for state in states(vocabulary, length)}


def tv(mu: list[float], pi: list[float]) -> float:
    return 0.5 * sum(abs(p - q) for p, q in zip(mu, pi, strict=True))


def probability(policy: Policy, sequence: tuple[int, ...], start: int = 0) -> float:
    """Probability of the tokens from position `start` on, given those before."""
    result = 1.0
    for t in range(start, len(sequence)):
        result *= policy[sequence[:t]][sequence[t]]
    return result


def drift(mu: Policy, pi: Policy, sequence: tuple[int, ...]) -> float:
    """sum_t (rho_t - 1)."""
    places = ((sequence[:t], token) for t, token in enumerate(sequence))
    return sum(pi[state][token] / mu[state][token] - 1 for state, token in places)


def value(policy: Policy, reward: Reward, state: tuple[int, ...]) -> float:
    """Expected reward when `policy` continues from `state`."""
    if state not in policy:
        return reward[state]
    return sum(p * value(policy, reward, (*state, token)) for token, p in enumerate(policy[state]))


def surrogate(mu: Policy, pi: Policy, reward: Reward) -> float:
    """L' = E_mu[R sum_t (rho_t - 1)]."""
    return sum(probability(mu, sequence) * r * drift(mu, pi, sequence) for sequence, r in reward.items())


def residual(mu: Policy, pi: Policy, reward: Reward, length: int) -> list[float]:
    """The terms of Delta at each position: over its states mu(s) sum_a (pi - mu)(a | s) (Q_mu - Q_pi)(s, a)."""
    terms = [0.0] * length
    for state in mu:
        for token, (p, q) in enumerate(zip(mu[state], pi[state], strict=True)):
            after = (*state, token)
            gap = value(mu, reward, after) - value(pi, reward, after)
            terms[len(state)] += probability(mu, state) * (q - p) * gap
    return terms


def mean_tv(mu: Policy, pi: Policy, length: int) -> list[float]:
    """u_t = E_mu[D_t]."""
    result = [0.0] * length
    for state in mu:
        result[len(state)] += probability(mu, state) * tv(mu[state], pi[state])
    return result


def largest_tv(mu: Policy, pi: Policy, length: int) -> list[float]:
    """l_t = max over the states of D_t."""
    return [max(tv(mu[state], pi[state]) for state in mu if len(state) == t) for t in range(length)]


def weights(length: int, w_min: float) -> list[float]:
    return [1.0 if length == 1 else 1 - (1 - w_min) * t / (length - 1) for t in range(length)]


def feasible_policy(
    mu: Policy,
    length: int,
    *,
    delta: float,
    delta_b: float,
    w_min: float,
    eta: float,
    greed: float,
    random: Random,
) -> Policy:
    """A policy with w_t D_t <= delta at every state and S_t <= delta_b W_t + eta along every path, t < T.

    Each state moves toward a random distribution, as far as its limit allows; with probability `greed` all the
    way, else a random part of it.
    """
    w = weights(length, w_min)
    pi: Policy = {}
    spent: dict[tuple[int, ...], float] = {(): 0.0}
    for state, old in mu.items():
        t = len(state)
        limit = delta / w[t]
        if t < length - 1:
            limit = min(limit, (delta_b * sum(w[: t + 1]) + eta - spent[state]) / w[t])
        limit *= 1.0 if random.random() < greed else random.random()
        corner = random.randrange(2 * len(old))  # half of the states move toward a single token
        target = [float(token == corner) for token in range(len(old))]
        if corner >= len(old):
            target = random_simplex(len(old), random)
        step = min(1.0, limit / tv(old, target))
        pi[state] = [p + step * (q - p) for p, q in zip(old, target, strict=True)]
        for token in range(len(old)):
            spent[(*state, token)] = spent[state] + w[t] * tv(old, pi[state])
    return pi


def worst_reward(mu: Policy, pi: Policy, vocabulary: int, length: int) -> Reward:
    """The reward in {-1, 1} with the largest Delta: Delta is linear in it, so each sequence takes its sign."""
    reward = {}
    for sequence in sequences(vocabulary, length):
        p, q = probability(mu, sequence), probability(pi, sequence)
        reward[sequence] = 1.0 if p * drift(mu, pi, sequence) - (q - p) >= 0 else -1.0
    return reward
