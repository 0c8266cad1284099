"""Starting runs, and finding out which exist already.

Guarantees of this package:

- `run_state.py` is the only definition of a run's state; `plan`, `launch`, `status` and `watch` share it and its texts.
- `snapshot.py` queries store, locks and queues once per command, writes nothing, and does not import MLflow.
- `reconcile.py` repairs what killed processes left behind; only commands that write call it.
- A launcher (`base.py`) receives jobs and reports events. It knows neither sweeps nor MLflow. `launchers.py` has one
  record for each: `inline`, `local`, `slurm/`, and those of other packages.

Whatever the launcher, a job is a `cppo_lab.attempt` (or a `batch` of them), so a run is trained by one process at a
time.
"""
