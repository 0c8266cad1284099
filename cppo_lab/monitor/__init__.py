"""Shows the state and output of runs and cancels them, whoever launched them and with whichever launcher.

Guarantees of this package:

- `status`, `logs` and `watch` answer from the run folders and one look at Slurm's queue, without MLflow, and only read
  (apart from `status --repair`).
- States and their texts are those of `cppo_lab.launch.run_state`.
- `cancel.py` ends runs so that the next launch resumes them; `repair.py` records the ends that killed processes could
  not record.
"""
