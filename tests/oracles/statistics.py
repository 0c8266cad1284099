"""Slow references of the statistics, written from the definitions. They import nothing of the package."""

import math


def holm_rejections(p_values: list[float], level: float) -> list[bool]:
    """Holm's step-down procedure as published: which hypotheses it rejects."""
    rejected = [False] * len(p_values)
    left = list(range(len(p_values)))
    while left:
        smallest = min(left, key=lambda index: p_values[index])
        if p_values[smallest] > level / len(left):
            break
        rejected[smallest] = True
        left.remove(smallest)
    return rejected


def held_out(scores: list[list[float]]) -> float:
    """`scores[step][benchmark]`: leave one benchmark out, pick the step on the others, score it on the one left out."""
    found = []
    for out in range(len(scores[0])):
        picked, highest = 0, -math.inf
        for step, row in enumerate(scores):
            rest = [value for benchmark, value in enumerate(row) if benchmark != out]
            mean = sum(rest) / len(rest)
            if mean > highest + 1e-5:
                picked, highest = step, mean
        found.append(scores[picked][out])
    return sum(found) / len(found)


def wins(ours: list[float], theirs: list[float]) -> float:
    """Share of pairs that ours win; ties count half."""
    total = 0.0
    for a in ours:
        for b in theirs:
            total += 1.0 if a > b else 0.5 if a == b else 0.0
    return total / (len(ours) * len(theirs))
