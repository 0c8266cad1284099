"""What composing refuses although each config by itself is valid, and what it takes from the file of a rule."""

from typing import Any

import pytest

from cppo_lab.cores.mini.tasks.base import make_task
from cppo_lab.errors import UserError
from cppo_lab.launch import local
from cppo_lab.spec import TaskData
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.groups import groups
from tests.jobs import job

DENSE = ["core=verl", "model=qwen3_8b_base"]


@pytest.mark.parametrize("data", [name for name in groups()["data"] if not name.startswith(("dapo", "fork"))])
def test_the_vocabulary_of_a_task_is_its_tokenizers(data: str) -> None:
    found = compose([f"data={data}"]).run.data
    assert isinstance(found, TaskData)
    assert found.vocabulary == make_task(found).tokenizer.vocabulary


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [*DENSE, "layout.nodes=3"],
            "has 24 data-parallel ranks, which cannot share a minibatch of 32 prompts x 8",
        ),
        (
            ["core=verl", "model=qwen3_30b_a3b_base", "layout.megatron.tensor=3"],
            "= 3 must divide the 32 devices",
        ),
        ([*DENSE, "divergence.k=151937"], "set divergence.k=151936 or less"),
        (["divergence.k=17"], "set divergence.k=16 or less"),
        (["resources.partition='a b'"], "resources: partition='a b': must match"),
        (["resources.hours=0"], "resources: hours=0: must be in (0, 10000]"),
        (["rule=[cppo,dppo]"], "override 'rule=[cppo,dppo]': rule takes one option (valid: cispo"),
    ],
)
def test_what_cannot_be_had(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        compose(overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_has_the_time_that_its_resources_say(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compose(["resources.hours=1.5"])
    given: dict[str, Any] = {}
    monkeypatch.setattr(local.LocalExecutor, "update_parameters", lambda _, **values: given.update(values))
    monkeypatch.setattr(local.LocalExecutor, "submit", lambda *_: None)
    local._submit(job(found.run, tmp_path, "", resources=found.resources))
    assert given == {"timeout_min": 90, "name": found.run_id}
    assert compose(["core=verl", "model=qwen3_30b_a3b_base"]).resources.hours == 168
    assert compose([]).resources.hours == 72
