"""The records of the cores, and what the conformance tests find in a core of another package."""

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cppo_lab import PARTS_FOLDER, core_records
from cppo_lab.core_records import BUILT_IN, Core, CoreRecord, core_names, core_of, load_part
from cppo_lab.cores.mini import MINI
from cppo_lab.plugins import CORE_GROUP
from cppo_lab.spec import LayoutSpec, RunSpec
from cppo_lab.spec.parse import run_kind
from cppo_lab.sweep import groups
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.sweep.overrides import parse_override
from cppo_lab.testing import CoreTests
from cppo_lab.testing import cores as conformance
from cppo_lab.testing.cores import Life
from tests.conftest import python, user_error
from tests.cores.kills import Killed
from tests.cores.test_mini import ListSink, attempt
from tests.waiting import CEILING_SECONDS

ROOT = Path(__file__).parents[2]
PATH = Path(__file__).parent / "acme_core.py"
MODULE = PATH.read_text(encoding="utf-8")
RECORD = """
from cppo_lab.core_records import CoreRecord

ACME = CoreRecord(
    name="acme",
    title="Acme's trainer",
    note="Runs of **Acme's trainer**.",
    settings="acme_core:AcmeRun",
    train="acme_core:train",
    datasets="acme_core:datasets",
    config={"acme": {"noise": 0.05}},
)
"""
SMALL = ("batch.prompts=4", "batch.responses=2", "batch.minibatch_prompts=2", "training.t_stop=4")
SMALL = ("model=mini_small_base", *SMALL, "validation.every=2", "validation.samples=1")
PARTS = {"settings": "AcmeRun", "train": "train", "datasets": "datasets"}
ACME: CoreRecord | None = None  # set by a test
REFUSED = {"rollout.staleness=1": "current policy"}
CHECK = f"""
from acme_records import ACME
from cppo_lab.testing import check_core

if __name__ == "__main__":
    check_core(ACME, {SMALL!r}, {REFUSED!r})
"""


ENTRY = "[cppo_lab.cores]\nacme = acme_records:ACME\n"


def package(folder: Path, entry_points: str = ENTRY, module: Path = PATH, record: str = RECORD) -> Path:
    """Acme's package as an installer leaves it, in a folder for PYTHONPATH: a core, or what `module` holds."""
    info = folder / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(module, folder)
    (folder / "acme_records.py").write_text(record)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder


def ran(folder: Path, *arguments: str, path: Path | None = None, **variables: str) -> tuple[int, str, str]:
    """Python in a separate process, with their package on its path if `path` names it."""
    hidden = ("CPPO_RULES", "MLFLOW_TRACKING_URI")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, filter(None, (ROOT, path))))
    done = python(*arguments, check=False, cwd=folder, env=environment | variables, timeout=CEILING_SECONDS)
    return done.returncode, done.stdout, done.stderr


def cppo(folder: Path, *arguments: str, **given: Any) -> tuple[int, str, str]:
    return ran(folder, "-m", "cppo_lab.cli", *arguments, **given)


def test_a_core_of_another_package_conforms(tmp_path: Path) -> None:
    theirs = package(tmp_path / "site")
    (tmp_path / "check.py").write_text(CHECK)
    code, out, err = ran(tmp_path, "check.py", path=theirs)
    assert code == 0, out + err


class InThisProcess(CoreTests):
    """The tests with attempts in this process: the import of torch takes longer than they."""

    def _train(
        self, composed: Sequence[Composed], folder: Path, kill_at: int | None = None
    ) -> tuple[Life, ...]:
        lives = []
        for run in (each.run for each in composed):
            kept, end = ListSink(kill_at), None
            sink = Mock(wraps=kept)
            with contextlib.suppress(Killed):
                _, outcome = attempt(run, folder / run.run_id, sink)
                end = outcome.status, outcome.step
            lives.append(
                Life(tuple(kept.began), tuple(kept.rows), kept.artifacts, end, sink.method_calls[0][0])
            )
        return tuple(lives)


KILLED, ALONE = "killed_it_continues_with_the_same_numbers", "a_run_does_not_depend_on_the_one_before_it"
RECORDED = "a_run_is_recorded_from_its_first_step_to_its_last"


