"""The record of verl's trainer."""

from cppo_lab.core_records import CoreRecord

VERL = CoreRecord(
    name="verl",
    title="verl's trainer",
    note="Runs through **verl's own trainer**, at the scale of their model. The tiny models among them "
    "(`tiny_qwen3`) are for testing; their scores mean nothing.",
    settings="cppo_lab.spec.run:VerlRun",
    train="cppo_lab.cores.verl.core:train",
    datasets="cppo_lab.cores.verl.files:datasets",
    exporter="cppo_lab.cores.verl.export:export",
    worker_node="cppo_lab.cores.verl.cluster:run_worker_node",
    check_placement="cppo_lab.cores.verl.placement:check_placement",
    estimate="cppo_lab.estimate:estimate_on_gpus",
    doctor="cppo_lab.doctor.verl:VERL",
    trainer_config="cppo_lab.cores.verl.config:plain_config",
    uses_layout=True,
    fresh_process=True,
    published_models=True,
    preflight=True,
    stand_ins="cppo_lab.cores.verl.stand_in:make_stand_ins",
    extra="verl",
)
