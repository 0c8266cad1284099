"""Hypotheses of a sweep, registered with the sweep's run in MLflow before the runs that test them.

A registration is one JSON artifact `hypotheses/<digest>.json` and an entry of the tag TAG_HYPOTHESES. A changed file is
registered beside the earlier ones, which stay.
"""

import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import ViewType

from cppo_lab import schema
from cppo_lab.runs.machine import code_version
from cppo_lab.store.client import STORE_FAULTS
from cppo_lab.store.exclusive import exclusive
from cppo_lab.store.listing import search_runs

FOLDER = "hypotheses"


@dataclass(frozen=True)
class Registration:
    """The digest of what was registered, when (milliseconds since the epoch), the digest of the settings of the sweep's
    runs at that time, the version of the code, which is that of the analysis, and how it compares runs: by `seed` or
    `none` ("": registered by a version that did not record these). `parent`: the sweep's run.
    """

    digest: str
    time_ms: int
    settings: str = ""
    code: str = ""
    pairing: str = ""
    parent: str = ""

    def covers(self, digest: str, settings: str) -> bool:
        """Whether it is of this statement, with these settings as far as it recorded them."""
        return self.digest == digest and self.settings in ("", settings)


def register(
    client: MlflowClient, uri: str, parent: str, statement: tuple[str, str], settings: str, pairing: str
) -> None:
    """Register hypotheses with the sweep's run, unless they are registered already.

    `statement`: their JSON text and its digest. `settings`: the digest of the settings of the sweep's runs.
    `pairing`: how they are compared, `seed` or `none`.
    """
    text, digest = statement
    with exclusive(uri):
        known = parse_registrations(client.get_run(parent).data.tags.get(schema.TAG_HYPOTHESES, ""))
        if any(one.covers(digest, settings) for one in known):
            return
        client.log_text(parent, text + "\n", _file(digest))
        added = Registration(digest, time.time_ns() // 10**6, settings, code_version(), pairing)
        entries = [[one.digest, one.time_ms, one.settings, one.code, one.pairing] for one in (*known, added)]
        client.set_tag(parent, schema.TAG_HYPOTHESES, json.dumps(entries))


def parse_registrations(text: str) -> tuple[Registration, ...]:
    """The entries of the tag, the oldest first. A tag of another format counts as none."""
    try:
        found = tuple(Registration(*entry[:5]) for entry in json.loads(text or "[]"))
    except (ValueError, TypeError):
        return ()
    if not all(
        type(one.time_ms) is int
        and all(isinstance(text, str) for text in (one.digest, one.settings, one.code, one.pairing))
        for one in found
    ):
        return ()
    return _in_order(found)


def find_registrations(client: MlflowClient, experiment: str, sweep: str) -> tuple[Registration, ...]:
    """What is registered for a sweep of an experiment, the oldest first; nothing if there is no such sweep."""
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return ()
    condition = f"tags.`{schema.TAG_SWEEP_PARENT}` = '{sweep}'"
    return _in_order(
        replace(one, parent=run.info.run_id)
        for run in client.search_runs([found.experiment_id], condition)
        for one in parse_registrations(run.data.tags.get(schema.TAG_HYPOTHESES, ""))
    )


def deleted_starts(client: MlflowClient, experiment: str) -> dict[str, int]:
    """Run id -> when the first of its deleted runs in an experiment began, in milliseconds since the epoch.

    Results that `--replace` has replaced are among them. What `mlflow gc` has removed is not.
    """
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return {}
    starts: dict[str, int] = {}
    condition = f"tags.`{schema.TAG_RUN_ID}` LIKE '%'"
    for run in search_runs(client, found.experiment_id, condition, view=ViewType.DELETED_ONLY):
        starts.setdefault(run.data.tags[schema.TAG_RUN_ID], run.info.start_time)  # the oldest comes first
    return starts


def read_statement(client: MlflowClient, one: Registration) -> str | None:
    """The JSON text that was registered; None if the store does not have it or does not answer."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return Path(client.download_artifacts(one.parent, _file(one.digest), folder)).read_text()
        except (*STORE_FAULTS, ValueError):
            return None


def _file(digest: str) -> str:
    return f"{FOLDER}/{digest}.json"


def _in_order(found: Iterable[Registration]) -> tuple[Registration, ...]:
    return tuple(sorted(found, key=lambda one: one.time_ms))
