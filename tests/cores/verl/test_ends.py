"""The process beside verl's: how it takes over the trainer's record, and ends without one to start."""

import contextlib
import json
import os
import signal
import stat
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cppo_lab import schema
from cppo_lab.core_records import CHECKPOINTS, Resources
from cppo_lab.cores.verl import checkpoints, core
from cppo_lab.cores.verl.checkpoints import HandOver, score_name
from cppo_lab.cores.verl.checks import check_placement
from cppo_lab.errors import Interrupted
from cppo_lab.schema import Outcome
from cppo_lab.spec import VerlRun
from cppo_lab.sweep import launch
from cppo_lab.sweep.compose import Composed, compose
from tests.conftest import user_error
from tests.cores.test_mini import ListSink
from tests.cores.verl.conftest import steps_in
from tests.waiting import CEILING_SECONDS, until

COMPOSED = compose(["core=verl", "model=tiny_qwen3", "training.t_stop=8"])


def lent(folder: Path, composed: Composed = COMPOSED) -> Resources:
    return Resources(folder, folder, layout=composed.layout, paths=composed.paths)


def train(folder: Path, sink: ListSink) -> Outcome:
    return core.train(COMPOSED.run, sink, lent(folder))


def record(folder: Path, scores: list[float], extra: int = 0) -> None:
    """Validated every second step, a sealed checkpoint at each, and `extra` rows; killed before the word on its end."""
    for step in range(2 * len(scores) - 1 + extra):
        row = {}
        if step % 2 == 0:
            row[score_name(COMPOSED.run)] = scores[step // 2]
            path = checkpoints.checkpoint_folder(folder, step)
            (path / "actor").mkdir(parents=True)
            checkpoints.seal(path)
        checkpoints.append_row(folder, step, row)


@pytest.mark.parametrize(
    "scores, status, step, best",
    [([0.1, 0.2, 0.4, 0.3, 0.2], schema.DONE, 8, 4), ([0.5, 0.6, 0.1, 0.1], schema.COLLAPSED, 6, 2)],
)
def test_a_run_that_was_killed_at_its_very_end_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    scores: list[float], status: str, step: int, best: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(core, "own_ray", Mock(side_effect=AssertionError("verl was started")))
    record(tmp_path, scores)
    (tmp_path / "diagnostics").mkdir()
    (tmp_path / "diagnostics" / "positions.json").write_text('{"position": [1]}')
    sink = ListSink()
    outcome = train(tmp_path, sink)
    assert (outcome.status, outcome.step) == (status, step)
    assert bool(outcome.reason) == (status == schema.COLLAPSED)
    assert [number for number, _ in sink.numbers()] == list(range(step + 1))
    assert sink.artifacts == {"diagnostics/positions.json": {"position": [1]}}
    assert checkpoints.best_step(tmp_path) == best  # it had been killed before it was kept
    assert (tmp_path / CHECKPOINTS).exists()  # until the end is recorded, which is not the core's to do


@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_in_its_midst_is_handed_to_verl_where_its_checkpoint_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    damaged: bool,
) -> None:  # fmt: skip
    """Launched twice: the first attempt trains nothing, like one that dies while it starts Ray."""
    record(tmp_path, [0.1, 0.2, 0.4], extra=1)
    resumed, begun = 2 if damaged else 4, []
    if damaged:
        (checkpoints.checkpoint_folder(tmp_path, 4) / "sizes.json").write_text("")
    monkeypatch.setattr(core, "_train_on", lambda *given: begun.append(given[-1]) or Outcome(schema.DONE, 8))
    (tmp_path / checkpoints.REQUEST).touch()  # by an attempt that had to end before its step was saved
    for _ in range(2):
        sink, steps = ListSink(), list(range(resumed + 1))  # the others will be trained again
        train(tmp_path, sink)
        assert [number for number, _ in sink.numbers()] == steps
        assert steps_in(tmp_path) == steps
        assert [path.name for path in (tmp_path / CHECKPOINTS).iterdir()] == [f"global_step_{resumed}"]
        assert checkpoints.best_step(tmp_path) == resumed
        assert not checkpoints.take_request(tmp_path)
    assert begun == [resumed, resumed]
    said = "global_step_4 is ignored, training resumes from step 2: sizes.json"
    assert (said in capsys.readouterr().err) == damaged


def row_is_refused(folder: Path) -> None:
    """The trainer has come to its end; a row that the recorder refuses interrupts it at once all the same."""
    checkpoints.write_outcome(folder, Outcome(schema.DONE, 8))
    checkpoints.append_row(folder, 3, {})
    threading.Event().wait(CEILING_SECONDS)
    pytest.fail("the trainer went on")


