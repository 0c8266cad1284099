"""Tiers, the order of the tests, what ends with them, and a run small enough for a unit test."""

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# Before torch is loaded: OpenMP threads that spin on each other's core make tests ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before Triton is loaded: its kernels run in its interpreter, which needs no GPU.
os.environ["TRITON_INTERPRET"] = "1"

import pytest
from hypothesis import settings
from mlflow.store.db import utils as db_utils
from sqlalchemy import Engine

from cppo_lab import errors, schema
from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from tests import reaper
from tests.tiers import CHOICES, tier, tiers_in

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

    from cppo_lab.reports.figures.drawing import Picture, Style

TINY = """model=mini_base
model.architecture.width=32
model.architecture.mlp_width=64
model.architecture.layers=1
model.warm_start.steps=20
model.warm_start.target_accuracy=null
model.warm_start.batch=16
data.operations=2
data.validation_problems=4
rollout.max_response_length=9
batch.prompts=8
batch.responses=4
batch.minibatch_prompts=4
validation.every=2
training.t_stop=4""".splitlines()
TINY_LINE = " ".join(TINY)


FINISHED = Outcome(schema.DONE, 4)

# The machine may stall for longer than Hypothesis allows an example, and a suite must fail today as it did yesterday.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# In the background of a script SIGINT is ignored, and whoever is started inherits that: tests that send it would hang.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
ROOT = TESTS.parent
_TOKEN = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=sorted(CHOICES),
        help="which tests run (tests/tiers.py); fast, unless files or folders are named: then all that are in them",
    )


def pytest_configure(config: pytest.Config) -> None:
    """In the session's first process: which tier runs, and the reaper that outlives the session."""
    if hasattr(config, "workerinput"):  # one of pytest-xdist's: it has all this from the first
        config.option.tier = config.workerinput["tier"]
        return
    if config.option.tier is None and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.option.tier = "fast"
    if reaper.MARK not in os.environ and sys.platform == "linux":
        config.stash[_TOKEN] = token = secrets.token_hex(16)
        subprocess.Popen([sys.executable, "-m", "tests.reaper", token], cwd=ROOT)
        os.environ[reaper.MARK] = token


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: "WorkerController") -> None:
    node.workerinput["tier"] = node.config.option.tier


def pytest_unconfigure(config: pytest.Config) -> None:
    """What is still running when all tests have ended is killed and named, in the session that has the reaper."""
    token = config.stash.get(_TOKEN, None)
    if token and (left := reaper.end_all(token)):
        print(f"killed, since tests had left them running: {', '.join(left)}", file=sys.stderr)


