"""A random Qwen3 small enough for a unit test; one Ray, with a trainer, for all that is tested in one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cppo_lab.cores.verl import checkpoints
from tests.waiting import CEILING_SECONDS, until

if TYPE_CHECKING:
    from tests.cores.verl.story import Story

ROOT = Path(__file__).parents[3]

# The tests here import verl at their top; without the extra there is nothing to collect.
collect_ignore_glob = [] if find_spec("verl") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("verl")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a saved Qwen3 with 2 layers and width 32, and its tokenizer; nothing is downloaded."""
    from cppo_lab.cores.verl.hf_models import as_fast_tokenizer, as_qwen3
    from tests.cores.test_mini import TOKENIZER, untrained

    folder = tmp_path_factory.mktemp("tiny")
    as_qwen3(untrained(256), TOKENIZER.eos).save_pretrained(folder)
    as_fast_tokenizer(TOKENIZER).save_pretrained(folder)
    return folder


CLIENT = """
import sys
import ray

ray.init(address=sys.argv[1], log_to_driver=False)
print("let in", ray.cluster_resources()["CPU"])
"""


def with_experts(config: Any, experts: int) -> Any:
    """A model with the sizes of a Qwen3, and a mixture of experts in each layer."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    drop = ("model_type", "architectures", "layer_types", "transformers_version")
    sizes = {key: value for key, value in config.to_dict().items() if key not in drop}
    shape = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes | shape))


RANKS = (1, 2)


def on_ranks(work: Callable[..., None], folder: Path, *arguments: str, groups: Sequence[int] = RANKS) -> None:
    """`work(rank, ranks, folder, *arguments)` with verl's engine, for each of `groups` in so many processes."""
    import torch.multiprocessing as mp

    mp.spawn(_groups, (groups, work, folder, arguments))


def _groups(_: int, groups: Sequence[int], *given: Any) -> None:
    """A process that loads verl once, and forks the others: neither torch nor gloo has begun."""
    import torch.multiprocessing as mp

    from tests.cores.verl import cpu_engine

    cpu_engine.load()
    for ranks in groups:
        mp.start_processes(_rank, (ranks, *given), nprocs=ranks, start_method="fork")


def _rank(rank: int, ranks: int, work: Callable[..., None], folder: Path, arguments: tuple[str, ...]) -> None:
    import torch

    from tests.cores.verl import cpu_engine

    cpu_engine.join(rank, ranks, folder / f"store{ranks}")
    torch.set_num_threads(1)
    work(rank, ranks, folder, *arguments)
    torch.distributed.destroy_process_group()


LOG = "log"


def started(
    folder: Path, module: str, *arguments: str, python: str = sys.executable, **environment: str
) -> "subprocess.Popen[bytes]":
    """A module as a process of its own, in `folder`, where its output is added to LOG."""
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            [python, "-m", module, *arguments], cwd=folder, stdout=log, stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environment},
        )  # fmt: skip


def ran(folder: Path, module: str, *arguments: str, **named: str) -> int:
    """The exit status of a module of this folder, whose first argument is `folder`."""
    return started(folder, f"{__package__}.{module}", str(folder), *arguments, **named).wait(CEILING_SECONDS)


def rows_in(folder: Path) -> list[checkpoints.Row]:
    """What the trainer of a run has recorded."""
    return [row for _, row in checkpoints.rows(folder)]


def steps_in(folder: Path) -> list[int]:
    """Of these rows."""
    return [step for step, _ in rows_in(folder)]


def running(place: Path) -> list[str]:
    """The command lines of processes that name this place."""
    import psutil

    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(place) in line]


class OnRay:
    """The job of `on_ray`: what it has seen, part by part."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared = folder, shared
        self.process = started(folder, f"{__package__}.on_ray", str(folder), str(shared))

    def seen(self, part: str) -> Any:
        """What a part has seen; fails with the part's error, or with the end of the log."""
        path = self.folder / f"{part}.json"
        until(f"{part} of on_ray", lambda: path.exists() or self.process.poll() is not None)
        log = (self.folder / LOG).read_text()
        assert path.exists(), log[-5000:]
        seen = json.loads(path.read_text())
        assert not (isinstance(seen, dict) and "failed" in seen), f"{seen['failed']}\n{log[-3000:]}"
        return seen

    @cached_property
    def clients(self) -> "list[subprocess.CompletedProcess[str]]":
        """Who asks Ray to be let in: with the token, and without one."""
        up = self.seen("up")
        whole = os.environ | up["environment"]
        stranger = {name: value for name, value in whole.items() if not name.startswith("RAY_AUTH")}

        def ask(environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
            command = [sys.executable, "-c", CLIENT, up["address"]]
            return subprocess.run(command, env=environment, capture_output=True, text=True)

        # At once: Ray's client tries again for 20 seconds before it gives up.
        with ThreadPoolExecutor() as pool:
            return list(pool.map(ask, (whole, stranger | {"RAY_AUTH_MODE": "disabled"})))


@pytest.fixture(scope="session")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    """Started once for all tests that ask for it; it goes through its parts by itself."""
    shared = tmp_path_factory.mktemp("verl") / "runs"
    shared.mkdir()
    job = OnRay(tmp_path_factory.mktemp("on_ray"), shared)
    try:
        job.clients  # while Ray is up  # noqa: B018
        yield job
    finally:
        job.process.kill()
        job.process.wait()


@pytest.fixture(scope="session")
def story(on_ray: OnRay) -> "Story":
    """Runs while another Ray of the same user is up on this machine."""
    from tests.cores.verl.story import tell

    on_ray.seen("up")
    return tell(on_ray.shared.parent)
