"""The verl core: our rules inside verl's trainer.

Guarantees of this package:

- Every part of verl that we use is in the contract of `check_api.py`, which says where an installed verl differs.
- The settings that decide a run's numbers come from its `RunSpec`; a layout cannot change them (`config.py`,
  `checks.py`). A key that verl does not have is an error before the start.
- Ray belongs to this run and ends with it. On one machine it listens on loopback only (`cluster.py` states the limits).
- A killed run goes on from its last whole checkpoint, and its record is cut there (`checkpoints.py`).

Begin with `core.py` (a run), `trainer.py` (verl's, extended), `loss.py` (our loss), then `rollout/` (mu and its
Top-K). Ray and verl are imported late: they read the environment. docs/verl.md is for users.
"""

from cppo_lab.core_records import CoreRecord

VERL = CoreRecord(
    name="verl",
    title="verl's trainer",
    note="Runs through **verl's trainer**, at the scale of their model. The tiny models among them "
    "(`tiny_qwen3`) are for testing; their scores mean nothing.",
    settings="cppo_lab.spec.run:VerlRun",
    train="cppo_lab.cores.verl.core:train",
    datasets="cppo_lab.cores.verl.files:datasets",
    evaluator="cppo_lab.cores.verl.core:evaluate",
    exporter="cppo_lab.cores.verl.export:export",
    worker_node="cppo_lab.cores.verl.cluster:run_worker_node",
    check_placement="cppo_lab.cores.verl.checks:check_placement",
    estimate="cppo_lab.spec.job:estimate_on_gpus",
    doctor="cppo_lab.cores.verl.checks:VERL",
    trainer_config="cppo_lab.cores.verl.config:plain_config",
    uses_layout=True,
    fresh_process=True,
    published_models=True,
    preflight=True,
    stand_ins="cppo_lab.cores.verl.hf_models:make_stand_ins",
    extra="verl",
)
