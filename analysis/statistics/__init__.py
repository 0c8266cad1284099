"""Statistics across seeds, models and methods, with their uncertainty. Nothing here draws.

Guarantees of this package:

- Each estimate has a standard error and a 95 % interval, or the reason why there is none (`estimate.py`).
- The unit is the run. No interval for a method comes from a single run's evaluations (`summary.py`).
- A verdict controls its error rate: Holm's adjustment, fixed order, intersection-union tests (`verdicts.py`).
- Collapsed runs count; how they do is stated for each score (`values.py`).
- Random draws come from generators with fixed seeds: the same runs give the same numbers.

Begin with `values.py` (the scores of a run), `summary.py` (all statistics of a sweep), `claims.py` and `verdicts.py`;
`paired.py`: differences; `collapse.py`: survival; `problems.py`: per-problem statistics; `power.py`: how many seeds
decide; `exact_study.py`: the errors that the exact core computes. docs/statistics.md has the methods.
"""