def test_rows_are_handed_over_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "FOLLOW_SECONDS", 0.01)
    checkpoints.append_row(tmp_path, 0, {})  # of an earlier attempt
    following = partial(core._following, tmp_path, HandOver(lent(tmp_path), sink := ListSink()))
    with following() as failures:
        checkpoints.append_row(tmp_path, 1, {})
        until("the row is handed over", lambda: sink.rows)
        checkpoints.append_row(tmp_path, 2, {})
    assert (sink.rows, failures) == ([(1, {}), (2, {})], [])
    with pytest.raises(KeyboardInterrupt), following():
        raise KeyboardInterrupt  # of somebody


@pytest.mark.parametrize(
    "verl, error, said",
    [
        (Interrupted(signal.SIGUSR2), Interrupted, "terminated"),
        (Interrupted(signal.SIGTERM), Interrupted, "terminated"),
        (None, RuntimeError, "without reporting an outcome"),
        (row_is_refused, ValueError, "not in schema"),
    ],
)
def test_a_warned_trainer_saves_its_step_and_a_refused_row_or_no_outcome_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    verl: Any, error: type[BaseException], said: str,
) -> None:  # fmt: skip
    stand_ins = {
        "FOLLOW_SECONDS": 0.01, "planned_files": Mock(), "_ray_for": lambda *_: contextlib.nullcontext(),
        "_configuration": lambda *_: tmp_path, "_run": Mock(side_effect=verl),
    }  # fmt: skip
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(core, name, stand_in)
    monkeypatch.setattr(checkpoints, "await_step", saved := Mock())
    checkpoints.append_row(tmp_path, 0, {})
    resources, refusing = lent(tmp_path), Mock(**{"log.side_effect": ValueError("not in schema.METRICS")})
    with pytest.raises(error, match=said):
        core._train_on(COMPOSED.run, HandOver(resources, refusing), resources, None)
    assert saved.called == (getattr(verl, "number", None) == signal.SIGUSR2)


def test_the_environment_is_as_before_after_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the folder of its Ray is gone, with the token in it."""
    monkeypatch.setenv("RAY_ADDRESS", "somebody's")
    before = dict(os.environ)
    with core.own_ray(COMPOSED.layout) as ray_init:
        assert os.environ["RAY_AUTH_MODE"] == "token"
        place = Path(ray_init["_temp_dir"])
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert token.is_relative_to(place) and len(token.read_text()) == 64
        assert [stat.S_IMODE(path.stat().st_mode) for path in (token, token.parent)] == [0o600, 0o700]
        assert (secret := token.read_text()) not in json.dumps(ray_init)
        assert ray_init["include_dashboard"] is False and os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert dict(os.environ) == before
    assert not place.exists()
    with core.own_ray(COMPOSED.layout, memory_gb=64.0) as ray_init:
        assert Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text() != secret
        assert 0 < ray_init["object_store_memory"] < 64e9
    monkeypatch.setattr(core, "head", lambda *_: contextlib.nullcontext({"address": "its own"}))
    with core.own_ray(COMPOSED.layout, allocation=Mock()) as ray_init:
        assert ray_init["address"] == "its own"


def test_what_cannot_begin_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = compose(
        ["core=verl", "model=tiny_qwen3", "data.operations=9", "rollout.max_response_length=28"]
    ).run
    with user_error("the model of run .* was made for .*: choose one with shorter prompts"):
        core.evaluate(COMPOSED.run, longer, lent(tmp_path))
    two_nodes = compose(["core=verl", "model=qwen3_8b_base", "layout=two_nodes"])
    with user_error(
        "layout=two_nodes takes 2 nodes, and an evaluation has this machine: choose a layout with"
    ):
        core.evaluate(two_nodes.run, two_nodes.run, lent(tmp_path, two_nodes))
    planned = SimpleNamespace(spec=two_nodes.run, layout=two_nodes.layout)
    with user_error("takes 2 nodes, and launcher=local has one machine: choose launcher=slurm"):
        launch._require_one_machine([planned], two_nodes.launcher)
    monkeypatch.setattr(core.importlib.util, "find_spec", lambda _: None)
    with user_error("package 'verl' is not installed: pip install"):
        train(tmp_path, ListSink())


def test_more_ranks_than_a_prompt_has_responses_evaluate_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight, which share the run's minibatches of four prompts with four responses."""
    wide = compose(["core=verl", "model=tiny_qwen3", "layout.devices_per_node=8"])
    monkeypatch.setattr(core, "_ray_for", lambda *_: contextlib.nullcontext({}))
    monkeypatch.setattr(core, "export", Mock())
    monkeypatch.setattr(core, "_configuration", made := Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        core.evaluate(wide.run, wide.run, lent(tmp_path, wide))
    evaluated = VerlRun.model_validate(
        made.call_args.args[0].model_dump()
    )  # as the trainer's process reads it
    check_placement(evaluated, wide.layout)
    assert evaluated.batch.prompts == 1
