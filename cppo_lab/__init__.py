"""CPPO Lab: experiment management and ablations for CPPO (arXiv 2606.10968)."""

__version__ = "0.1.0"
