"""However the package is installed, it is whole and works from an empty folder; a build that leaves files out fails."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from cppo_lab import PARTS
from tests.conftest import ROOT, TINY, python

CODE = ("cppo_lab", *PARTS)
MADE = {"PKG-INFO", "setup.cfg", "cppo_lab.egg-info"}  # by setuptools, for an sdist
NOT_OURS = "build dist runs .*cache .venv* .hypothesis __pycache__ *.egg-info"
RUN = ["quickstart", *TINY, "variant=cppo", "seed=0"]
PLAINLY = "--quiet --no-deps --no-build-isolation"


def done(program: str | Path, words: str, *others: str | Path, at: Path, **more: str) -> str:
    """What a program says in the folder `at`; it must end well."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED} | more
    ended = subprocess.run(
        [program, *words.split(), *others], cwd=at, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


_NOT_PASSED = ("PYTHONPATH", "MLFLOW_TRACKING_URI")


def files(folder: Path) -> set[str]:
    """The files below a folder, without what Python and reports have made there."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in found if not {"build", "__pycache__"} & {*path.parts}}


class Sources(NamedTuple):
    """The tree as others get it: a git repository, a clone without symbolic links, an unpacked zip, an sdist."""

    repository: Path
    clone: Path
    unzipped: Path
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def sources(shared_path: Path) -> Sources:
    """Made of this tree as it is now, committed or not."""
    repository = shared_path / "repository"
    if (ROOT / ".git").exists():
        listed = done("git", "ls-files -z --cached --others --exclude-standard", at=ROOT)
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).exists() or (ROOT / name).is_symlink():
                (repository / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, repository / name, follow_symlinks=False)
    else:  # an unpacked sdist
        shutil.copytree(
            ROOT, repository, symlinks=True, ignore=shutil.ignore_patterns(*NOT_OURS.split(), *MADE)
        )
    done("git", "init --quiet", at=repository)
    done("git", "add --all", at=repository)
    who = "-c user.name=Somebody -c user.email=somebody@example.org"
    done("git", f"{who} commit --quiet --message All", at=repository)
    done("git", "clone --quiet -c core.symlinks=false repository clone", at=shared_path)
    done("git", "archive --output ../tree.zip HEAD", at=repository)
    done(sys.executable, "-m zipfile -e tree.zip unzipped", at=shared_path)
    hook = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    done(sys.executable, "-c", hook, shared_path / "built", at=shared_path / "clone")
    [sdist] = (shared_path / "built").glob("*.tar.gz")
    # Without isolation: what builds is what is installed here, and nothing is downloaded.
    done(sys.executable, f"-m pip wheel {PLAINLY} -w built", sdist, at=shared_path)
    [wheel] = (shared_path / "built").glob("*.whl")
    return Sources(repository, shared_path / "clone", shared_path / "unzipped", sdist, wheel)


class Environment(NamedTuple):
    """An environment that sees what is installed for the tests, this package apart."""

    folder: Path

    def install(self, what: str) -> None:
        done(self.folder / "bin/python", f"-m pip install {PLAINLY} --force-reinstall {what}", at=self.folder)

    def run(self, program: str, words: str, *others: str, at: Path) -> str:
        """What `cppo` or `python` of this environment says in the folder `at`."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return done(self.folder / "bin" / program, words, *others, at=at, PATH=path)


@pytest.fixture(scope="module")
def environment(shared_path: Path) -> Environment:
    folder = shared_path / "environment"
    venv.create(folder, symlinks=True)
    # A folder on the path that no .pth file of its own is read of: an editable install of this package stays outside.
    [packages] = (folder / "lib").glob("python*/site-packages")
    seen = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "tests.pth").write_text("\n".join(seen))
    return Environment(folder)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_the_wheel_has_every_file_and_nothing_else(sources: Sources) -> None:
    with zipfile.ZipFile(sources.wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    inside = {name for name in names if "dist-info" not in name}
    beside = {f"cppo_lab/{part}/{name}" for part in PARTS for name in files(sources.repository / part)}
    assert inside == beside | {f"cppo_lab/{name}" for name in files(sources.repository / "cppo_lab")}
    assert all(any(name.startswith(f"cppo_lab/{part}/") for name in inside) for part in PARTS)
    assert {"cppo_lab/py.typed", "cppo_lab/conf/config.yaml", "cppo_lab/data/rows/aime24.jsonl"} <= inside
    licences = {name.rpartition("/")[2] for name in names if "dist-info/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}


def test_the_sdist_is_the_tree(sources: Sources) -> None:
    tracked = done("git", "ls-files -z", at=sources.repository).split("\0")
    with tarfile.open(sources.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}
    assert {name for name in names if name.partition("/")[0] not in MADE} == {*filter(None, tracked)}


WAYS = {
    "a clone": "{clone}",
    "a clone, editable": "--editable {clone}",
    "a zip of the tree": "{unzipped}",
    "git": "git+file://{repository}",
    "the sdist's wheel": "{wheel}",
}
TRAINS = "the sdist's wheel"  # one small run; the others leave the same files


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_it_is_installed_whole(way: str, sources: Sources, environment: Environment, empty: Path) -> None:
    environment.install(WAYS[way].format(**sources._asdict()))
    ask = "import cppo_lab, cppo_lab.reports as one; print(cppo_lab.__file__, one.__file__, sep='\\n')"
    package, reports = map(Path, environment.run("python", "-c", ask, at=empty).split())
    if way.endswith("editable"):
        assert (package.parents[1], reports.parents[1]) == (sources.clone, sources.clone)
    else:
        assert package.is_relative_to(environment.folder)
        assert reports.parents[1] == package.parent
        with zipfile.ZipFile(sources.wheel) as archive:
            names = {name for name in archive.namelist() if name.startswith("cppo_lab/")}
        assert {f"cppo_lab/{name}" for name in files(package.parent)} == names
    assert "6 runs: 6 missing" in environment.run("cppo", "plan quickstart", at=empty)
    assert list(empty.iterdir()) == []
    if way == TRAINS:
        environment.run("cppo", "launch", *RUN, at=empty)
        environment.run("cppo", "report", *RUN, at=empty)
        assert (empty / "reports/build/quickstart/index.html").is_file()


def test_a_tree_on_the_path_alone_works(sources: Sources, empty: Path) -> None:
    """Nothing is installed of it: workers, bare machines and copies of the tree have only the path."""
    ask = (
        "import cppo_lab.analysis, cppo_lab.reports; from cppo_lab.sweep import groups, source;"
        "print(cppo_lab.analysis.__path__[0], cppo_lab.reports.__path__[0], groups.CONF, source.SHIPPED, sep='\\n')"
    )
    said = done(sys.executable, "-c", ask, at=empty, PYTHONPATH=str(sources.unzipped))
    assert said.split() == [
        str(sources.unzipped / part) for part in ("analysis", "reports", "conf", "sweeps")
    ]


def _build(tree: Path) -> str:
    """What a build that must fail says."""
    hook = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    ended = python("-c", hook, cwd=tree, check=False)
    assert ended.returncode
    assert not (tree / "dist").exists() or list((tree / "dist").glob("*.whl")) == []
    return ended.stderr


@pytest.fixture
def tree(sources: Sources, tmp_path: Path) -> Path:
    """What is built, and what builds it."""
    for name in (*CODE, "pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        source = sources.unzipped / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / "tree" / name)
    return tmp_path / "tree"


@pytest.mark.parametrize("folder", CODE)
def test_a_build_without_a_folder_fails(folder: str, tree: Path) -> None:
    shutil.rmtree(tree / folder)
    assert f"{tree / folder} is not there or is empty" in _build(tree)


@pytest.mark.parametrize("file", ["analysis/new/module.py", "cppo_lab/table.csv", "conf/rule/notes.txt"])
def test_a_build_that_leaves_out_a_file_fails(file: str, tree: Path) -> None:
    (tree / file).parent.mkdir(exist_ok=True)
    (tree / file).touch()
    assert f"the build leaves out 1 files ({file})" in _build(tree)


def test_a_module_that_is_gone_does_not_come_back_from_an_earlier_build(tree: Path) -> None:
    hook = "import sys; from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    (tree / "analysis/gone.py").touch()
    done(sys.executable, "-c", hook, at=tree)
    (tree / "analysis/gone.py").unlink()
    done(sys.executable, "-c", hook, at=tree)
    with zipfile.ZipFile(next((tree / "dist").glob("*.whl"))) as archive:
        assert "cppo_lab/analysis/gone.py" not in archive.namelist()
        assert "cppo_lab/analysis/__init__.py" in archive.namelist()
