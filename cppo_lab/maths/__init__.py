"""The formulas: rules, divergences, advantages, aggregation, bounds. Tensors in, tensors out.

Guarantees of this package:

- A rule is a function of a record, `Tokens`, and its constants, and returns a `RuleOutput` (`tokens.py`); `rules.py`
  finds it.
- The record checks its tensors once: wrong shapes, NaN and infinite values are a ValueError. Values at padding change
  nothing.
- Only `logp` gets a gradient from a rule's objective: masks, weights and divergences are constants (`divergence.py`).
- Each formula stands once. `Tokens.packed` takes responses without padding.
- Nothing here knows a trainer, a configuration or a file.

Begin with `tokens.py`, `masks.py` (CPPO and DPPO) and `weights.py`. docs/rules.md lists all rules with their sources;
the tests compare them with plain loops (tests/oracles).
"""