@pytest.mark.parametrize(
    "right, wrong, test, said",
    [
        ("replace_file(path", "print(path", KILLED, "nothing was kept"),
        ("skill, rows]", "skill + 1, rows]", KILLED, "continued run"),
        ("if self.rollout.staleness:", "if False:", "what_it_cannot_train_is_refused", "is not refused"),
        ("perf/step_seconds", "perf/seconds", RECORDED, "METRICS"),
        ("schema.MEAN, *", "'other', *", RECORDED, "val/mean"),
        ("range(done + 1", "range(done + 2", RECORDED, r"steps \[1"),
        ("else done)", "else done); sink.begin(0)", RECORDED, "once"),
        ("{spec.seed} ", "", ALONE, "the seed changes nothing"),
        ("resources.folder / CHECKPOINT", "resources.shared / CHECKPOINT", ALONE, "resumes another run"),
        (
            "-1, 0.2, []",
            "-1, globals().update(N=globals().get('N', 0) + 1) or N / 9, []",
            ALONE,
            "the run before it",
        ),
    ],
)
def test_a_core_that_does_not_conform_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, test: str, said: str
) -> None:
    name = f"acme_core_{tmp_path.name}"
    assert right in MODULE
    (tmp_path / f"{name}.py").write_text(MODULE.replace(right, wrong))
    monkeypatch.syspath_prepend(tmp_path)
    parts = {part: f"{name}:{function}" for part, function in PARTS.items()}
    acme = CoreRecord("acme", "Acme's", "Theirs.", **parts, config={"acme": {"noise": 0.05}})
    monkeypatch.setattr(sys.modules[__name__], "ACME", acme)
    monkeypatch.setattr(core_records, "entry_points", lambda group: {"acme": f"{__name__}:ACME"})
    monkeypatch.setattr(groups, "entry_points", lambda group: {"acme": ""} if group == CORE_GROUP else {})
    forget()
    monkeypatch.setattr(conformance, "_WHOLE", {})
    checked = type("Checked", (InThisProcess,), {"core": acme, "overrides": SMALL, "refused": REFUSED})()
    try:
        with pytest.raises((AssertionError, KeyError), match=said):
            getattr(checked, f"test_{test}")()
    finally:
        monkeypatch.undo()
        forget()


@pytest.mark.parametrize(
    "train, said",
    [
        (lambda run, sink, resources: sink.tag("mine", "x"), "tag 'mine' is not in schema.TAGS_OF_CORES"),
        (lambda run, sink, resources: sink.artifact("status.json", {}), "file 'status.json' of a run"),
        (lambda run, sink, resources: os.chdir("/"), "it leaves the process in /"),
    ],
)
def test_what_an_attempt_of_the_tests_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Core, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, ValueError), match=said):
        conformance._attempts(Mock(load=lambda part: train), [(None, None, tmp_path / "events")], None)


def forget() -> None:
    """What this process remembers of the installed cores."""
    for cached in (core_of, run_kind, groups.groups, parse_override):
        cached.cache_clear()


def test_records_and_files_agree() -> None:
    assert set(BUILT_IN) == {path.stem for path in (PARTS_FOLDER / "conf" / "core").glob("*.yaml")}
    for name in BUILT_IN:
        core = core_of(name)
        assert core.name == name and issubclass(core.load("settings"), RunSpec)
        for part in ("datasets", "check_placement", "estimate", "doctor"):
            assert getattr(core, part) is None or core.load(part) is not None


def test_machines_and_gpus_are_the_layouts_where_it_is_used() -> None:
    layout: LayoutSpec = compose(["core=verl", "model=qwen3_8b_base", "layout=two_nodes"]).layout
    cpu: LayoutSpec = compose([]).layout
    mini, verl = core_of("mini"), core_of("verl")
    assert [(core.nodes(layout), core.gpus(layout)) for core in (mini, verl)] == [(1, 0), (2, 8)]
    assert [(core.nodes(cpu), core.gpus(cpu)) for core in (mini, verl)] == [(1, 0), (1, 0)]
    assert (verl.nodes(None), verl.gpus(None)) == (1, 0)


@pytest.mark.parametrize(
    "path, said",
    [
        ("tests.cores.test_core_records:RECORD", "is a str, not a cppo_lab.core_records.CoreRecord"),
        ("cppo_lab.cores.mini:MINI", "is the record of 'mini'"),
        ("nowhere:ACME", "cannot be imported"),
    ],
)
def test_an_entry_point_that_names_no_core(monkeypatch: pytest.MonkeyPatch, path: str, said: str) -> None:
    monkeypatch.setattr(core_records, "entry_points", lambda group: {"other": path, "mini": path})
    core_of.cache_clear()
    assert core_names() == (*BUILT_IN, "other")
    with user_error(said):
        core_of("other")
    assert core_of("mini") is MINI  # a name of the product is the product's
    core_of.cache_clear()


def test_what_a_core_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = CoreRecord("bare", "a bare core", "Nothing.", "a:b", "a:b", "a:b")
    monkeypatch.setattr(
        "cppo_lab.core_records.core_of", lambda name: bare if name == "bare" else core_of(name)
    )
    for part, said in (
        ("exporter", "that exports its models: these are mini, verl"),
        ("worker_node", "that uses several machines: these are verl"),
        ("stand_ins", "with models of random weights: these are verl"),
    ):
        with user_error(f"core='bare' is no core {said}"):
            load_part("bare", part)
