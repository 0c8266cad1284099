"""A run to be exported: its configuration, and the records of its training."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.files import names_below, open_below
from cppo_lab.runs.folder import CONFIG, read_config
from cppo_lab.runs.spool import FOLDER, newest_record
from cppo_lab.runs.tags import run_name, variants_in
from cppo_lab.spec import RunSpec
from cppo_lab.spec.parse import parse_run


@dataclass(frozen=True)
class Subject:
    """A run as recorded in its folder, without the tracking store.

    `tags` are those of its newest record, `metrics` the recorded ones by training step, `ended` the end of that record
    in ms since the epoch (None: it has not ended). `status` is one of schema.STATUSES, or empty.
    """

    spec: RunSpec
    tags: Mapping[str, str]
    metrics: Mapping[int, Mapping[str, float]]
    status: str = ""
    ended: int | None = None

    @property
    def sweeps(self) -> dict[str, str]:
        """The name of the run's variant in each sweep that its tags name."""
        return variants_in(self.tags)

    @property
    def name(self) -> str:
        """The run's name as in MLflow: variant, model and seed."""
        return run_name(self.spec, self.sweeps)

    @property
    def score_name(self) -> str:
        """The metric by which its checkpoints are compared."""
        return schema.validation_metric(schema.MEAN, self.spec.validation.samples)

    @property
    def scores(self) -> dict[int, float]:
        """The score of each recorded validation, by training step."""
        rows = sorted(self.metrics.items())
        return {step: row[self.score_name] for step, row in rows if self.score_name in row}


def read_subject(runs: Path, run_id: str) -> Subject:
    """Read the records in the folder of run `run_id` in `runs`.

    Raises UserError if it has no configuration of that run, or a link among the files that are read.
    """
    files = [(run_id, CONFIG), *((run_id, FOLDER, name) for name in names_below(runs, run_id, FOLDER))]
    for names in files:
        if names[-1].endswith((".json", ".jsonl")) and (file := open_below(runs, *names)) is not None:
            file.close()
    folder = runs / run_id
    config = read_config(folder / CONFIG)
    if config is None:
        raise UserError(
            f"run {run_id} has kept no checkpoint: {folder} has no {CONFIG}, so the run has not started, or its "
            "folder is damaged"
        )
    spec = parse_run(config, str(folder / CONFIG))
    if spec.run_id != run_id:
        raise UserError(
            f"{folder / CONFIG} is of run {spec.run_id}: the folder was copied, or the file was changed"
        )
    record = newest_record(folder)
    if record is None or record.begin.tags.get(schema.TAG_RUN_ID) != run_id:
        return Subject(spec, {}, {})
    metrics = {step: row.metrics for step, row in record.rows.items()}
    end = record.end
    if end is None:
        return Subject(spec, record.begin.tags, metrics)
    return Subject(spec, record.begin.tags, metrics, end.status, end.time_ms)
