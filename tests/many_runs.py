"""A working folder with thousands of runs in minutes: for the benchmark and the test of how commands grow.

A few runs of every kind are recorded and shipped by the product. All others are copies of them: rows copied within the
store's tables, folders written with the product's own functions, each with the configuration, tags and names that the
run would have. Of their metrics the tables hold the last points and the step times, `history.npz` the whole.
"""

import itertools
import json
import math
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.pool import NullPool

from cppo_lab import schema
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.rules import colours
from cppo_lab.runs.folder import announce, read_status, write_status
from cppo_lab.runs.machine import environment
from cppo_lab.runs.recorder import Recorder, begin_line
from cppo_lab.runs.spool import Begin, files, open_spool, read_lines
from cppo_lab.runs.tags import names, resolved_yaml
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.cost import METRIC
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.launch import sweep_tags
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking.address import absolute_uri
from cppo_lab.tracking.client import ensure_experiment, open_client
from cppo_lab.tracking.history import HISTORY
from cppo_lab.tracking.parents import ensure_parent
from cppo_lab.tracking.sent import Shipped, ShippedRecord, save_shipped
from cppo_lab.tracking.upload import ship

STEPS, EVERY = 20, 5  # training steps of a run, and between its validations
ORIGINALS = 4  # runs of each rule that are recorded; the others are their copies
ARRAY = 1000  # tasks of one submission to Slurm
UNSENT = 10  # runs that the store knows nothing of
_TOPS = {"grpo": 0.5, "dppo": 0.65, "cispo": 0.6, "cppo": 0.8}
_BENCHMARKS = ("chain_short", "chain", "chain_long")
# How the last of a hundred runs stand; all others are done.
_KINDS = {97: schema.FAILED, 98: schema.PARTIAL, 99: schema.QUEUED}


@dataclass(frozen=True)
class Original:
    """A run that was recorded and shipped: the first line of its spool, the other lines, its MLflow id and folder."""

    begin: Begin
    rest: bytes
    mlflow_id: str
    folder: Path


