"""Starting runs, and finding out which runs already exist.

Guarantees of this package:

- Every job that it is given runs once; a job that fails does not stop the others (`base.py`: `Launcher`, `Job`).
- What becomes of a run is recorded by its job (`cppo_lab.runs.attempt`), not by the launcher; only for a job that was
  killed, its launcher, the next launch or `cppo status --repair` adds the end (`queues.py: record_dead_ends`).
- Looking at the queues writes nothing (`queues.py: read_queues`).
- No variable of submitit, Slurm or Python in the shell changes what launcher and job agreed on (`job_environment`).
- Each launcher is a record (`launchers.py`), as those of other packages are; no file checks for a launcher's name.

A run on its way: `PlannedRun` (sweep) -> `Attempt` (runs: all that its job has to know) -> `TrainingJob`
(`training.py`: a run, or several that train together) -> the launcher, for Slurm as a `SlurmTask` (`slurm/job.py`) ->
`attempt.train`, which opens a `Recorder` for each run and calls the core. On the launching side `sweep.progress`
follows it. `TrainingJob.uploads` says who sends its metrics: a job of a launcher with a queue does it itself, since
nobody waits for it; else the launch does, for all of its jobs.

Begin with `base.py`, then `local.py`, the smallest launcher with processes. `cppo_lab.testing` has tests of any.
"""
