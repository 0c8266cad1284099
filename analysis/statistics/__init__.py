"""Statistics across seeds, models and methods, with their uncertainty. Nothing here draws.

Guarantees of this package:

- Every estimate comes with its standard error and interval, or the reason why there is none (`estimate.py`).
- Whether runs are paired follows from the design, before the results are known (`values.py`).
- `claims.py` states what is compared, `compared.py` estimates it, `verdicts.py` judges: supported, not supported or
  undecided, in the order of the claims.
- Error rates and power are simulated by `benchmarks/coverage.py` and `procedure.py` (docs/statistics.md).
"""
