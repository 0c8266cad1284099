"""The formulas: rules, divergences, advantages, aggregation, bounds. Tensors in, tensors out.

Guarantees of this package:

- Every rule has the same signature, takes tensors [B, T] and returns a `RuleOutput` (`tokens.py`); `rules.py` finds it.
- Values at padding change nothing; wrong shapes, NaN and infinite values are a ValueError (`tokens.py`).
- Only `logp` gets a gradient from a rule's objective: masks, weights and divergences are constants (`divergence.py`).
- Each formula stands once. `packed.py` runs the same rules on responses without padding.
- Nothing here knows a trainer, a configuration or a file.

Begin with `tokens.py`, `masks.py` (CPPO and DPPO) and `weights.py`. docs/rules.md lists all rules with their sources;
the tests compare them with plain loops (tests/oracles).
"""
