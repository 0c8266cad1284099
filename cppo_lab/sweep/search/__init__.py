"""Searches: tune constants with Optuna, where every trial is a set of ordinary runs.

Guarantees of this package:

- A trial's runs have the ids that a sweep would give them, so nothing is trained twice (`reuse.py`).
- `study.py` and `compatibility.py`: a study is continued only with the definition that created it.
- `worker.py`: a killed worker's trial is resumed by another one under the same number, from its checkpoints.
- `state.py` writes `search.json`, which is all that the report reads.

`declare.py` reads the file, `space.py` builds the search, `tune.py` runs it.
"""
