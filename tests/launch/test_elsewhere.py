"""Runs that were finished elsewhere: what the store is asked, what is written here, and what a silent store holds."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cppo_lab import schema
from cppo_lab.errors import StoreAway
from cppo_lab.runs.folder import announce, cancel, is_held, read_status
from cppo_lab.runs.machine import code_version
from cppo_lab.runs.recorder import Recorder
from cppo_lab.sweep import launch as launch_module
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking import uploader
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import FINISHED, TINY, Command
from tests.recorded import mlflow_client, mlflow_run, mlflow_runs, sent

EIGHT = ["quickstart", *TINY, "seed=0,1,2,3", "variant=grpo,cppo", "launcher=inline"]
LOST = "http://127.0.0.1:9"
SCORE = schema.validation_metric(schema.MEAN)
# The folders of the eight runs, and the state that all commands see in each.
SITUATIONS = {
    "done": schema.DONE,
    "partial": schema.PARTIAL,
    "failed": schema.FAILED,
    "announced": schema.MISSING,
    "cancelled": schema.MISSING,
    "absent": schema.MISSING,
    "stub": schema.DONE,
    "gone": schema.MISSING,
}


JsonAnswer = Callable[..., dict[str, Any]]


@pytest.fixture
def json_answer(cppo: Command) -> JsonAnswer:
    """The answer of a command, and in `said` what else it says."""

    def ask(*command: str, code: int = 0) -> dict[str, Any]:
        said = cppo(*command, "--json", code=code)
        return {**said.answer, "said": said.err}

    return ask


def recorder(run: PlannedRun, runs: Path) -> Recorder:
    made = Recorder(run.spec, {schema.TAG_CODE_VERSION: code_version()}, runs / run.run_id)
    made.log(4, {SCORE: 0.25})
    return made


@pytest.fixture
def planned(workspace: Path, no_training: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, PlannedRun]:
    """A run in each situation; those finished elsewhere are in the store alone."""
    monkeypatch.setattr(uploader, "PATIENCE_SECONDS", 0.2)  # most stores here never answer
    plan = make_plan(load_sweep(EIGHT[0]), EIGHT[1:])
    planned, runs = dict(zip(SITUATIONS, plan.runs, strict=True)), workspace / "runs"
    for name in ("stub", "gone"):
        recorder(planned[name], workspace / "elsewhere").finish(FINISHED)
        sent(workspace / "elsewhere" / planned[name].run_id)
    recorder(planned["done"], runs).finish(FINISHED)
    recorder(planned["partial"], runs).interrupt("terminated by SIGTERM")
    recorder(planned["failed"], runs).fail("ValueError: bad", "")
    for name in ("announced", "cancelled"):
        announce(runs / planned[name].run_id, {"core": "mini"})
    cancel(runs / planned["cancelled"].run_id)
    return planned


def pulled(json_answer: JsonAnswer, planned: dict[str, PlannedRun], gone: bool = True) -> None:
    """Both stubs are written; then one of the runs is deleted in the store, which the next look finds."""
    ids = {name: run.run_id for name, run in planned.items()}
    values = json_answer("pull", *EIGHT)
    assert (sorted(values["pulled"]), values["removed"]) == (sorted([ids["stub"], ids["gone"]]), [])
    assert set(values["asked"]) == {ids[n] for n in ("announced", "cancelled", "absent", "stub", "gone")}
    if gone:
        [run] = [stored for stored in mlflow_runs() if stored.data.tags[schema.TAG_RUN_ID] == ids["gone"]]
        mlflow_client().delete_run(run.info.run_id)
        values = json_answer("pull", *EIGHT)
        assert (values["pulled"], values["removed"]) == ([], [ids["gone"]])
        line = f"run {ids['gone']} was finished elsewhere, and is not in the tracking store any more: removed"
        assert line in values["said"]
        assert not (Path("runs") / ids["gone"]).exists()


@pytest.mark.parametrize(
    "store, options, held",
    [
        ("", [], set()),
        (LOST, [], {"announced", "cancelled", "absent", "gone"}),
        (LOST, ["--without-store"], set()),
        ("sqlite:///{workspace}/other/mlflow.db", [], {"announced", "cancelled", "absent", "gone"}),
        ("sqlite:///locked.db", [], set()),  # nobody elsewhere can have written into it
    ],
    ids=["store", "lost server", "without", "damaged file elsewhere", "damaged file here"],
)
def test_all_commands_agree(
    planned: dict[str, PlannedRun],
    workspace: Path,
    json_answer: JsonAnswer,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    options: list[str],
    held: set[str],
) -> None:
    """Plan, status, a dry run and a launch, from the same folders."""
    pulled(json_answer, planned)
    if store:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store.format(workspace=workspace))
    if store.startswith("sqlite"):
        (workspace / "other").mkdir()

        def away(uri: str, core: str, run_ids: object) -> None:
            raise StoreAway(f"tracking store {uri} cannot be read: database is locked")

        for place in ("other/mlflow.db", "locked.db"):
            shutil.copy("mlflow.db", workspace / place)
        monkeypatch.setattr(launch_module, "find", away)
    ids = {run.run_id: name for name, run in planned.items()}

    def states(values: dict[str, Any]) -> dict[str, str]:
        return {ids[run["run_id"]]: run["state"] for run in values["runs"]}

    ahead = json_answer("launch", *EIGHT, *options, "--dry-run", code=3 if held else 0)
    for values in (json_answer("plan", *EIGHT), json_answer("status", *EIGHT), ahead):
        assert states(values) == SITUATIONS
    trains = {name for name, state in SITUATIONS.items() if state in (schema.PARTIAL, schema.MISSING)} - held
    assert {ids[run_id] for run_id in ahead["to_train"]} == trains
    assert {ids[run_id] for run_id in ahead["held"]} == held
    done = json_answer("launch", *EIGHT, *options, code=3 if held else 4)
    assert (done["to_train"], done["left"], done["held"]) == (ahead["to_train"], ahead["left"], ahead["held"])
    assert states(done) == SITUATIONS | dict.fromkeys(trains, schema.DONE)
    [line] = [one for one in ahead["said"].splitlines() if "cannot be read" in one] if store else [""]
    assert (
        "held, since runs may have been finished elsewhere: 4 runs without a record here (" in line
    ) == bool(held)
    assert line in done["said"]
    for values in (json_answer("plan", *EIGHT), json_answer("status", *EIGHT)):
        assert states(values) == states(done)


def test_a_launch_writes_the_stubs_and_then_asks_for_no_run(
    planned: dict[str, PlannedRun], json_answer: JsonAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run asks as a launch does, and writes nothing."""
    before = sorted(Path().rglob("*"))
    ahead = json_answer("launch", *EIGHT, "--dry-run")
    assert (
        "5 runs have no record here; the tracking store has 2 of these as finished elsewhere" in ahead["said"]
    )
    with monkeypatch.context() as many:
        many.setattr("cppo_lab.tracking.read.FEW", 0)  # all runs of the experiment are listed
        assert json_answer("launch", *EIGHT, "--dry-run")["said"] == ahead["said"]
    assert sorted(Path().rglob("*")) == before
    assert json_answer("launch", *EIGHT, code=4)["to_train"] == ahead["to_train"]
    stub = Path("runs") / planned["stub"].run_id
    status = read_status(stub)
    assert (status["status"], status["origin"]) == (schema.DONE, tracking_uri())
    assert (status["score"], status["code_version"]) == (0.25, code_version())
    assert sorted(path.name for path in stub.iterdir()) == ["config.json", "lock", "status.json"]
    json_answer("show", stub.name)
    json_answer("diff", stub.name, planned["gone"].run_id)
    [row] = [run for run in json_answer("status", *EIGHT)["runs"] if run["run_id"] == stub.name]
    assert (row["state"], row["last"]) == (schema.DONE, 0.25)
    asked: list[object] = []
    monkeypatch.setattr(launch_module, "find", lambda uri, core, ids: asked.append(sorted(ids)) or {})
    own = [*EIGHT[:-3], "seed=0,1", "variant=grpo,cppo", "launcher=inline"]
    json_answer("launch", *own)
    assert asked == [[]]  # whether it answers
    json_answer("launch", *own, "--dry-run")
    assert asked == [[]]


