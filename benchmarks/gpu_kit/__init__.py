"""Measurements for one lent GPU machine: parity, logits, the embedded core, one FSDP2 update (docs/gpu_kit.md)."""
