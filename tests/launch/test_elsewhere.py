"""Runs that were finished elsewhere: what the store is asked, what is written here, and what a silent store holds."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.errors import StoreAway
from cppo_lab.runs.folder import announce, cancel, is_locked, read_status
from cppo_lab.runs.machine import code_version
from cppo_lab.runs.recorder import Recorder
from cppo_lab.sweep import launch as launch_module
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import FINISHED, TINY, TINY_LINE, Command
from tests.recorded import mlflow_client, mlflow_run, mlflow_runs, sent
from tests.waiting import CEILING_SECONDS

WORDS = f"quickstart {TINY_LINE} variant=grpo,cppo launcher=inline"
FOUR, EIGHT = f"{WORDS} seed=0,1", f"{WORDS} seed=0,1,2,3"
LOST = "http://127.0.0.1:9"
SCORE = schema.validation_metric(schema.MEAN)
# The folders of the eight runs, and the state that all commands see in each.
SITUATIONS = {
    "done": "done",
    "partial": "partial",
    "failed": "failed",
    "announced": "missing",
    "cancelled": "missing",
    "absent": "missing",
    "stub": "done",
    "gone": "missing",
}
WITHOUT_RECORD = {"announced", "cancelled", "absent", "gone"}  # of those that are not finished elsewhere


JsonAnswer = Callable[..., dict[str, Any]]


@pytest.fixture
def json_answer(cppo: Command) -> JsonAnswer:
    """The answer of a command, and in `said` what else it says."""

    def ask(line: str, *words: str, code: int = 0) -> dict[str, Any]:
        said = cppo(line, *words, "--json", code=code)
        return {**said.answer, "said": said.err}

    return ask


def recorder(run: PlannedRun, runs: Path) -> Recorder:
    made = Recorder(run.spec, {schema.TAG_CODE_VERSION: code_version()}, runs / run.run_id)
    made.log(4, {SCORE: 0.25})
    return made


@pytest.fixture
def planned() -> dict[str, PlannedRun]:
    return dict(zip(SITUATIONS, make_plan(load_sweep("quickstart"), EIGHT.split()[1:]).runs, strict=True))


@pytest.fixture
def ids(
    planned: dict[str, PlannedRun], workspace: Path, no_training: None, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The ids of runs in each situation; those finished elsewhere are in the store alone."""
    for seconds in ("PATIENCE_SECONDS", "HURRY_SECONDS"):  # most stores here never answer
        monkeypatch.setattr(f"cppo_lab.tracking.uploader.{seconds}", 0.2)
    runs = workspace / "runs"
    for name in ("stub", "gone"):
        recorder(planned[name], workspace / "elsewhere").finish(FINISHED)
        sent(workspace / "elsewhere" / planned[name].run_id)
    recorder(planned["done"], runs).finish(FINISHED)
    recorder(planned["partial"], runs).interrupt("terminated by SIGTERM")
    recorder(planned["failed"], runs).fail("ValueError: bad", "")
    for name in ("announced", "cancelled"):
        announce(runs / planned[name].run_id, {"core": "mini"})
    cancel(runs / planned["cancelled"].run_id)
    return {name: run.run_id for name, run in planned.items()}


def stored(run_id: str) -> Run:
    [run] = [run for run in mlflow_runs() if run.data.tags[schema.TAG_RUN_ID] == run_id]
    return run


def pulled(json_answer: JsonAnswer, ids: dict[str, str], gone: bool = True) -> None:
    """Both stubs are written; then one of the runs is deleted in the store, which the next look finds."""
    values = json_answer(f"pull {EIGHT}")
    assert (sorted(values["pulled"]), values["removed"]) == (sorted([ids["stub"], ids["gone"]]), [])
    assert set(values["asked"]) == {ids[n] for n in ("announced", "cancelled", "absent", "stub", "gone")}
    if gone:
        mlflow_client().delete_run(stored(ids["gone"]).info.run_id)
        values = json_answer(f"pull {EIGHT}")
        assert (values["pulled"], values["removed"]) == ([], [ids["gone"]])
        line = f"run {ids['gone']} was finished elsewhere, and is not in the tracking store any more: removed"
        assert line in values["said"]
        assert not Path("runs", ids["gone"]).exists()


