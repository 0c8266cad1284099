"""What is there already: each run's state from the tracking store and from the locks of living processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cppo_lab import schema, store
from cppo_lab.run import is_held
from cppo_lab.tracking.client import Attempt, attempts, folder_tag, mark_failed, open_client

MISSING = "missing"
DIED = "its process ended without a word (killed, out of memory, or the machine went down)"


@dataclass(frozen=True)
class State:
    """`state` is done, collapsed, running, failed or missing; `reason` says why a run failed or collapsed."""

    state: str
    reason: str = ""
    code_version: str = ""


def run_states(run_ids: Sequence[str], core: str, uri: str, runs: Path) -> dict[str, State]:
    """The state of every run. Writes nothing: a store that does not exist holds no run."""
    database = store.sqlite_file(uri)
    if database is not None and not database.is_file():
        return {run_id: State(MISSING) for run_id in run_ids}
    # Locks first: a run that ends between the two looks is then seen as running, not as dead.
    held = {run_id: is_held(runs / run_id) for run_id in run_ids}
    found = attempts(open_client(uri), schema.experiment_name(core), run_ids)
    return {run_id: _state(found[run_id], held[run_id]) for run_id in run_ids}


def _state(past: Sequence[Attempt], held: bool) -> State:
    for one in past:
        if one.status == "FINISHED":
            ended = schema.COLLAPSED if one.outcome == schema.COLLAPSED else schema.DONE
            return State(ended, one.reason, one.code_version)
    if held:
        return State(schema.RUNNING)
    if past:
        return State(schema.FAILED, past[0].reason or DIED, past[0].code_version)
    return State(MISSING)


def repair(run_ids: Sequence[str], core: str, uri: str, runs: Path) -> list[str]:
    """End the MLflow runs whose process is gone: nothing stays RUNNING for ever. Returns the runs repaired.

    Only attempts made from this `runs` folder are judged; another machine's are not ours to end.
    """
    client = open_client(uri)
    found = attempts(client, schema.experiment_name(core), run_ids)
    repaired = []
    for run_id, past in found.items():
        ours = folder_tag(runs / run_id)
        for one in past:
            if one.status != "RUNNING" or one.folder != ours or is_held(runs / run_id):
                continue
            # Nobody trains it now, so its status is final; the one read above may be older than its end.
            if client.get_run(one.mlflow_id).info.status == "RUNNING":
                mark_failed(client, one.mlflow_id, DIED)
                repaired.append(run_id)
    return repaired
