"""Results as tidy pandas frames: `cppo_lab.load`.

Guarantees of this package:

- It reads a tracking store, or the paper's curves, and writes nothing.
- Frames have one row for each run, for each point, for each problem, with documented columns (`results.py`).
- Runs that a sweep declares and the store lacks are rows too, with their state: no gap is hidden (`results.py`).
- The paper's curves are read without MLflow.
- Histories and outcomes are read when they are first asked for.

Begin with `loading.py`, then `results.py`. docs/notebook.md is for users.
"""

from cppo_lab.errors import UserError

try:
    from cppo_lab.notebook.loading import load
    from cppo_lab.notebook.results import Results
except ModuleNotFoundError as error:
    if error.name != "pandas":
        raise
    raise UserError("package 'pandas' is not installed: pip install 'cppo-lab[notebook]'") from None

__all__ = ["Results", "load"]
