"""Experiments that a user has deleted, or that nothing has been recorded in."""

from pathlib import Path

import pytest

from cppo_lab.errors import UserError
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import ensure_experiment, open_client
from cppo_lab.tracking.read import attempts_at


def test_deleted_experiment_is_named(workspace: Path) -> None:
    uri = tracking_uri()
    client = open_client(uri)
    client.delete_experiment(ensure_experiment(client, uri, "cppo-mini"))
    with pytest.raises(UserError, match="'cppo-mini' was deleted"):
        ensure_experiment(client, uri, "cppo-mini")


def test_attempts_of_an_empty_store(workspace: Path) -> None:
    assert attempts_at(open_client(tracking_uri()), "cppo-mini", "abc") == []
