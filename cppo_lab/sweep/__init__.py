"""Sweeps: from a YAML file and overrides to a plan of typed runs, and the plan's execution.

Guarantees of this package:

- `declare.py` and `enumerate.py`: the file and the whole command line are validated before anything is written, and an
  error names the file, the key, the value and the remedy.
- `compose/`: Hydra composes the groups; `cppo_lab.spec` types the result. A run's id is the hash of that.
- `plan.py`: every run once, also if several sweeps share it. `plan_states.py` asks `cppo_lab.launch` for the states.
- `launch.py` trains unfinished runs and nothing else; `hypotheses.py` are registered before the first of them starts.
- `search/` tunes constants with Optuna, over the same runs.
"""
