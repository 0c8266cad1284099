"""Trainer cores: functions from a `RunSpec` to metrics.

Guarantees of this package:

- A core knows no sweep, launcher or store: it takes a specification, a sink and resources (`Core` of
  `cppo_lab/core_records.py`).
- A run that was killed continues from its last checkpoint with the numbers of an unbroken run.
- Loss and collapse are the same for every core: a rule of `cppo_lab.maths`, and `schema.collapse_reason`.
- What the rest of the product knows of a core is in its record (`cppo_lab.core_records`), which imports no trainer.

Begin with `cppo_lab/core_records.py`. `mini/` trains small transformers in this process, `exact/` computes expected
returns, `verl/` runs verl's trainer. `loop.py` is of the embedded ones, `mini` and `exact`; `rule_loss.py` is of all
three. `cppo_lab.testing.CoreTests` checks a core; docs/extending.md says how a core is added.
"""

from cppo_lab.schema import collapse_reason as collapse_reason  # cores of other packages import it from here
