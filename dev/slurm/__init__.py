"""A real Slurm on one machine, for tests and for trying things: `python3 -m dev.slurm --help`, docs/slurm_dev.md.

Debian's daemons run without systemd, on loopback only, with all their files in one folder. Several slurmd processes
simulate several nodes; their GPUs are dummy device files. Only the standard library is needed.
"""
