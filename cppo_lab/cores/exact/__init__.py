"""The exact core: tabular policies on a small Markov process, where expected returns are computed.

Guarantees of this package:

- Expected rewards, the surrogate, its error and the bounds are computed by dynamic programming, in float64; only the
  training batch is sampled (`process.py`, `trainer.py`).
- Updates use the rules and the loss of the other cores (`learner.py`, `cppo_lab.cores.rule_loss`).
- Runs that are trained together get the numbers that each gets alone, checkpoints included (`trainer.py`).
- It runs on the CPU, without a download; its results say nothing for or against the paper's scores.

Begin with `process.py`, then `learner.py` and `trainer.py`. docs/evidence/exact.md has the definitions.
"""