def make_runs(folder: Path, plan: Plan, uri: str) -> list[str]:
    """All runs of `plan` in `folder/runs` and in the store at `uri`, and what `squeue` says of those that wait.

    Of every hundred, one failed, one was interrupted and one waits in Slurm's queue; the last UNSENT of the rest are
    on file alone.
    """
    runs, uri = folder / "runs", absolute_uri(uri)
    runs.mkdir()
    client = open_client(uri)
    experiment = ensure_experiment(client, uri, schema.experiment_name(plan.core))
    parent, here = ensure_parent(client, uri, experiment, plan.name), environment()
    drawn = colours(tuple(dict.fromkeys(run.variant for run in plan.runs)))
    kinds = [_KINDS.get(number % 100, schema.DONE) for number in range(len(plan.runs))]
    finished = [number for number, kind in enumerate(kinds) if kind == schema.DONE]
    unsent = set(finished[len(finished) - min(UNSENT, len(finished) // 10) :])
    originals: dict[tuple[str, str], list[Original]] = {}
    copies: list[tuple[PlannedRun, Original, Begin]] = []
    turn = itertools.count()
    for number, (run, kind) in enumerate(zip(plan.runs, kinds, strict=True)):
        if kind == schema.QUEUED:
            announce(runs / run.run_id, names(run.spec))
            continue
        nested = {schema.TAG_PARENT: parent, schema.TAG_COLOUR: drawn[run.variant]}
        tags = {**here.tags, **sweep_tags(plan, run), **nested, schema.TAG_CODE_VERSION: "made"}
        known = originals.setdefault((run.spec.rule.name, kind), [])
        if number in unsent or len(known) < ORIGINALS:
            record(runs / run.run_id, run, kind, tags)
            if number not in unsent:
                ship(runs / run.run_id, uri, client)
                known.append(_original(runs / run.run_id))
        else:
            original = known[next(turn) % ORIGINALS]
            copies.append((run, original, _copy_folder(runs / run.run_id, run.spec, original, tags, uri)))
    _copy_rows(uri, copies)
    return _submitted(runs, [run.run_id for run in plan.runs], kinds)


def record(folder: Path, run: PlannedRun, kind: str, tags: dict[str, str]) -> None:
    """What a trainer leaves in the folder of a run that ends as `kind`."""
    folder.mkdir()
    (folder / "lock").touch()
    recorder = Recorder(run.spec, tags, folder, datasets=_datasets(), yaml=resolved_yaml(run.spec))
    recorder.begin(None)
    last = STEPS if kind == schema.DONE else STEPS // 2
    for step in range(last + 1):
        recorder.log(step, dict(_metrics(run.spec, step)))
    if kind == schema.FAILED:
        recorder.fail("RuntimeError: no memory left", "Traceback: made up\n")
    elif kind == schema.PARTIAL:
        recorder.interrupt("terminated by SIGTERM")
    else:
        recorder.finish(schema.Outcome(schema.DONE, last))


def _datasets() -> Sequence[schema.Dataset]:
    return [schema.Dataset("chain", "0" * 8, "made", "CODE", "TRAINING", {"problems": 64})]


def _metrics(spec: RunSpec, step: int) -> Iterator[tuple[str, float]]:
    """One step as the embedded core logs it: validations now and then, and everything that the schema knows."""
    top = _TOPS[spec.rule.name] + 0.02 * (spec.seed % ORIGINALS)
    value = top * (1 - math.exp(-step / 6))
    if step % EVERY == 0:
        yield schema.validation_metric(schema.MEAN, spec.validation.samples), value
        for shift, name in enumerate(_BENCHMARKS, start=-1):
            yield schema.validation_metric(name, spec.validation.samples), value + 0.02 * shift
    if step:
        for place, metric in enumerate(schema.METRICS):
            if not metric.name.startswith("search/"):
                yield metric.name, value + place + 0.1


def _original(folder: Path) -> Original:
    [path] = files(folder)
    begin, end = next(read_lines(path))
    assert isinstance(begin, Begin)
    [state] = json.loads((folder / "spool" / "shipped.json").read_bytes()).values()
    return Original(begin, path.read_bytes()[end:], state["records"][begin.record]["mlflow_id"], folder)


def _copy_folder(folder: Path, spec: RunSpec, original: Original, tags: dict[str, str], uri: str) -> Begin:
    """The run's folder, as shipped in whole; its first line."""
    folder.mkdir()
    (folder / "lock").touch()
    line = begin_line(spec, tags, folder, secrets.token_hex(16))
    line = replace(line, time_ms=original.begin.time_ms, datasets=original.begin.datasets)
    (folder / "config.json").write_text(spec.model_dump_json(indent=2) + "\n", encoding="utf-8")
    os.link(original.folder / "requirements.txt", folder / "requirements.txt")
    told = read_status(original.folder)
    write_status(folder, {**told, **names(spec), "run_id": spec.run_id, "record": line.record})
    spool = open_spool(folder)
    spool.add(line)
    spool.close()
    with spool.path.open("ab") as file:
        file.write(original.rest.replace(original.begin.record.encode(), line.record.encode()))
    record = ShippedRecord(_mlflow_id(line))
    save_shipped(folder, uri, Shipped({spool.path.name: spool.path.stat().st_size}, {line.record: record}))
    return line


def _mlflow_id(line: Begin) -> str:
    return line.record  # both are 32 random hexadecimal digits


def _copy_rows(uri: str, copies: Sequence[tuple[PlannedRun, Original, Begin]]) -> None:
    """The rows of the originals once more for each of their copies, then what is the copies' own."""
    if not copies:
        return
    engine = create_engine(uri, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TEMPORARY TABLE copies (old varchar(32), new varchar(32), name varchar(250), at int)"
            )
        )
        rows = [
            {"old": original.mlflow_id, "new": _mlflow_id(line), "name": line.name, "at": at}
            for at, (_, original, line) in enumerate(copies)
        ]
        connection.execute(text("INSERT INTO copies VALUES (:old, :new, :name, :at)"), rows)
        _copy_tables(connection)
        _own_rows(connection, "tags", copies)
        _own_rows(connection, "params", copies)
        found = connection.execute(text("SELECT run_uuid, artifact_uri FROM runs"))
        places = {str(run): Path(str(uri).removeprefix("file://")) for run, uri in found}
    engine.dispose()
    for _, original, line in copies:
        _link_artifacts(places[original.mlflow_id], places[_mlflow_id(line)])
    with create_engine(uri, poolclass=NullPool).begin() as connection:
        connection.execute(text("ANALYZE"))


def _copy_tables(connection: Connection) -> None:
    plan = {
        "runs": {
            "run_uuid": "c.new",
            "name": "c.name",
            "artifact_uri": "replace(t.artifact_uri, c.old, c.new)",
            "start_time": "t.start_time + c.at",
        },
        "tags": {"run_uuid": "c.new"},
        "params": {"run_uuid": "c.new"},
        "latest_metrics": {"run_uuid": "c.new"},
        "metrics": {"run_uuid": "c.new"},
        "inputs": {
            "input_uuid": "substr(c.new, 1, 16) || substr(t.input_uuid, 1, 16)",
            "destination_id": "c.new",
        },
    }
    for table, own in plan.items():
        columns = [str(column["name"]) for column in inspect(connection).get_columns(table)]
        key = "destination_id" if table == "inputs" else "run_uuid"
        only = f" WHERE t.key = '{METRIC}'" if table == "metrics" else ""
        connection.execute(
            text(
                f"INSERT INTO {table} ({', '.join(columns)}) "
                f"SELECT {', '.join(own.get(column, f't.{column}') for column in columns)} "
                f"FROM copies c JOIN {table} t ON t.{key} = c.old{only}"
            )
        )


def _own_rows(
    connection: Connection, table: str, copies: Sequence[tuple[PlannedRun, Original, Begin]]
) -> None:
    """Tags or parameters in which a copy differs from its original."""
    changed = []
    for _, original, line in copies:
        old, new = getattr(original.begin, table), getattr(line, table)
        assert old.keys() == new.keys(), old.keys() ^ new.keys()
        own = {key: value for key, value in new.items() if value != old[key]}
        if table == "tags":
            own |= {schema.TAG_RECORD: line.record, "mlflow.runName": line.name}
        changed += [{"run": _mlflow_id(line), "key": key, "value": value} for key, value in own.items()]
    connection.execute(
        text(f"UPDATE {table} SET value = :value WHERE run_uuid = :run AND key = :key"), changed
    )


def _link_artifacts(old: Path, new: Path) -> None:
    """The same files in another place; only the configuration is another one, which nobody reads here."""
    new.mkdir(parents=True)
    os.link(old / HISTORY, new / HISTORY)
    os.link(old / "config.json", new / "config.json")


def _submitted(runs: Path, run_ids: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """The record of all runs having been submitted as arrays, and the queue's lines on those that wait."""
    waiting = []
    with Ledger(runs) as ledger:
        for first in range(0, len(run_ids), ARRAY):
            some = run_ids[first : first + ARRAY]
            token = ledger.claim(some)
            ledger.submitted(token, 1000 + first)
            tasks = {task.name: task for task in ledger.open_tasks(token)}
            ledger.end(
                [
                    tasks[run_id]
                    for run_id, kind in zip(some, kinds[first:], strict=False)
                    if kind != schema.QUEUED
                ],
                "COMPLETED",
            )
            waiting += [
                f"{tasks[run_id].job}|{os.getuid()}|PENDING|Resources|{token}|cppo"
                for run_id, kind in zip(some, kinds[first:], strict=False)
                if kind == schema.QUEUED
            ]
    return waiting
