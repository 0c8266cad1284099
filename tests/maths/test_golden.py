"""Every array of the golden file against our value of it, in both precisions."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from cppo_lab.maths.divergence import logp_and_divergence
from cppo_lab.testing.vectors import DTYPES, TOLERANCE, Recomputation, is_exact, is_input, load, value
from tests.requirement import TRITON

PATH = Path(__file__).parents[1] / "oracles" / "vectors.npz"
VECTORS = load(PATH)
OURS = {dtype: Recomputation(VECTORS, dtype) for dtype in DTYPES}
# part -> tolerance in float64 and in float32: mostly tighter than `cppo_lab.testing.vectors`, which takes any seed
STRICT = {
    "in": (1e-10, 2e-6),
    "D": (1e-10, 2e-6),
    "w": (1e-12, 1e-7),
    "delta_b": (1e-12, 1e-6),
    "constants": (1e-12, 0.0),
    "mdp": (1e-12, 0.0),
}
ABSOLUTE = ("in", "D", "w", "delta_b", "mask", "loss", "dloss", "extreme")


@pytest.mark.parametrize(
    "case, dtype",
    [*((case, dtype) for case in (*VECTORS.cases, "extreme") for dtype in DTYPES), ("theory", DTYPES[0])],
    ids=str,
)
def test_case(case: str, dtype: torch.dtype) -> None:
    wrong = []
    for key in VECTORS.arrays:
        if not key.startswith(f"{case}/") or is_input(VECTORS, key):
            continue
        actual = value(OURS[dtype], key)
        assert actual is not None and not actual.requires_grad, key
        assert not actual.is_floating_point() or actual.dtype == dtype, key
        part = "extreme" if case == "extreme" else key.split("/")[1]
        tolerance = STRICT.get(part, (TOLERANCE[dtype],) * 2)[DTYPES.index(dtype)]
        tolerance = 0.0 if is_exact(key) else tolerance
        relative = 0.0 if part in ABSOLUTE and not key.endswith("ratio") else tolerance
        try:
            expected = VECTORS.tensor(key, actual.dtype)
            torch.testing.assert_close(actual, expected, rtol=relative, atol=tolerance)
        except AssertionError as error:
            wrong.append(f"{key}: {' '.join(str(error).split())}")
    assert wrong == []


class OfLogits(Recomputation):
    """The rules on log pi and D_t as a trainer has them: from pi's logits in float32, not from the file."""

    def __init__(self, case: str, fused: bool) -> None:
        super().__init__(VECTORS, torch.float32)
        mu, pi, rollout_logp = self.given(case, "mu", "pi", "rollout_logp")
        tokens, ids = (VECTORS.tensor(f"{case}/in/{name}") for name in ("tokens", "rollout_topk_ids"))
        whole = torch.arange(pi.shape[-1]).expand(pi.shape), mu.log()
        top = {"binary": (None, None), "exact_loose_trm": whole}.get(
            case, (ids[..., :20], self.tensor(f"{case}/in/rollout_topk_logp")[..., :20])
        )
        logits = 20 + pi.log().flatten(0, 1)

        def computed(measure: str, *top: Tensor | None) -> tuple[Tensor, Tensor]:
            given = [None if column is None else column.flatten(0, 1) for column in (*top, rollout_logp)]
            both = logp_and_divergence(logits, tokens.flatten(), *given, measure=measure, fused=fused)
            return both.logp.view(tokens.shape), both.divergence.view(tokens.shape)

        logp, divergence = computed("tv", *top)
        _, kl = computed("kl", *((None, None) if case == "binary" else whole))
        valid = VECTORS.valid(case)
        self.computed = {
            f"{case}/in/{name}": torch.where(valid, value, 0.0)
            for name, value in (("logp", logp), ("D", divergence), ("KL", kl))
        }

    def tensor(self, key: str) -> Tensor:
        return self.computed[key].clone() if key in getattr(self, "computed", {}) else super().tensor(key)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.parametrize("case", [case for case in VECTORS.cases if f"{case}/in/pi" in VECTORS.arrays])
def test_masks_from_logits_by_the_eager_code_and_by_the_kernels(case: str) -> None:
    TRITON.demand()
    eager, kernels = (OfLogits(case, fused) for fused in (False, True))
    for method in VECTORS.cases[case]["methods"]:
        outputs = [ours.output(case, method) for ours in (eager, kernels)]
        if outputs[0] is None:  # a gate that is no rule
            continue
        keeps = [output.keep for output, _ in outputs]
        if is_exact(key := f"{case}/mask/{method}"):
            assert torch.equal(*keeps) and torch.equal(keeps[0].double(), VECTORS.tensor(key).double()), (
                method
            )
        else:
            torch.testing.assert_close(*keeps, rtol=0, atol=1e-4)
