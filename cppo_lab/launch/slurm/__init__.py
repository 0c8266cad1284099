"""Runs as Slurm jobs: submitted as arrays through submitit, known by the launcher's ledger.

Guarantees of this package:

- A run is claimed in `runs/slurm.db` before `sbatch` is called, so no kill of a launcher makes two jobs of a run
  (`queue.py: Ledger`). Only launchers and repairs write there; jobs never do.
- `cppo launch` returns once the jobs are in the queue. If Slurm would refuse a job, none is submitted (`submit.py`).
- A job that loses its machine goes back into the queue, as often as the settings allow, and then gives up (`job.py`).
- The queue is asked once for all runs, and `sacct` only for what `squeue` has forgotten (`queue.py`).

Begin with `submit.py` and the ledger in `queue.py`. `job.py` has what a container adds, too. docs/slurm.md is for
users, docs/slurm_dev.md describes the Slurm of the tests.
"""

LEDGER = "slurm.db"  # of submitted jobs, beside the runs; where there is none, no other module of Slurm is imported
