"""DAPO-Math-17k and AIME in verl's layout, and the grading of answers.

Guarantees of this package:

- Prepared data are the same every time, and the folder appears whole or not at all (`prepare.py`).
- `manifest.json` has the checksums; `cppo data check` finds every change (`prepare.py`).
- A row that cannot be read is an error with its place, and a prompt is taken once (`prepare.py`).
- A grade takes a bounded time: math-verify runs in child processes that can be killed (`grading.py`).

Begin with `prepare.py` and `sources.py` for data, `grading.py` for grades and for the reward that verl
asks for; it also grades by DAPO's rule, for comparison.
"""
