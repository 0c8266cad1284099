"""Runs as Slurm jobs: submitted as arrays through submitit, known by the launcher's own ledger."""
