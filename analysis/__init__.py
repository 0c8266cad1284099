"""From MLflow to tidy frames, selected checkpoints, statistics and verdicts. Nothing here draws.

Guarantees of this package:

- Only the store is read (`reader.py`, `histories.py`), never a run folder, and nothing is written to it.
- `grid.py` and `scoring.py`: every declared run has a score or is named as missing; no gap is hidden.
- `selection.py` decides which checkpoint is scored, `newest.py` which attempt at a run counts.
- `statistics/` has the intervals, tests and verdicts; docs/statistics.md states their assumptions and error rates.
"""
