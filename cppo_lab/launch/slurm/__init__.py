"""Runs as Slurm jobs: submitted as arrays through submitit, tracked by the launcher's own ledger."""