def pytest_report_header(config: pytest.Config) -> str:
    return f"tier: {config.option.tier or 'all that is named'} (tests/tiers.py)"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of other tiers are not even imported: verl takes ten seconds."""
    chosen = config.option.tier
    if chosen is None or not collection_path.is_file():
        return None
    return None if tiers_in(collection_path.relative_to(TESTS)) & CHOICES[chosen] else True


# Rooms whose tests share a server, a cluster or files made once: one process runs them all; and the files that take
# longest. The longest come first.
# Slurm's take a cluster for each of three groups: on one, they would still wait for it when all others are done. Ray's
# are four groups, and verl's that need no Ray are apart, for the same reason. The longest path decides.
_TOGETHER = {
    "ray": "cores/verl/",
    "ray on two machines": "slurm/test_ray_nodes",
    "more of ray": "cores/verl/test_check_api cores/verl/test_config cores/verl/test_preflight_run",
    "vllm": "cores/verl/vllm/",
    "containers": "launch/slurm/test_containers launch/slurm/test_two_accounts",
    "slurm": "launch/slurm/",
    "verl": """data/test_verl cores/verl/test_activation_memory cores/verl/test_engine cores/verl/test_hf_models
        cores/verl/test_logits cores/verl/test_loss cores/verl/test_parity cores/verl/test_sharded
        cores/verl/vllm/test_modules""",
    "queues": "slurm/",
    "servers": "servers/ browser/ analysis/test_histories_of_server",
    "searches": "search/test_",
    "launch": "launch/",
    "main job": "test_main_job",
    "reports": "reports/",
    "foreign rules": "rules/test_foreign_rules",
    "plans": "sweep/test_plan",
}


def _group(nodeid: str) -> tuple[int, str]:
    """Which tests run in one process, as (order, name): those of a room named above, else those of a file."""
    groups = [
        (len(start), order, name)
        for order, (name, starts) in enumerate(_TOGETHER.items())
        for start in starts.split()
        if nodeid.startswith(f"tests/{start}")
    ]
    _, *group = max(groups, default=(0, len(_TOGETHER), nodeid.partition("::")[0]))
    return tuple(group)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only the tests of the chosen tier; the longest groups first, or one of them would be left to a single process at
    the end.
    """
    if (chosen := config.option.tier) is not None:
        items[:] = [i for i in items if tier(i.path.relative_to(TESTS), i.name) in CHOICES[chosen]]
    items.sort(key=lambda item: _group(item.nodeid)[0])


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's, for `pytest -n 2`
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadScopeScheduling":
    """Keeps every group together. xdist's own way, `--dist loadgroup`, sends tests anywhere under pytest 9."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)[1]

    config.option.loadscopereorder = False
    return ByGroup(config, log)


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the session that all of its processes see."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(autouse=True)
def _rules_of_the_product() -> Iterator[None]:
    """Rules beside a sweep file stay for the rest of a process: not for the next test."""
    from cppo_lab.sweep import groups

    before = dict(groups._ADDED)
    yield
    if before != groups._ADDED:
        groups._ADDED.clear()
        groups._ADDED.update(before)
        groups.groups.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def _tables_made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """MLflow makes the tables of a SQLite store by some fifty migrations, each brought through to the disk: seconds.

    They are made once, by MLflow, and every further store of this session's processes begins as a copy.
    """
    make: Callable[[Engine], None] = db_utils._initialize_tables
    template = _shared(tmp_path_factory) / "mlflow-tables.db"

    def tables(engine: Engine) -> None:
        path = Path(engine.url.database or "")
        if engine.url.get_backend_name() != "sqlite" or not db_utils._is_empty_database(engine):
            make(engine)
            return
        engine.dispose()
        with template.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                make(engine)
                engine.dispose()
                whole = template.with_suffix(".new")
                whole.write_bytes(path.read_bytes())
                whole.replace(template)
                return
        path.write_bytes(template.read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlflow.store.db.utils._initialize_tables", tables)
        yield


@pytest.fixture(autouse=True)
def _children_find_the_tests() -> Iterator[None]:
    """A command that a test calls in this process keeps the working folder from its children: not from the next test's,
    nor from those of a module's fixtures, some of which are modules of this checkout.

    Hugging Face's `datasets` puts a copy in the place of `os.environ` when it filters rows in processes: what a test or
    decorator then sets in the one is not read from the other.
    """
    environment = os.environ
    environment["PYTHONSAFEPATH"] = ""
    yield
    os.environ = environment  # noqa: B003
    environment["PYTHONSAFEPATH"] = ""


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """What a test's runs have made of signals ends with it: children would inherit that they are ignored."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, *errors._END_SIGNALS)}
    yield
    errors._held.clear()
    for one, handler in before.items():
        if handler is not None:  # else C code's
            signal.signal(one, handler)


def at_work(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.chdir(folder)
    patch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, with no tracking store named from outside."""
    at_work(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def shared_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the tests of a module share."""
    return tmp_path_factory.mktemp("shared")


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """The same for what several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        at_work(patch, folder)
        yield patch


class Said(NamedTuple):
    """What a command has printed."""

    out: str
    err: str

    @property
    def answer(self) -> Any:
        """The object that `--json` prints."""
        return json.loads(self.out)

    @property
    def states(self) -> list[tuple[str, str]]:
        """State and reason of each run that it lists."""
        return [(run["state"], run["reason"]) for run in self.answer["runs"]]


Command = Callable[..., Said]


@pytest.fixture
def cppo(workspace: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs what is typed after `cppo` in an empty working folder; its exit code must be as expected."""

    def typed(line: str, *words: str, code: int = 0) -> Said:
        capsys.readouterr()
        try:
            ended: Any = main([*shlex.split(line), *words])
        except SystemExit as end:  # argparse
            ended = end.code
        said = Said(*capsys.readouterr())
        assert ended == code, said.err
        return said

    return typed


def python(*words: object, check: bool = True, **options: Any) -> "subprocess.CompletedProcess[str]":
    """A Python of its own with these arguments, and what it prints as text; it must end well."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, check=check, capture_output=True, text=True, **options)


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Files by their relative names, and the folders that they are in."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@contextlib.contextmanager
def user_error(says: str) -> Iterator["pytest.ExceptionInfo[UserError]"]:
    """How a block is refused: in one line that has a pattern."""
    with pytest.raises(UserError, match=says) as error:
        yield error
    assert "\n" not in str(error.value)


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Reports without their figures, which take most of the time: for tests of what reports say."""

    from cppo_lab.reports.figures.drawing import Absent, Drawn

    def render(picture: "Picture", _command: str, _style: "Style") -> Drawn:
        return Drawn(replace(picture, info=Absent(picture.absent or "not drawn")))

    patch.setattr("cppo_lab.reports.build.render", render)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_undrawn(monkeypatch)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs have plausible curves at once, with whatever core."""
    from tests import plausible

    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", lambda core: plausible.train)


@pytest.fixture
def tiny_spec() -> RunSpec:
    """A run of a second."""
    return compose(TINY).run
