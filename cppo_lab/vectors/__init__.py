"""`cppo check-vectors`: an implementation's golden vectors against our formulas.

Guarantees of this package:

- It reads a file in the format of tests/oracles/vectors.npz and trusts nothing in it: pickled objects are refused, and
  an unreadable file is one `UserError` (`archive.py`).
- Every array is recomputed from the file's own inputs, in float64 and in float32 (`recompute.py`, `parts.py`).
- Masks must agree exactly, everything else within a stated tolerance (`check.py`: `TOLERANCE`).
- An array that we do not know is listed as unknown, not as a mismatch.

Begin with `check.py`. `methods.py` maps names in a file to rules; `theory.py` recomputes the bounds.
"""
