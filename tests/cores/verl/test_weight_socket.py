"""Two runs on one machine hand their weights over at once: verl's own sender and receiver, each in a process."""

import asyncio
import contextlib
import multiprocessing
import os
from types import SimpleNamespace

import pytest
import torch

from cppo_lab.cores.verl import core
from cppo_lab.cores.verl.cluster import plugin_environment
from cppo_lab.cores.verl.rollout import weight_socket
from cppo_lab.sweep.compose import compose
from tests.cores.verl import stand_in_vllm
from tests.waiting import until

pytestmark = [pytest.mark.verl, pytest.mark.slow]
HANDLE = (
    "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"  # verl's, in the first job of any Ray cluster
)
Results = "Queue[tuple[str, float]]"


def send(name: str, value: float, bound: object, go: object) -> None:
    """The trainer's end of a run."""
    os.environ[weight_socket.VARIABLE] = name
    with stand_in_vllm.installed():
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

        sender = BucketedWeightSender(weight_socket.of_this_run(HANDLE), bucket_size_mb=1, use_shm=True)
        begin = sender._init_socket

        def init_socket() -> None:
            begin()
            bound.wait()  # type: ignore[attr-defined]  until the other run has bound its own
            go.wait()  # type: ignore[attr-defined]

        sender._init_socket = init_socket
        asyncio.run(sender.async_send_weights([("weight", torch.full((4,), value))]))


def receive(name: str, go: object, results: Results) -> None:
    """The rollout engine's end, as verl's extension of vLLM's worker names the socket."""
    os.environ[weight_socket.VARIABLE] = name
    weight_socket.tell_engine()
    with stand_in_vllm.installed():
        from verl.workers.rollout.vllm_rollout import utils
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

        worker = SimpleNamespace(local_rank=0, model_runner=SimpleNamespace(vllm_config=None))
        handle = utils.vLLMColocateWorkerExtension._get_zmq_handle(worker)
        go.wait()  # type: ignore[attr-defined]
        receiver = BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True)
        receiver.receive_weights(lambda weights, is_last: results.put((name, float(weights[0][1][0]))))


def settled(codes: list[int | None]) -> bool:
    return None not in codes or any(codes)


def test_two_runs_at_once_keep_their_weights_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in plugin_environment(cpu=True).items():
        monkeypatch.setenv(variable, value)
    context = multiprocessing.get_context("spawn")
    bound, go = context.Barrier(2), context.Barrier(4)
    results: Results = context.Queue()
    runs = {weight_socket.new_name(): value for value in (1.0, 2.0)}
    processes = [context.Process(target=send, args=(name, value, bound, go)) for name, value in runs.items()]
    processes += [context.Process(target=receive, args=(name, go, results)) for name in runs]
    for process in processes:
        process.start()
    try:
        until("all have ended, or one has failed", lambda: settled([one.exitcode for one in processes]))
        assert [process.exitcode for process in processes] == [0] * 4
        found = dict(results.get() for _ in runs)
    finally:
        for process in processes:
            process.kill()
    assert found == runs


def test_a_run_has_a_name_of_its_own_in_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        core, "_cluster", lambda *arguments: contextlib.nullcontext({})
    )  # Ray takes half a minute
    layout = compose(["core=verl", "model=tiny_qwen3"]).layout
    names = set()
    for _ in range(2):
        with core.own_ray(layout) as ray_init:
            names.add(ray_init["runtime_env"]["env_vars"][weight_socket.VARIABLE])
    assert len(names) == 2 and all(len(name) == 32 for name in names)
    assert weight_socket.VARIABLE not in os.environ


def test_other_addresses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="was not started by the verl core"):
        weight_socket.of_this_run(HANDLE)
    monkeypatch.setenv(weight_socket.VARIABLE, "0" * 32)
    assert weight_socket.of_this_run(HANDLE) == HANDLE.replace("01000000", "0" * 32)
    with pytest.raises(RuntimeError, match="names no job"):
        weight_socket.of_this_run("ipc:///tmp/other.sock")
