"""The per-token diagnostics on plain tensors, as cores that pad their batches with empty rows hand them on."""

import torch

from cppo_lab.cores.diagnostics import Diagnostics, ObservedTokens
from cppo_lab.spec import RuleSpec

RULE = RuleSpec(name="cppo", delta=0.1, delta_b=0.01, delta_b_mode="fixed", w_min=0.8)


def watched(lengths: list[int]) -> ObservedTokens:
    """Tokens that all move away from mu and are far from it."""
    shape = (len(lengths), 5)
    valid = torch.arange(5) < torch.tensor(lengths)[:, None]
    return ObservedTokens(
        torch.full(shape, -0.5), torch.full(shape, -1.5), torch.full(shape, 0.3), torch.ones(shape), valid,
        torch.arange(10, 15).expand(shape),
    )  # fmt: skip


def names(ids: list[int]) -> list[str]:
    return [f"<{i}>" for i in ids]


def test_without_a_token_there_is_nothing_to_keep() -> None:
    diagnostics = Diagnostics(RULE, horizon=6)
    assert diagnostics.tables() == {}
    diagnostics.see(1, watched([0, 0]), names)
    diagnostics.end_step()
    assert diagnostics.tables() == {}


def test_empty_rows_are_neither_counted_nor_shown() -> None:
    diagnostics = Diagnostics(RULE, horizon=6)
    diagnostics.see(1, watched([0, 0]), names)
    assert "window" not in diagnostics.tables()
    diagnostics.see(1, watched([0, 3, 0]), names)
    diagnostics.end_step()
    tables = diagnostics.tables()
    assert tables["positions"]["tokens"] == [1, 1, 1]
    assert tables["window"]["symbols"] == ["<10>", "<11>", "<12>"]
    diagnostics.see(2, watched([0]), names)
    diagnostics.end_step()
    assert diagnostics.tables()["window"]["step"] == 1
