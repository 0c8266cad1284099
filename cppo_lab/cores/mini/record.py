"""The record of the embedded core."""

from cppo_lab.core_records import CoreRecord

MINI = CoreRecord(
    name="mini",
    title="the embedded core",
    note="Runs of the **embedded core**: transformers of 100,000 to 400,000 parameters on modular arithmetic and "
    "long additions. Their results are **miniature**: they are no evidence for or against the paper's claims, and "
    "never share a table with its numbers.",
    settings="cppo_lab.spec.run:MiniRun",
    train="cppo_lab.cores.mini.trainer:train",
    datasets="cppo_lab.cores.mini.datasets:datasets",
    exporter="cppo_lab.cores.verl.export:export_embedded",  # the room that knows transformers
    doctor="cppo_lab.doctor.machine:MINI",
    miniature="a miniature model on a synthetic task",
    deviations=(5.0, 10.0),  # measured: 9 to 13 (docs/evidence/position_order.csv)
    no_preflight="its runs take minutes on a CPU",
)
