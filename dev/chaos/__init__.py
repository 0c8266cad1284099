"""The chaos run: a sweep on a Slurm whose every part is killed on a schedule, against the same sweep left in peace.

`python3 -m dev.chaos --help`, docs/chaos.md. Needs what `dev.slurm` and `dev.servers` need, and the project installed.
"""
