"""What the trainers of the embedded cores have in common: the optimiser, the updates of a batch, and their state."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.optim import AdamW as TorchAdamW
from torch.optim import Optimizer

from cppo_lab.answers.records import StepAnswers
from cppo_lab.cores.diagnostics import Diagnostics
from cppo_lab.errors import NotFinite
from cppo_lab.maths.rules import group_advantages
from cppo_lab.maths.tokens import merge, summarise
from cppo_lab.spec import RunSpec


class AdamW(TorchAdamW):
    """`torch.optim.AdamW`: the same numbers, the same state, for code that is not compiled by `torch.compile`.

    torch decorates an optimiser's methods for its compiler, and the decorators import `torch._dynamo` at their first
    call. That costs 1.1 s of CPU time in each process that trains, and a small run takes a few seconds.
    """

    if not TYPE_CHECKING:
        step = torch.no_grad()(inspect.unwrap(TorchAdamW.step))
        add_param_group = inspect.unwrap(Optimizer.add_param_group)
        zero_grad = inspect.unwrap(Optimizer.zero_grad)
        state_dict = inspect.unwrap(Optimizer.state_dict)
        load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


# The loss of a minibatch, the rule's sums (maths/tokens.py), and the two sums of the relative log-prob error.
Minibatch = tuple[Tensor, dict[str, Tensor], tuple[float, float]]


class SteppedTrainer:
    """Trains a run step by step. `steps` counts the training steps taken."""

    GENERATORS: ClassVar[tuple[str, ...]]  # the attributes that are random generators
    tags: Mapping[str, str] = MappingProxyType(
        {}
    )  # known only once its trainer exists (schema.TAGS_OF_CORES)

    def __init__(self, spec: RunSpec, device: torch.device, parameters: Iterable[Tensor]) -> None:
        self.run, self.device, self.steps = spec, device, 0
        self.trained = list(parameters)
        optim = spec.optim
        self.optimizer = AdamW(
            self.trained,
            lr=optim.learning_rate,
            betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
            fused=True,
        )
        self.diagnostics = Diagnostics(spec.rule, spec.rollout.max_response_length)

    def answers(self) -> StepAnswers | None:
        """The responses kept from the last validation and its training step, returned once; None if there are none."""
        return None

    def weights(self) -> dict[str, Tensor]:
        """The policy's parameters, for `cppo export`; empty if they are not kept."""
        return {}

    def policy_state(self) -> dict[str, Any]:
        """The entries of the state that are the policy's: its weights, and older ones for rollouts that are stale."""
        raise NotImplementedError

    def load_policy(self, state: dict[str, Any]) -> None:
        """Continue with the policy of `state`."""
        raise NotImplementedError

    def graded(self, rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, float]:
        """Advantages [B], which responses their groups give a learning signal [B], and the share that they do not."""
        settings = self.run.advantage
        advantages, keep = group_advantages(rewards, groups, normalize_std=settings.normalize_std)
        share = 1 - float(keep.to(advantages.dtype).mean())
        return advantages, keep if settings.drop_zero_variance else torch.ones_like(keep), share

    def updates(self, keep: Tensor, objective: Callable[[Tensor], Minibatch]) -> dict[str, float]:
        """One optimiser step per minibatch of the responses that `keep` [B] marks; returns the metrics.

        Groups stay whole, dropped groups leave their minibatch smaller. Raises NotFinite before an update that would
        destroy the parameters.
        """
        size = self.run.batch.minibatch_prompts * self.run.batch.responses
        stats, losses, norms, error = [], [], [], [0.0, 0.0]
        for part in torch.arange(len(keep), device=keep.device).split(size):
            # PAPER: the denominators after dropping a group are not stated. Here it is removed from them, too, as if it
            # had not been sampled; the same for every rule.
            rows = part[keep[part]]
            if len(rows) == 0:
                continue
            loss, sums, mismatch = objective(rows)
            norms.append(self._descend(loss))
            stats.append(sums)
            losses.append(float(loss.detach()))
            error = [a + b for a, b in zip(error, mismatch, strict=True)]
        self.diagnostics.end_step()
        if not losses:
            return {}  # every group had equal rewards: nothing to learn from this batch
        return {f"rule/{name}": value for name, value in summarise(merge(stats)).items()} | {
            "train/loss": sum(losses) / len(losses),
            "train/grad_norm": sum(norms) / len(norms),
            "train/relative_logprob_error": error[0] / error[1] if error[1] else 0.0,
        }

    def _descend(self, loss: Tensor) -> float:
        """One optimiser step; returns the gradient norm before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.trained, self.run.optim.clip_grad_norm))
        if not norm < float("inf"):
            raise NotFinite(f"gradient norm is {norm}")
        self.optimizer.step()
        return norm

    def state(self) -> dict[str, Any]:
        """The state that determines the rest of this run."""
        return {
            "steps": self.steps,
            "optimizer": self.optimizer.state_dict(),
            "diagnostics": self.diagnostics.state(),
            **self.policy_state(),
            **{name: getattr(self, name).get_state() for name in self.GENERATORS},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.steps = state["steps"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.diagnostics.load_state(state["diagnostics"])
        self.load_policy(state)
        for name in self.GENERATORS:
            getattr(self, name).set_state(state[name].cpu())
