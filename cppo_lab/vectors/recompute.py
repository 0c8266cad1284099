"""The file's inputs in one dtype, and every rule's output on them, computed once per case and method."""

import torch
from torch import Tensor

from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.tokens import RuleOutput
from cppo_lab.vectors.archive import Vectors
from cppo_lab.vectors.methods import SHUFFLED, UNMASKED, capped, capped_logp, find_method, unmasked


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
        if method in SHUFFLED:
            parameters["permutation"] = self.vectors.tensor(f"{case}/in/perm")
        logp, *rest = self.given(case, "logp", "rollout_logp", "advantage", "valid", divergence)
        function = unmasked if rule == UNMASKED else get_rule(rule)
        return function(logp.requires_grad_(), *rest, **parameters), logp

    def _capped(self, case: str, method: str, cap: float) -> tuple[RuleOutput, Tensor] | None:
        masking = self.output(case, method)
        if masking is None:
            return None
        logp, *rest = self.given(case, "logp", "rollout_logp", "advantage", "valid")
        return capped_logp(masking[0], cap, logp.requires_grad_(), *rest), logp
