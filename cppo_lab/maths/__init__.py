"""The rules: divergences, position weights, budgets, masks, surrogates, advantages and aggregation.

Guarantees of this package:

- Functions of tensors, without state, configuration or I/O. Only torch and `cppo_lab.rules` are imported.
- Shapes are [B, T], right-padded, with a mask of valid tokens; `packed.py` has the same rules for packed responses.
- Every rule takes the checked batch of `output.py` and returns its `RuleOutput`; `rules.py` finds a rule by name.
- Each module cites paper and equation. Every rule matches an independent loop or golden vectors (`tests/maths`).

Begin with `masks.py` (DPPO, CPPO), `weights.py` and `budget.py`; the constants of the bounds are in `bounds.py`.
"""