def test_a_stub_is_replaced_like_a_result_of_this_folder(
    planned: dict[str, PlannedRun], json_answer: JsonAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "PATIENCE_SECONDS", 60.0)  # this store answers, on a busy machine late
    pulled(json_answer, planned, gone=False)
    run_id = planned["stub"].run_id
    old = mlflow_run(Path("elsewhere") / run_id).info.run_id
    values = json_answer("retry", *EIGHT, "--run", run_id, "--finished")
    assert (values["to_train"], values["replaced"]) == ([run_id], {run_id: [old]})
    [new] = [run for run in mlflow_runs() if run.data.tags[schema.TAG_RUN_ID] == run_id]
    assert new.data.tags[schema.TAG_REPLACED] == old != new.info.run_id
    assert "origin" not in read_status(Path("runs") / run_id)


def test_what_is_trained_here_is_no_stub(
    planned: dict[str, PlannedRun], json_answer: JsonAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins between the question and the writing keeps its folder."""
    real = launch_module.find

    def begins(*arguments: Any) -> Any:
        stored = real(*arguments)
        recorder(planned["stub"], Path("runs").resolve())
        return stored

    monkeypatch.setattr(launch_module, "find", begins)
    json_answer("pull", *EIGHT)
    status = read_status(Path("runs") / planned["stub"].run_id)
    assert (status["status"], "origin" in status) == (schema.RUNNING, False)
    assert not is_held(Path("runs") / planned["gone"].run_id)


def test_a_stub_of_another_store_stays(
    planned: dict[str, PlannedRun], json_answer: JsonAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled(json_answer, planned, gone=False)
    for store, code in (("sqlite:///new.db", 0), (LOST, 3)):  # a new one, and one that is silent
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
        json_answer("pull", *EIGHT, code=code)
        assert read_status(Path("runs") / planned["stub"].run_id)["status"] == schema.DONE
    assert not Path("new.db").exists()


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
        values = json_answer("launch", "./mine.yaml", *TINY, "launcher=inline", *options, code=3)
        assert (values["to_train"], len(values["held"])) == ([], 8)
        assert f"held, since {why}: 8 runs without a record here (" in values["said"]
        assert f"launch again when it answers, or {remedy}" in values["said"]