@pytest.mark.parametrize(
    "store, option, held",
    [
        ("", "", set()),
        (LOST, "", WITHOUT_RECORD),
        (LOST, "--without-store", set()),
        ("sqlite:///{workspace}/other/mlflow.db", "", WITHOUT_RECORD),
        ("sqlite:///locked.db", "", set()),  # nobody elsewhere can have written into it
    ],
)
def test_all_commands_agree(
    ids: dict[str, str],
    workspace: Path,
    json_answer: JsonAnswer,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    option: str,
    held: set[str],
) -> None:
    """Plan, status, a dry run and a launch, from the same folders."""
    pulled(json_answer, ids)
    if store:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store.format(workspace=workspace))
        # The end of a launch does not wait for a store that did not answer at its beginning.
        monkeypatch.setattr("cppo_lab.tracking.uploader.PATIENCE_SECONDS", CEILING_SECONDS)
    if store.startswith("sqlite"):
        (workspace / "other").mkdir()
        for place in ("other/mlflow.db", "locked.db"):
            shutil.copy("mlflow.db", workspace / place)
        away = StoreAway("tracking store cannot be read: database is locked")
        monkeypatch.setattr("cppo_lab.sweep.launch.find", Mock(side_effect=away))
    names = {run_id: name for name, run_id in ids.items()}

    def states(values: dict[str, Any]) -> dict[str, str]:
        return {names[run["run_id"]]: run["state"] for run in values["runs"]}

    ahead = json_answer(f"launch {EIGHT} {option} --dry-run", code=3 if held else 0)
    for values in (json_answer(f"plan {EIGHT}"), json_answer(f"status {EIGHT}"), ahead):
        assert states(values) == SITUATIONS
    trains = {name for name, state in SITUATIONS.items() if state in ("partial", "missing")} - held
    assert [{names[run_id] for run_id in ahead[key]} for key in ("to_train", "held")] == [trains, held]
    done = json_answer(f"launch {EIGHT} {option}", code=3 if held else 4)
    assert all(done[key] == ahead[key] for key in ("to_train", "left", "held"))
    for values in (done, json_answer(f"plan {EIGHT}"), json_answer(f"status {EIGHT}")):
        assert states(values) == SITUATIONS | dict.fromkeys(trains, "done")
    [line] = [text for text in ahead["said"].splitlines() if "cannot be read" in text] if store else [""]
    why = "held, since runs may have been finished elsewhere: 4 runs without a record here ("
    assert (why in line) == bool(held) and line in done["said"]


