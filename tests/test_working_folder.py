"""No process of ours executes a file of the working folder, whatever its name."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from cppo_lab import schema
from tests.cli.test_ui import empty_store
from tests.conftest import ROOT, TINY, python

CPPO = str(Path(sys.executable).with_name("cppo"))
# Every module of the standard library that is not in the interpreter itself, and every installed package.
NAMES = sorted(
    {*sys.stdlib_module_names, *metadata.packages_distributions(), "cppo_lab", "conf", "sitecustomize"}
    - {*sys.builtin_module_names, "__main__", "__future__"}
)
TRAP = """open({log!r}, "a").write(__name__ + "\\n")
raise SystemExit("executed: " + __file__)
"""
SWEEP = """
title: t
question: q
models: [mini_small_base]
variants: {theirs: {rule: one_sided}}
axes: {seed: [0]}
"""


@pytest.fixture
def trapped(workspace: Path) -> Path:
    """A working folder with a file for every name that could be imported; the log of those that were executed."""
    log = workspace.parent / f"{workspace.name}-executed"
    (workspace / "cppo_lab").mkdir()
    for name in filter(str.isidentifier, NAMES):
        file = "cppo_lab/__init__.py" if name == "cppo_lab" else f"{name}.py"
        (workspace / file).write_text(TRAP.format(log=str(log)))
    python("-c", "import colorsys", env=as_a_user(), check=False)
    assert executed(log) == ["colorsys"]  # as Python alone would
    log.unlink()
    return log


def as_a_user() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}


def cppo(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [CPPO, *words], env=as_a_user() | variables, capture_output=True, text=True, check=False, timeout=300
    )


def executed(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


OVERRIDES = [word for word in TINY if not word.startswith(("model=", "rule=", "seed=", "core="))]


def test_a_job_and_a_folder_that_the_user_names(
    trapped: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """PYTHONPATH and installed packages are searched as ever: a rule comes from there (docs/extending.md)."""
    place = tmp_path_factory.mktemp("theirs")
    (place / "acme_rules.py").write_text((ROOT / "tests" / "rules" / "acme_rules.py").read_text())
    Path("rule").mkdir()
    Path("rule/one_sided.yaml").write_text(
        "name: one_sided\ndelta: ${trust_region.delta}\noptions: {slack: 0.0}\n"
    )
    Path("sweep.yaml").write_text(SWEEP)
    empty_store()  # else the command makes the store's tables, which takes seconds
    words = ["launch", "./sweep.yaml", "launcher=local", "rule.path=acme_rules:one_sided", *OVERRIDES]
    done = cppo(*words, PYTHONPATH=str(place))
    assert (executed(trapped), done.returncode) == ([], 0), done.stdout + done.stderr
    [status] = Path("runs").glob("*/status.json")
    assert json.loads(status.read_text())["status"] == schema.DONE


def test_the_uploading_process_and_a_spawned_one(trapped: Path) -> None:
    """What a job starts while it trains, in the environment that `cppo` has made."""
    code = (
        "from cppo_lab.cli import main; main(['completion', 'bash'])\n"
        "import multiprocessing, subprocess, sys\n"
        "from cppo_lab.tracking import uploader\n"
        "command, orphan = [sys.executable, '-P', '-c', uploader.CODE], '[\"sqlite:///none.db\", 0]\\n'\n"
        "subprocess.run(command, input=orphan, text=True, check=True)\n"
        "child = multiprocessing.get_context('spawn').Process(target=print, args=('x',)); child.start(); child.join()\n"
        "assert child.exitcode == 0, child.exitcode\n"
    )
    done = python("-P", "-c", code, env=as_a_user(), timeout=120, check=False)
    assert (executed(trapped), done.returncode) == ([], 0), done.stderr


@pytest.mark.slow
def test_the_page_of_mlflow(trapped: Path) -> None:
    environment = as_a_user() | {"MLFLOW_TRACKING_URI": empty_store()}
    with subprocess.Popen([CPPO, "ui"], env=environment, stdout=subprocess.PIPE, text=True) as page:
        try:
            assert page.stdout is not None
            assert page.stdout.readline().startswith("cppo-mini")
            assert executed(trapped) == []
        finally:
            page.terminate()
            page.wait(60)


@pytest.mark.verl
def test_the_process_that_looks_at_verl(trapped: Path) -> None:
    done = cppo("doctor", "--core", "verl", "model=tiny_qwen3")
    assert executed(trapped) == [], done.stdout + done.stderr
    assert "interfaces of verl: all as expected" in done.stdout


RAY = """
import json, sys
from pathlib import Path
from cppo_lab.cores.verl.core import own_ray
from cppo_lab.sweep.compose import compose

def look():
    import statistics, colorsys  # not loaded by Ray itself
    return sys.path, statistics.__file__, colorsys.__file__

if __name__ == "__main__":
    with own_ray(compose(["core=verl", "model=tiny_qwen3", "rule=cppo", "seed=0"]).layout) as settings:
        import ray
        ray.init(**settings, log_to_driver=False)
        print("SEEN " + json.dumps(ray.get(ray.remote(look).remote())))
"""


@pytest.mark.verl
@pytest.mark.slow
def test_rays_workers(trapped: Path) -> None:
    """Ray puts the working folder first on the path of its workers, whatever the environment says."""
    done = python("-c", RAY, env=as_a_user() | {"PYTHONSAFEPATH": "1"}, timeout=300, check=False)
    assert (executed(trapped), done.returncode) == ([], 0), done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    path, *files = json.loads(line.removeprefix("SEEN "))
    assert not {"", str(Path.cwd())} & set(path)
    assert not [file for file in files if Path(file).is_relative_to(Path.cwd())]
