"""DAPO-Math-17k and AIME in verl's layout, and the grading of answers.

Guarantees of this package:

- `prepare.py` writes the same files from the same rows; `manifest.py` holds their checksums, which a run checks first.
- Only `cppo data prepare` downloads anything, and only if asked to (`sources.py`).
- Grading (`grading.py`, `dapo_rule.py`) treats responses as hostile: math-verify runs in processes that are killed when
  they take too long (`grader_pool.py`).
"""
