"""Measurements for the first minutes on one H100, with nothing but torch, Triton and transformers (docs/gpu_kit.md)."""
