"""The exact core: tabular policies on a small Markov process, where expected returns are computed.

Guarantees of this package:

- Expected rewards, the surrogate, its error and the bounds are computed by dynamic programming, in float64; only the
  training batch is sampled (`process.py`, `trainer.py`).
- Updates use the rules and the loss of the other cores (`cppo_lab.cores.rule_loss`).
- Runs that are trained together get the numbers that each gets alone, checkpoints included (`trainer.py`).
- It runs on the CPU, without a download; its results say nothing for or against the paper's scores.

Begin with `process.py`, then `trainer.py`. docs/evidence/exact.md has the definitions.
"""

from cppo_lab.core_records import CoreRecord

EXACT = CoreRecord(
    name="exact",
    title="the exact core",
    note="Runs of the **exact core**: policies of tables on a small Markov process, trained with the same rules on "
    "sampled responses. Expected rewards, the surrogate, its error and the bounds are computed, not estimated; "
    "validation scores are expectations. They are no evidence for or against the paper's scores.",
    settings="cppo_lab.spec.run:ExactRun",
    train="cppo_lab.cores.exact.trainer:train",
    train_together="cppo_lab.cores.exact.trainer:train_together",
    most_together=40,
    datasets="cppo_lab.cores.base:exact_datasets",
    own_models=("exact_early", "exact_late", "exact_long", "exact_no_fork", "exact_wide"),
    seed_fixes_start=True,
    doctor="cppo_lab.cores.base:EMBEDDED",
    miniature="a policy of tables on a small Markov process",
    score="expected score",
    computes_error=True,
    validated_points=True,
    no_preflight="its runs take seconds on a CPU",
)
