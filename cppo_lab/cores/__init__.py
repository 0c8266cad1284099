"""Trainer cores: each turns one `RunSpec` into metrics, answers and checkpoints.

Guarantees of this package:

- `base.py` is the interface. A core knows no sweep, launcher or store: it calls `log(step, metrics)`.
- Metric names and their units are those of `cppo_lab.schema`, the same in every core.
- A killed run resumes from its checkpoint with the numbers of an uninterrupted one.
- `collapse.py` defines collapse for all cores. The rules are those of `cppo_lab.maths`, never copies.

`mini/` trains small transformers, `exact/` tabular policies with exact returns; they share `loop.py`, `rule_loss.py`
and `adamw.py`. `verl/` adapts verl. `cppo_lab.core_records` names the cores without importing them.
"""
