"""Runs as Slurm jobs: submitted as arrays through submitit, tracked by the launcher's own ledger.

Guarantees of this package:

- A run has at most one job. `ledger.py` (`slurm.db` beside the runs) records a submission before `sbatch` is called, so
  a launcher that is killed in between is detected by the next one.
- `submit.py` submits equal jobs as one array; `parameters.py` is the only place that names Slurm's options.
- `queue.py` calls `squeue` once for all jobs; `view.py` and `reconcile.py` compare its answer with the ledger.
- `job.py` runs inside the job: it requeues on preemption, time limits and node failures, within `launcher.requeues`.
- `container.py` wraps a job for pyxis or Apptainer; the run and its id do not change.
"""
