"""The chaos run: a sweep on a Slurm whose parts are killed on a schedule, compared with the same sweep undisturbed.

`python3 -m dev.chaos --help`, docs/evidence/chaos.md. Needs what `dev.slurm` and `dev.servers` need, and the project
installed.
"""
