"""The exact core: tabular policies on a small Markov process whose returns are computed, not estimated.

Guarantees of this package:

- `process.py` evaluates expectations by dynamic programming; tests compare them with enumeration and Monte Carlo.
- Every step logs return, surrogate, error, movement and bounds (`trainer.py`), with J(pi) - J(mu) = L' - Delta.
- Updates use the rules of `cppo_lab.maths` on sampled responses (`learner.py`), as the other cores do.
- `loop.py` trains seeds together as one batch, with the results of single runs.

See docs/exact.md.
"""
