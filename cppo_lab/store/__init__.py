"""The MLflow store: its address, opening it, reading and writing runs.

Guarantees of this package:

- `address.py`: which store is used (`tracking.uri`, MLFLOW_TRACKING_URI, `mlflow.db`). Passwords are not printed.
- `artifact_hosts.py`: a password goes to the tracking server alone, wherever a run's artifacts are said to be.
- `create.py`: a new SQLite store is complete or absent, whenever the process is killed.
- `client.py`: every write goes through its client, which is MLflow's. What must exist once is created by one process at
  a time, and a signal does not interrupt a transaction if its handler writes to the store (`exclusive.py`).
- `listing.py`: the runs of an experiment, page by page. `records.py`: a run in the store, an attempt at one of ours.
- `history.py`: the metric history of a run as one file, `history.npz`, with equal bytes for equal histories.

Begin with `address.py` and `client.py`. `cppo_lab.tracking` decides what is written, and when.
"""
