"""From a sweep file and a command line to runs and their results: declaring, enumerating, planning, launching, loading.

Guarantees of this package:

- The whole command line is validated before anything is written. A mistake is a `UserError` with file, key, value and
  remedy (`enumerate.py`).
- A plan lists every run once, under the id of its configuration, whichever sweeps share it (`plan.py`).
- Files are plain data: read safely, of limited size, and unable to name code (`source.py`, `file.py`).
- `launch.py` trains what is unfinished, and a second launch does not repeat it.

Begin with `file.py` (what a file may say), `enumerate.py` (its runs), `plan.py`, `launch.py`. `compose.py` makes the
configuration of a run, `results.py` reads results as frames (`cppo_lab.load`). docs/sweeps.md describes the files.
"""