def test_a_launch_writes_the_stubs_and_then_asks_for_no_run(
    ids: dict[str, str], json_answer: JsonAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run asks as a launch does, and writes nothing."""
    before = sorted(Path().rglob("*"))
    ahead = json_answer(f"launch {EIGHT} --dry-run")
    found = "5 runs have no record here; the tracking store has 2 of these as finished elsewhere"
    assert found in ahead["said"]
    with patch("cppo_lab.tracking.read.FEW", 0):  # all runs of the experiment are listed
        assert json_answer(f"launch {EIGHT} --dry-run")["said"] == ahead["said"]
    assert sorted(Path().rglob("*")) == before
    assert json_answer(f"launch {EIGHT}", code=4)["to_train"] == ahead["to_train"]
    stub = Path("runs", ids["stub"])
    status = read_status(stub)
    assert (status["status"], status["origin"]) == (schema.DONE, tracking_uri())
    assert (status["score"], status["code_version"]) == (0.25, code_version())
    assert sorted(path.name for path in stub.iterdir()) == ["config.json", "lock", "status.json"]
    json_answer(f"show {stub.name}")
    json_answer(f"diff {stub.name} {ids['gone']}")
    [row] = [run for run in json_answer(f"status {EIGHT}")["runs"] if run["run_id"] == stub.name]
    assert (row["state"], row["last"]) == (schema.DONE, 0.25)
    monkeypatch.setattr("cppo_lab.sweep.launch.find", asked := Mock(return_value={}))
    for dry in ("", "--dry-run"):
        json_answer(f"launch {FOUR} {dry}")
        [call] = asked.call_args_list  # of the launch: whether it answers
        assert not call.args[2]


@patch("cppo_lab.tracking.uploader.PATIENCE_SECONDS", 60.0)  # this store answers, on a busy machine late
def test_a_stub_is_replaced_like_a_result_of_this_folder(
    ids: dict[str, str], json_answer: JsonAnswer
) -> None:
    pulled(json_answer, ids, gone=False)
    run_id = ids["stub"]
    old = mlflow_run(Path("elsewhere") / run_id).info.run_id
    values = json_answer(f"retry {EIGHT} --run {run_id} --finished")
    assert (values["to_train"], values["replaced"]) == ([run_id], {run_id: [old]})
    new = stored(run_id)
    assert new.data.tags[schema.TAG_REPLACED] == old != new.info.run_id
    assert "origin" not in read_status(Path("runs") / run_id)


def test_what_is_trained_here_is_no_stub(
    ids: dict[str, str],
    planned: dict[str, PlannedRun],
    json_answer: JsonAnswer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that begins between the question and the writing keeps its folder."""
    real = launch_module.find

    def begins(*arguments: Any) -> Any:
        answer = real(*arguments)
        recorder(planned["stub"], Path("runs").resolve())
        return answer

    monkeypatch.setattr("cppo_lab.sweep.launch.find", begins)
    json_answer(f"pull {EIGHT}")
    status = read_status(Path("runs", ids["stub"]))
    assert (status["status"], "origin" in status) == (schema.RUNNING, False)
    assert not is_locked(Path("runs", ids["gone"]))


def test_a_stub_of_another_store_stays(
    ids: dict[str, str], json_answer: JsonAnswer, cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled(json_answer, ids, gone=False)
    here = tracking_uri()
    for store, code in (("sqlite:///new.db", 0), (LOST, 3)):  # a new one, and one that is silent
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
        said = str(json_answer(f"pull {EIGHT}", code=code))
        assert read_status(Path("runs", ids["stub"]))["status"] == schema.DONE
        # It is done for every command, and a report from the new store lacks it.
        assert ("2 runs finished elsewhere (" in said and f"the one that has them ({here})" in said) == (
            not code
        )
    assert not Path("new.db").exists()
    shutil.copy("mlflow.db", "moved.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///moved.db")
    assert "finished elsewhere (" not in json_answer(f"pull {EIGHT}")["said"]
    assert read_status(Path("runs", ids["stub"]))["origin"] == tracking_uri()
    said = cppo(f"archive {EIGHT} --out new/a.zip", code=1).out
    assert said == "new/a.zip: 3 of 8 runs, 2 of them without a result\n"  # stubs have nothing to archive
    said = cppo(f"logs {ids['stub']}", code=2).err
    assert "it was finished elsewhere" in said


def test_hypotheses_that_no_store_registers_are_not_tested(
    json_answer: JsonAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.yaml").write_text(
        "title: T\nquestion: Q?\nmodels: {mini: [mini_base]}\nvariants: {cppo: {rule: cppo}, grpo: {rule: grpo}}\n"
        "axes: {seed: [0, 1, 2, 3]}\nhypotheses:\n  best: {claim: It is best, better: [cppo], than: [grpo], "
        "models: mean, smallest: 2.0, test_seeds: [1, 2, 3]}\n"
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", LOST)
    elsewhere = "runs may have been finished elsewhere"
    for options, why, remedy in (
        ([], elsewhere, "train those that test no hypotheses with `cppo launch --with"),
        (
            ["--without-store"],
            "hypotheses cannot be registered",
            "name a store that does in MLFLOW_TRACKING_URI: a",
        ),
    ):
        values = json_answer("launch ./mine.yaml launcher=inline", *TINY, *options, code=3)
        assert (values["to_train"], len(values["held"])) == ([], 8)
        assert f"held, since {why}: 8 runs without a record here (" in values["said"]
        assert f"launch again when it answers, or {remedy}" in values["said"]
