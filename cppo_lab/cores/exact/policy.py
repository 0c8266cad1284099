"""The policy, a sum of four tables of logits that are shared between states, and its initial parameters.

    logits(k, (m, v, e))[y] = pair[v, y] + mode[m, v, y] + slips[e, y] + stretch[k, y]

for stretch k of the response, mode m, previous token v, slips so far e and token y. An update for one state moves every
other state that shares a term with it, as in a neural network. float64 throughout.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cppo_lab.cores.exact.process import BRANCH, MODES, Process
from cppo_lab.spec import TableModel

FREEDOM = 3  # degrees of freedom of the Student-t noise: heavy tails, and still a variance


@dataclass(frozen=True)
class PolicyTables:
    """How a flat vector of parameters is split into the four tables."""

    process: Process

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Each table as it is added to [K, 2, V, E, V]."""
        v, e = self.process.vocabulary, self.process.slip_levels
        k = self.process.stretches
        return ((1, 1, v, 1, v), (1, MODES, v, 1, v), (1, 1, 1, e, v), (k, 1, 1, 1, v))

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def cut(self, parameters: Tensor) -> tuple[Tensor, ...]:
        """Views of `parameters` [P]: pair, mode, slips, stretch."""
        parts = parameters.split([math.prod(shape) for shape in self.shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))

    def logits(self, parameters: Tensor) -> Tensor:
        """[K, S, V] of `parameters` [P], differentiable."""
        pair, mode, slips, stretch = self.cut(parameters)
        process = self.process
        return (pair + mode + slips + stretch).view(process.stretches, process.states, process.vocabulary)


def starting_parameters(process: Process, model: TableModel, generator: torch.Generator) -> Tensor:
    """[P] the initial parameters that `model` describes, plus normal noise from `generator`.

    In each mode every position makes a slip with the probability that gives the mode's slips per response; right
    tokens are equally likely, and so are wrong ones. Inside the fork's window the branch token has the probability
    that makes `model.fork` over the whole window.
    """
    tables = PolicyTables(process)
    parameters = torch.zeros(tables.size, dtype=torch.float64)
    _, mode, _, stretch = tables.cut(parameters)
    right = torch.from_numpy(process.right(forks=False))
    shares = (model.slips / process.horizon, model.second_mode_slips / process.horizon)
    for m, share in enumerate(shares):
        good = right[m].sum(1, keepdim=True).double()
        odds = (
            (process.vocabulary - good) * (1 - share) / (good * share)
        )  # of one right token to one wrong token
        mode[0, m, :, 0] = torch.where(right[m], odds.log(), 0.0)
    width = int(process.forks.sum())
    if width:
        hazard = 1 - (1 - model.fork) ** (1 / width)
        within = torch.from_numpy(process.stretch[process.forks]).unique()
        # The normalisers of previous tokens differ a little: the hazard is exact for their mean.
        scale = mode[0, 0, :, 0].logsumexp(1).mean()
        stretch[within, 0, 0, 0, BRANCH] = scale + math.log(hazard / (1 - hazard))
    noise = torch.randn(tables.size, generator=generator, dtype=torch.float64)
    return parameters + model.start_noise * noise


def student(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws of Student's t with FREEDOM degrees of freedom, float64."""
    drawn = torch.randn((FREEDOM + 1, *shape), generator=generator, dtype=torch.float64)
    return drawn[0] / (drawn[1:].square().mean(0)).sqrt()
