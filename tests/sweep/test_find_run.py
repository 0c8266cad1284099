"""A run by the beginning of its id, wherever it is known; and what two runs differ in."""

import shutil
from pathlib import Path

import pytest
import yaml

from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import RunSpec
from cppo_lab.spec.parse import parse_run
from cppo_lab.sweep import plan as plan_module
from cppo_lab.sweep.plan import FoundRun, find_recorded_run, find_run, is_run_id
from cppo_lab.sweep.table import difference_text
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import FINISHED, TINY, Command, user_error
from tests.jobs import job, run_of
from tests.recorded import sent


@pytest.fixture(autouse=True)
def read_anew() -> None:
    plan_module._declared.cache_clear()


def recorded(spec: RunSpec, workspace: Path) -> Path:
    attempt = job(spec, workspace / "runs", tracking_uri())
    Recorder(spec, {}, attempt.folder).finish(FINISHED)
    sent(attempt.folder)
    return attempt.folder


def find(text: str, *sweeps: str) -> FoundRun:
    return find_run(text, Path("runs").resolve(), sweeps)


OURS = "title: t\nmodels: {mini: [mini_base]}\nvariants: {ours: {rule: cppo, rule.w_min: 0.61}}\n"


def test_in_its_folder_and_never_in_the_store(workspace: Path, tiny_spec: RunSpec) -> None:
    folder = recorded(tiny_spec, workspace)
    run = find_recorded_run(tiny_spec.run_id[:6], folder.parent)
    assert (run.run_id, "config.json in " in run.source) == (tiny_spec.run_id, True)
    assert parse_run(run.config, "found").run_id == tiny_spec.run_id
    shutil.rmtree(folder)
    with user_error(r"has not been started: .* `cppo pull SWEEP` gives it one"):
        find_recorded_run(tiny_spec.run_id, folder.parent)
    with user_error(r"no folder in .*/runs has such an id: .*--in SWEEP"):
        find(tiny_spec.run_id)


def test_in_a_shipped_sweep_of_either_core(workspace: Path) -> None:
    for core, model in (("mini", "mini_quick"), ("verl", "tiny_qwen3")):
        run_id = run_of(f"core={core} model={model} rule=grpo seed=1").run_id
        for beginning in (run_id, run_id[:8]):
            run = find(beginning, "quickstart")
            assert run.source == f"sweep quickstart, core={core}" and run.planned is not None
    assert list(workspace.iterdir()) == []


def test_in_the_sweep_files_of_the_working_folder(workspace: Path) -> None:
    run_id = run_of("rule=cppo rule.w_min=0.61").run_id
    for name in ("sweeps/mine.yaml", "mine.yaml"):  # the second is found first
        Path("sweeps").mkdir(exist_ok=True)
        Path(name).write_text(OURS.replace("{mini: [mini_base]}", "[mini_base]"))  # which mini alone trains
        Path("compose.yaml").write_text("services: {}\n")  # another program's
        assert find(run_id[:8]).source == f"sweep {name}, core=mini"
    with user_error(r"and no run of mine\.yaml, sweeps/mine\.yaml has such an id"):
        find("abcd")


def test_in_sweeps_and_studies_that_are_named(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cppo_lab.sweep.plan._sweeps_here", list)
    Path("mine.yaml").write_text(OURS)
    Path("all.yaml").write_text("title: t\nquestion: q\nsweeps: [./mine.yaml]\n")
    run_id = run_of("rule=cppo rule.w_min=0.61").run_id
    monkeypatch.setattr("cppo_lab.sweep.plan.TELL_SECONDS", 0.0)
    with user_error("--in SWEEP"):
        find(run_id, "quickstart", "quickstart_exact")
    search = f"looking for run '{run_id}' in 2 sweeps, which may take a minute; --in SWEEP"
    assert capsys.readouterr().err.count(search) == 1  # not before each of them
    with user_error(r"unknown run 'abcd'.*--in SWEEP"):
        find("abcd", "tune_cppo")  # a search declares no runs of its own
    for name in ("mine.yaml", "all.yaml"):  # of a study, with the cores that all its sweeps have
        assert find(run_id[:5], name).source == f"sweep {name}, core=mini"
    plan_module._declared.cache_clear()
    Path("mine.yaml").write_text(OURS.replace("0.61", "7"))
    with user_error(r"rule\.w_min=7: must be in \(0, 1\]"):
        find("abcd", "mine.yaml")
    with user_error(r"mine\.yaml"):  # with no core are there runs
        find(run_id, "all.yaml")


def test_a_hostile_value_does_not_steer_the_terminal() -> None:
    left, right = (FoundRun(name, "here", {"a": value}) for name, value in (("l", "\x1b[2J"), ("r", "x\ny")))
    assert "\x1b" not in difference_text(left, right)
    assert difference_text(left, right).count("\n") == 4


def test_diff_and_show_on_the_command_line(workspace: Path, cppo: Command, tiny_spec: RunSpec) -> None:
    other = run_of("rule=grpo seed=3", TINY)
    for spec in (tiny_spec, other):
        recorded(spec, workspace)
    line = f"diff {tiny_spec.run_id[:7]} {other.run_id[:7]}"
    values = cppo(f"{line} --json").answer
    changed = {
        "seed": [0, 3],
        "rule.name": ["cppo", "grpo"],
        "rule.delta_b": [tiny_spec.rule.delta_b, None],
        "rule.clip_low": [None, 0.2],
    }
    assert values["differences"].items() >= changed.items()
    assert {key.partition(".")[0] for key in values["differences"]} == {"seed", "rule"}
    assert [run["run_id"] for run in values["runs"]] == [tiny_spec.run_id, other.run_id]
    assert values["identical"] is False
    lines = [words.split() for words in cppo(line).out.splitlines()]
    assert lines[0] == [tiny_spec.run_id, other.run_id] and ["rule.clip_low", "-", "0.2"] in lines
    same = cppo(f"diff {other.run_id} {other.run_id}").out
    assert f"{other.run_id}/config.json in " in same and " is the same run as" in same
    text = cppo(f"show {other.run_id[:7]}").out
    assert text.startswith(f"# from {other.run_id}/config.json in ")
    assert parse_run(yaml.safe_load(text)["run"], "shown").run_id == other.run_id
    planned = run_of("model=mini_quick rule=grpo seed=1").run_id
    assert yaml.safe_load(cppo(f"show {planned} --in quickstart").out)["sweeps"] == {"quickstart": "grpo"}
    assert f"cppo show SWEEP --run {other.run_id}" in cppo(f"show {other.run_id} seed=3", code=2).err


def test_what_is_an_id(workspace: Path) -> None:
    assert is_run_id("abcd") and not is_run_id("quickstart")
    Path("abcd").write_text("")
    assert not is_run_id("abcd")  # a file comes before an id
    for name in ("5555aaaaaaaa", "5555aaaaaaaa.old", "5555"):
        (folder := Path("runs") / name).mkdir(parents=True)
        (folder / "config.json").write_text('{"core": "exact"}')
    assert find("5555").run_id == "5555aaaaaaaa"
