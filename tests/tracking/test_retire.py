"""A result and its replacement: which of them stays."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from cppo_lab import schema
from cppo_lab.tracking.upload import retire


@pytest.mark.parametrize(
    ("status", "gone"),
    [(schema.RUNNING, False), (schema.PARTIAL, False), (schema.DONE, True), (schema.COLLAPSED, True)],
)
def test_a_result_is_deleted_once_the_run_that_replaces_it_has_finished(status: str, gone: bool) -> None:
    tags = {schema.TAG_RUN_ID: "r", schema.TAG_REPLACES: "old", schema.TAG_STATUS: status}
    runs = {
        "new": SimpleNamespace(info=SimpleNamespace(experiment_id="1"), data=SimpleNamespace(tags=tags)),
        "old": SimpleNamespace(
            info=SimpleNamespace(lifecycle_stage="active", run_id="old"),
            data=SimpleNamespace(tags={schema.TAG_RUN_ID: "r"}),
        ),
    }
    client = Mock()
    client.get_run.side_effect = runs.__getitem__
    client.search_runs.return_value = []
    retire(client, "new")
    assert [call.args for call in client.delete_run.call_args_list] == [("old",)] * gone
    assert client.set_tag.called == client.delete_tag.called == gone
