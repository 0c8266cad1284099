"""A real Slurm on one machine, for tests and for trying things: `python3 -m dev.slurm --help`, docs/slurm_dev.md.

Debian's own daemons run without systemd, on loopback only, with everything they write in one folder. Several slurmd
play several nodes; their GPUs are device files that lead nowhere. Only the standard library is needed.
"""
