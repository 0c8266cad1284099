"""From MLflow to tidy frames, selection and statistics. Nothing here draws.

Guarantees of this package:

- Results are checked against the grid that a sweep declares; every gap is named, with its state (`scoring.py`).
- The checkpoint that is scored follows the paper's selection rule; interpretations are marked `PAPER` (`scoring.py`).
- A configuration that was trained more than once counts once (`reader.py`).
- Files from a store are not trusted: every field is checked, and errors name it.
- No trainer is imported, no run folder is read, and a store is only read.

Begin with `inputs.py` and `reader.py` (runs), then `scoring.py`. `statistics/` compares methods; `study.py`
joins sweeps, `search.py` has the results of a search, `replay.py` those of another rule on recorded tokens.
"""
