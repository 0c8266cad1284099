"""The write side of tracking: what a run logs goes to a local file first, then to MLflow in batches.

Training does not die of a store that is away: points wait in memory (each try costs at most some seconds, see
`client.SERVER_PATIENCE`), and they stay in `metrics.jsonl` in the run's folder whatever happens.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.client import (
    ensure_experiment,
    ensure_folder_tag,
    mark_failed,
    mark_interrupted,
    open_client,
)
from cppo_lab.tracking.naming import flatten, names, run_tags
from cppo_lab.tracking.run_folder import read_status, seconds_trained, write_status
from cppo_lab.tracking.spool import Row, Spool

SHIP_SECONDS = 2.0  # how often points go to the store
BATCH = 1000  # MLflow's limit of metrics per request
LAST_CHANCE_SECONDS = 60.0  # how long the end of a run waits for a store that is away
_STORE_FAULTS = (MlflowException, SQLAlchemyError, OSError)


class Recorder:
    """One attempt at one run. Create it, `begin`, `log` every step, then `finish`, `fail` or `interrupt`.

    `continues` is the MLflow run of an earlier attempt from the same folder: this one goes on in it. `gpus` is how
    many it takes on all its machines.
    """

    def __init__(
        self,
        spec: RunSpec,
        tags: Mapping[str, str],
        uri: str,
        folder: Path,
        continues: str | None = None,
        gpus: int = 0,
    ) -> None:
        self.spec, self.folder = spec, folder
        self._gpus, self._started, self._before = gpus, time.time(), seconds_trained(read_status(folder))
        self._first: tuple[int, float] | None = None  # step that this attempt logged first, and when
        self.client = open_client(uri)
        self._experiment = ensure_experiment(self.client, uri, schema.experiment_name(spec.core))
        self._tags = {**run_tags(spec), schema.TAG_FOLDER: ensure_folder_tag(folder), **tags}
        self._recorded = False  # nothing that happens after the end is recorded can change it
        self._artifacts: list[Path] = []
        self._start(continues)

    def begin(self, step: int | None) -> None:
        """Training goes on behind `step`; None: it starts. What an earlier attempt has recorded then stands alone."""
        if step is not None or not self._steps:
            return
        self._spool.close()
        reason = "training began anew: there was no checkpoint to continue from"
        mark_interrupted(self.client, self.mlflow_id, reason, max(self._steps))
        self._start(None)

    def _start(self, continues: str | None) -> None:
        """Open the MLflow run and the spool."""
        self._shipped_at = time.monotonic()
        self._score: float | None = None
        if continues is None:
            name = f"{self.spec.rule.name} {self.spec.model.name} s{self.spec.seed}"
            run = self.client.create_run(self._experiment, tags=self._tags, run_name=name)
            self.mlflow_id: str = run.info.run_id
        else:
            self.mlflow_id = continues
            self._reopen()
        try:
            self._describe(self.spec)
            self._spool = Spool(self.folder, keep=continues is not None)
            # An earlier attempt may have died before it could send them. The store knows those it has.
            self._waiting: list[Metric] = [point for row in self._spool.earlier for point in _points(row)]
            self._steps = {row.step for row in self._spool.earlier}
            self._status(schema.RUNNING, max(self._steps, default=0))
        except _STORE_FAULTS as error:
            with contextlib.suppress(*_STORE_FAULTS):
                mark_failed(self.client, self.mlflow_id, f"{type(error).__name__}: {error}")
            raise

    def _reopen(self) -> None:
        """Let the run of an earlier attempt go on."""
        self.client.update_run(self.mlflow_id, status="RUNNING")
        for key, value in self._tags.items():
            self.client.set_tag(self.mlflow_id, key, value)
        of_its_end = {schema.TAG_REASON, schema.TAG_STEP}
        for key in of_its_end & self.client.get_run(self.mlflow_id).data.tags.keys():
            self.client.delete_tag(self.mlflow_id, key)

    def _describe(self, spec: RunSpec) -> None:
        """The configuration, as parameters and as an artifact."""
        params = [Param(key, value) for key, value in flatten(spec.model_dump(mode="json")).items()]
        self.client.log_batch(self.mlflow_id, params=params)
        config = self.folder / "config.json"
        config.write_text(spec.model_dump_json(indent=2) + "\n", encoding="utf-8")
        self.client.log_artifact(self.mlflow_id, str(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record `metrics` of training step `step`. A step that an earlier attempt has recorded stands as it is.

        Raises ValueError for a metric name that the schema does not have.
        """
        for name in metrics:
            if not schema.is_known_metric(name):
                raise ValueError(f"metric {name!r} is not in schema.METRICS: add it there")
        self._first = self._first or (step, time.time())
        if step not in self._steps:
            row = Row(step, int(time.time() * 1000), dict(metrics))
            self._spool.add(row)
            self._waiting += _points(row)
            self._steps.add(step)
        self._score = metrics.get(
            schema.validation_metric(schema.MEAN, self.spec.validation.samples), self._score
        )
        if time.monotonic() - self._shipped_at >= SHIP_SECONDS:
            self._ship()
            self._status(schema.RUNNING, step)

    def artifact(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep `values` as the JSON file `name` (a relative path) of the run, here and in the store.

        `finish` sends it to the store.
        """
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
        if path not in self._artifacts:
            self._artifacts.append(path)

    def finish(self, outcome: schema.Outcome) -> None:
        """Training ended as `outcome` says: at its last step, or in a collapse.

        Raises UserError if the store stayed away; the points are in the run's folder then.
        """
        with contextlib.suppress(OSError):  # from here to the end the store knows more than the folder
            self._status(schema.RUNNING, outcome.step, finishing=True)
        self._drain()
        self._spool.close()
        for path in self._artifacts:
            place = path.parent.relative_to(self.folder).as_posix()
            self.client.log_artifact(self.mlflow_id, str(path), None if place == "." else place)
        self.client.set_tag(self.mlflow_id, schema.TAG_STATUS, outcome.status)
        if outcome.reason:
            self.client.set_tag(self.mlflow_id, schema.TAG_REASON, outcome.reason[:500])
        self.client.set_terminated(self.mlflow_id, "FINISHED")
        self._recorded = True
        with contextlib.suppress(OSError):  # the store has it; a full disk makes no failed run of it
            self._status(outcome.status, outcome.step, outcome.reason)

    @property
    def step(self) -> int | None:
        """The last step that is recorded; None if there is none."""
        return max(self._steps, default=None)

    def interrupt(self, cause: str) -> None:
        """The run was ended from outside, by what `cause` says: the next attempt goes on with it."""
        if self._recorded:
            return
        reached = "before its first step" if self.step is None else f"at step {self.step}"
        reason = f"interrupted: {cause} {reached}"
        self._end(schema.PARTIAL, reason)
        with contextlib.suppress(*_STORE_FAULTS):
            mark_interrupted(self.client, self.mlflow_id, reason, self.step)

    def fail(self, reason: str, traceback: str) -> None:
        """The run ended by an error of its own; `reason` is one line, `traceback` becomes an artifact."""
        if self._recorded:
            return
        self._end(schema.FAILED, reason)
        report = self.folder / "traceback.txt"
        with contextlib.suppress(*_STORE_FAULTS):
            report.write_text(traceback, encoding="utf-8")
            self.client.log_artifact(self.mlflow_id, str(report))
        with contextlib.suppress(*_STORE_FAULTS):
            mark_failed(self.client, self.mlflow_id, reason, self.step)

    def _end(self, status: str, reason: str) -> None:
        """Bring to safety what was measured, and say on file how the run ended."""
        # Each step by itself: what broke the run (a full disk, a store that went away) may break some of them,
        # and must not hide the reason.
        with contextlib.suppress(OSError):
            self._spool.close()
        with contextlib.suppress(OSError):
            self._status(status, self.step, reason)
        with contextlib.suppress(UserError):
            self._drain()

    def _ship(self) -> bool:
        """Send what waits; False if the store did not take it (it is tried again later)."""
        self._shipped_at = time.monotonic()
        try:
            while self._waiting:
                self.client.log_batch(self.mlflow_id, metrics=self._waiting[:BATCH])
                del self._waiting[:BATCH]
        except _STORE_FAULTS as error:
            print(f"tracking store did not answer, will try again: {error}", file=sys.stderr, flush=True)
            return False
        return True

    def _drain(self) -> None:
        """Send all that waits, with patience."""
        deadline = time.monotonic() + LAST_CHANCE_SECONDS
        while not self._ship():
            if time.monotonic() > deadline:
                raise UserError(
                    f"tracking store stayed away for {LAST_CHANCE_SECONDS:.0f} s; the metrics of this run are in "
                    f"{self.folder / 'metrics.jsonl'}: bring the store back and launch again"
                )
            time.sleep(1.0)

    def _status(self, status: str, step: int | None, reason: str = "", finishing: bool = False) -> None:
        """What launchers and `cppo status` show of this run, written as a whole: a reader never sees half of it.

        `seconds` are those of all attempts, `started` and `first_step` speak of this one.
        """
        now = time.time()
        first_step, first_time = self._first or (None, None)
        write_status(
            self.folder,
            {
                "status": status,
                "step": step,
                "score": self._score,
                "reason": reason,
                **names(self.spec),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "job": _slurm_job(),
                "gpus": self._gpus,
                "started": self._started,
                "updated": now,
                "seconds": self._before + now - self._started,
                "first_step": first_step,
                "first_time": first_time,
                "finishing": finishing,
                "replaces": bool(self._tags.get(schema.TAG_REPLACES)),
                "mlflow_id": self.mlflow_id,
            },
        )


def _slurm_job() -> str:
    """The job that this process runs in, as Slurm's commands write it; empty outside Slurm."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


def _points(row: Row) -> list[Metric]:
    """A row as MLflow has it."""
    return [Metric(name, value, row.time_ms, row.step) for name, value in row.metrics.items()]
