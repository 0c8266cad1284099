"""Hypotheses of a sweep, registered with the sweep's run in MLflow before the runs that test them.

A registration is one JSON artifact `hypotheses/<digest>.json` and an entry of the tag TAG_HYPOTHESES. A changed file is
registered beside the earlier ones, which stay.
"""

import json
import time
from dataclasses import astuple, dataclass

from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.store.exclusive import exclusive

FOLDER = "hypotheses"


@dataclass(frozen=True)
class Registration:
    """The digest of what was registered, and when (milliseconds since the epoch)."""

    digest: str
    time_ms: int


def register(client: MlflowClient, uri: str, parent: str, statement: tuple[str, str]) -> None:
    """Register the JSON text and digest of hypotheses with the sweep's run, unless they are registered already."""
    text, digest = statement
    with exclusive(uri):
        known = parse_registrations(client.get_run(parent).data.tags.get(schema.TAG_HYPOTHESES, ""))
        if any(one.digest == digest for one in known):
            return
        client.log_text(parent, text + "\n", f"{FOLDER}/{digest}.json")
        entries = [astuple(one) for one in (*known, Registration(digest, time.time_ns() // 10**6))]
        client.set_tag(parent, schema.TAG_HYPOTHESES, json.dumps(entries))


def parse_registrations(text: str) -> tuple[Registration, ...]:
    """The entries of the tag, the oldest first. A tag of another format counts as none."""
    try:
        found = tuple(Registration(*entry) for entry in json.loads(text or "[]"))
    except (ValueError, TypeError):
        return ()
    if not all(isinstance(one.digest, str) and isinstance(one.time_ms, int) for one in found):
        return ()
    return tuple(sorted(found, key=lambda one: one.time_ms))


def find_registrations(client: MlflowClient, experiment: str, sweep: str) -> tuple[Registration, ...]:
    """What is registered for a sweep of an experiment; nothing if there is no such sweep."""
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return ()
    condition = f"tags.`{schema.TAG_SWEEP_PARENT}` = '{sweep}'"
    parents = client.search_runs([found.experiment_id], condition)
    entries = [parse_registrations(run.data.tags.get(schema.TAG_HYPOTHESES, "")) for run in parents]
    return max(entries, key=len, default=())
