"""Searches: tune constants with Optuna, where every trial is a set of ordinary runs.

Guarantees of this package:

- A trial trains one run per seed, by the code that trains a sweep's runs; a finished run is not repeated.
- A study is continued only with the definition that created it (`compatibility.py`, `study.py`).
- Workers on several machines share a study; each trial is claimed by one of them (`study.py`, `worker.py`).
- File and command line are validated before anything runs (`declare.py`, `space.py`).
- The state of a search is one file, which reports read (`state.py`); passwords of a storage are never printed.

Begin with `declare.py`, `space.py`, then `tune.py` and `worker.py`. docs/search.md describes the files. Only this
package imports Optuna.
"""
