"""What a composed run says is what its trainer and its launcher have."""

from typing import Any

import pytest

from cppo_lab.cores.mini.tasks import make_task
from cppo_lab.launch import local
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.groups import groups
from tests.jobs import job, run_of


@pytest.mark.parametrize(
    "data", [name for name in groups()["data"] if not name.startswith(("dapo", "files", "fork"))]
)
def test_the_vocabulary_of_a_task_is_its_tokenizers(data: str) -> None:
    found = run_of(f"data={data}").data
    assert found.vocabulary == make_task(found).tokenizer.vocabulary


def test_a_run_has_the_time_that_its_resources_say(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compose(["resources.hours=1.5"])
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        "cppo_lab.launch.local.LocalExecutor.update_parameters", lambda _, **values: given.update(values)
    )
    monkeypatch.setattr("cppo_lab.launch.local.LocalExecutor.submit", lambda *_: None)
    local._submit(job(found.run, tmp_path, "", resources=found.resources))
    assert given == {"timeout_min": 90, "name": found.run.run_id}
    assert compose(["core=verl", "model=qwen3_30b_a3b_base"]).resources.hours == 168
    assert compose([]).resources.hours == 72
