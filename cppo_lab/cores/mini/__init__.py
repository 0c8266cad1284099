"""The embedded core: GRPO with any rule on a small transformer and arithmetic tasks, in one process.

Guarantees of this package:

- mu is the sampler's log-probability of each token, never recomputed by the training pass (`model.py`).
- A checkpoint has all that decides further numbers, and is replaced as a whole (`../checkpoint.py`).
- A model's warm start is trained once for all runs that begin with it, and kept in the folder of all runs
  (`warm_start.py`).
- Groups without variance in their rewards, which have no learning signal, take part in no update (`trainer.py`).

Begin with `trainer.py` (a step and its minibatches) and `model.py` (the transformer, sampling, and a
rollout policy that differs as rollout engines do). `tasks.py`: problems and their grading.
"""

from cppo_lab.core_records import CoreRecord

MINI = CoreRecord(
    name="mini",
    title="the embedded core",
    note="Runs of the **embedded core**: transformers of 100,000 to 400,000 parameters on modular arithmetic and "
    "long additions. Their results are **miniature**: they are no evidence for or against the paper's claims, and "
    "never share a table with its numbers.",
    settings="cppo_lab.spec.run:MiniRun",
    train="cppo_lab.cores.mini.trainer:train",
    datasets="cppo_lab.cores.base:mini_datasets",
    exporter="cppo_lab.cores.verl.export:export_embedded",  # the room that knows transformers
    evaluator="cppo_lab.cores.mini.trainer:evaluate",
    doctor="cppo_lab.cores.base:EMBEDDED",
    miniature="a miniature model on a synthetic task",
    deviations=(5.0, 10.0),  # measured: 9 to 13 (docs/evidence/position_order.csv)
    no_preflight="its runs take minutes on a CPU",
)
