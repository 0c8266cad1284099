"""Searches: tune constants with Optuna, where every trial is a set of ordinary runs.

- `space.py`: a search file (`cppo_lab/sweep/file.py`) and a command line become a `Tuning`, checked before
  anything runs.
- `study.py`: Optuna's storage, and who has which trial. A study is continued only with the definition that created it.
  The state of a search, as text and as the file that reports read.
- `worker.py`: starts workers through a launcher, and says what has become of the search. A worker trains a run per seed
  of a trial, by the code that trains a sweep's runs, and reports to the study.

Begin with `study.py`, then `worker.py`. docs/search.md describes the files. Besides this package,
only the report of a search imports Optuna (`analysis/search.py`). Passwords of a storage are never printed or written.
"""
