"""Checks of golden vectors, `cppo check-vectors FILE`: every array of a file against our value, in float64 and float32.

Part of the package, because users of other implementations check theirs against the same file. `archive.py` reads the
file without pickle, `recompute.py` computes our values, `check.py` compares them.
"""
